"""Outputs that move with the private rows although every private step releases the same: the twins compared."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.outputs import FILE, UNREAD
from decrescendo.doctor.twins import TWINS

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf")
# Addresses, times of day, durations.
_PASSING = re.compile(
    r"0x[0-9a-f]+|\d+:\d\d(:\d\d)?(\.\d+)?|\d[\d.]*\s*(s|sec|secs|seconds|ms|min|it/s|s/it)\b|"
    r"(time|seconds|secs|elapsed|duration)\W{0,4}[\d.]+"
)
_ALIKE = 1e-5  # of numbers that were computed in another order
_SHOWN = 60  # characters
_KEYS = 5
NOT_COMPARED = (
    "whether outputs change with the private rows: the steps that were observed had no noise, took public rows beside "
    "private ones, or rows that were not seen to come from a data set or a tensor, or a file is mapped for writing"
)
_ALTHOUGH = "even when every noisy gradient is the same"
_COSTS = (
    "epsilon covers the noisy gradients, and not this: leave it out, compute it on public rows, or add noise and "
    "account for it"
)


@dataclass
class Moved:
    """What the twins that a run left in a folder show.

    Args:
        compared: how many outputs are the same places in all three, or nothing where there were no twins.
        places: file and kind of those that moved, with their lines and what they are.
        kept: files and lines of those that never moved, and have numbers.
        ended: the error that a twin ended with.
        turned: the first output that came in one of two, if the script went on elsewhere with other private rows.
    """

    compared: int | None = None
    places: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    kept: set[tuple[str, int]] = field(default_factory=set)
    turned: list[Any] | None = None
    ended: str = ""

    @property
    def lines(self) -> set[tuple[str, int]]:
        """Files and lines of the outputs that moved."""
        return {(file, line) for (file, _), found in self.places.items() for line, _ in found}

    def findings(self) -> list[Finding]:
        """One for all outputs of a kind and a file."""
        return [*_findings(self.places), *([] if self.turned is None else _turned(self.turned))]


def moved_outputs(folder: Path) -> Moved:
    """The outputs of the twins, one beside the other, as far as the three are at the same places."""
    try:
        own, others, noisy = (
            [json.loads(line) for line in (folder / f"{name}.outputs").read_text(encoding="utf-8").splitlines()]
            for name in TWINS
        )
        if not (folder / "other rows.moved").read_bytes():
            return Moved()
    except (OSError, ValueError):
        return Moved()
    moved = Moved(0)
    for one, other, louder in zip(own, others, noisy, strict=False):
        if one[:3] != louder[:3] or len({tuple(each[4:5]) for each in (one, other, louder)}) > 1:
            break  # by noise, or by the time; or other random numbers follow
        if one[:3] != other[:3]:
            moved.turned = one
            break
        file, line, kind, text, _, uniform = one
        if kind == "ended":
            moved.ended = text
        if uniform or not file:  # which may be noise, or of a library
            continue
        moved.compared = (moved.compared or 0) + 1
        if file and _moved(text, other[3], louder[3]):
            moved.places.setdefault((file, kind), []).append((line, _shown(kind, text, other[3])))
        elif _NUMBER.search(text) and UNREAD not in text:
            moved.kept.add((file, line))
    moved.kept -= moved.lines
    return moved


def _findings(moved: dict[tuple[str, str], list[tuple[int, str]]]) -> Iterator[Finding]:
    for (file, kind), found in moved.items():
        line, shown = found[0]
        others = sorted({at for at, _ in found} - {line})
        also = f" (and in line{'s' * (len(others) > 1)} {', '.join(map(str, others))})" if others else ""
        says = f"what is {kind} here changes with the private rows {_ALTHOUGH}: {shown}{also}"
        yield Finding("beside", Certainty.PROVEN, says, _COSTS, file, line)


def _turned(one: list[Any]) -> Iterator[Finding]:
    """With other private rows the script went on elsewhere."""
    file, line, kind, text, *_ = one
    if file:
        shown = _shown(kind, text, text)
        says = f"whether this is {kind} changes with the private rows {_ALTHOUGH}: {shown}"
        yield Finding(
            "selection", Certainty.SUSPECTED, says,
            "a best score, an early end or another choice by private rows tells of them, and epsilon does not count "
            "it: choose by public rows", file, line,
        )  # fmt: skip


def _moved(one: str, other: str, louder: str) -> bool:
    """Whether words, or a number, differ with other rows, but not without noise."""
    words, numbers = zip(*map(_parts, (one, other, louder)), strict=True)
    if words[0] != words[2] or words[0] != words[1]:
        return words[0] == words[2]
    return any(not _close(a, b) and _close(a, c) for a, b, c in zip(*numbers, strict=True))


def _parts(text: str) -> tuple[str, list[str]]:
    """A text without its numbers, and these; but for what passes by itself."""
    text = _PASSING.sub("", text.lower())
    return _NUMBER.sub("#", text), _NUMBER.findall(text)


def _close(one: str, other: str) -> bool:
    """Whether two numbers are the same up to rounding."""
    return one == other or math.isclose(float(one), float(other), rel_tol=_ALIKE)


def _shown(kind: str, text: str, other: str) -> str:
    """What it is, without its numbers; of what is saved, the keys that moved."""
    if kind == "saved":
        pairs = zip(text.split("\n"), other.split("\n"), strict=False)
        keys = list(dict.fromkeys(a.rsplit(" ", 2)[0] for a, b in pairs if _moved(a, b, a)))
        return ", ".join(keys[:_KEYS]) + " ..." * (len(keys) > _KEYS)
    if kind == FILE:
        return text.split("\n")[0]
    return repr(_NUMBER.sub("…", " ".join(text.split()))[:_SHOWN])
