"""Neighbouring data sets compared: by how much one record moved what was released, and the records beside it."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from decrescendo.doctor.budgets import Observed, place_of
from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.neighbours import SCALES, released
from decrescendo.doctor.outlived import outlived

_SLACK = 1.02  # of float32 sums, and of the 1e-6 that Opacus adds to norms
_ERRORS = 4.0
_ROUNDING = 1e-4
_FEW = 0.01  # the share of numbers that may come out the same by rounding
_MANY, _LOOKED_AT = 16, 1_000
NO_NOISE = "the gradient of a step has no noise"
_HARDLY = 1e-3  # of the noise: a record that is clipped moves it by more
_SILENT = 0.1  # a noise multiplier below it hides nothing


def compared(folder: Path, seen: Observed) -> tuple[list[Finding], list[str], list[str], bool]:
    """Findings, facts, what could not be compared, and whether the sum was."""
    parent, same = released(folder, "parent"), released(folder, "same")
    if parent is None or same is None:
        return (
            [],
            [],
            ["neighbouring data sets: no batch came from a loader, or as rows into the model, before a step"],
            False,
        )
    if not torch.equal(parent["release"], same["release"]):
        why = "neighbouring data sets: the training is not repeatable with the same random numbers"
        return [], [], [why], False
    at = next(((e["file"], e["line"]) for kind in ("noise", "step") for e in seen.of(kind)), ("", 0))
    left = {role: released(folder, role) for role in ("replaced", "removed", *SCALES)}
    others = {role: held for role, held in left.items() if held is not None}
    if parent["random"]:
        others.pop("removed", None)  # dropout: another number of rows has other masks
    if parent["kind"] == "sum":
        found = [*_of_sum(parent, others, at), *_beside(parent, same, others, seen)]
        return found, [_moved_words(parent, others)], [], bool(others)
    return _of_gradient(folder, parent, others, seen, at)


def buffers_moved(folder: Path) -> bool:
    """Whether exchanging a record moved running statistics of layers, as far as is known."""
    parent = released(folder, "parent")
    others = [released(folder, role) for role in ("replaced", *SCALES)]
    held = [other["buffers"] for other in others if other is not None]
    return parent is None or not held or any(not torch.equal(parent["buffers"], one) for one in held)


def _distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    if one["release"].shape != other["release"].shape:
        return math.inf
    return float((one["release"] - other["release"]).norm())


def _clip(parent: dict[str, Any]) -> float:
    return parent["std"] / parent["noise"] if parent["noise"] else math.inf


def _moved_words(parent: dict[str, Any], others: dict[str, dict[str, Any]]) -> str:
    words = {"large": "made a thousand times as large", "opposite": "made so with another label"}
    moved = ", ".join(
        f"{words.get(role, role)}: {_distance(parent, held) / _clip(parent):.3g} C" for role, held in others.items()
    )
    return f"by how much the sum moved when one record was {moved}"


def _of_sum(parent: dict[str, Any], others: dict[str, dict[str, Any]], at: tuple[str, int]) -> Iterator[Finding]:
    clip = _clip(parent)
    if any(not math.isclose(held["std"], parent["std"], rel_tol=1e-9) for held in others.values()):
        yield Finding(
            "sensitivity", Certainty.PROVEN,
            "the size of the noise depends on the records: with one of them exchanged or left out, clip norm or noise "
            "multiplier were other numbers",
            "these show in the weights without noise of their own, and rows of one batch may have several clip norms: "
            "take constants, a public schedule, or a noisy quantile that is accounted", *at,
        )  # fmt: skip
    for role, held in others.items():
        allowed = 1 if role == "removed" else 2
        moved = _distance(parent, held) / clip
        if math.isnan(moved):
            yield Finding(
                "sensitivity", Certainty.PROVEN, "one record made the sum not a number",
                "it can be seen whether that record took part: bound the loss, or leave such gradients out", *at,
            )  # fmt: skip
            break
        if moved > allowed * _SLACK:
            yield Finding(
                "sensitivity", Certainty.PROVEN,
                f"one record {'removed' if role == 'removed' else 'exchanged'} moved the sum by {moved:.4g} C, and the "
                f"noise is for {allowed} C",
                f"the noise multiplier in force is at most {parent['noise'] * allowed / moved:.4g}, not "
                f"{parent['noise']:.4g}", *at,
            )  # fmt: skip
            break
    rows, removed = parent.get("rows"), others.get("removed")
    if rows is None:
        return
    exchanged = [held for role, held in others.items() if role != "removed" and held.get("rows") is not None]
    changed = max((_changed(rows[1:], held["rows"][1:]) for held in exchanged), default=0)
    if changed:
        moved = max(_distance(parent, held) for held in exchanged) / clip
        yield Finding(
            "rows", Certainty.PROVEN,
            f"exchanging one record changed the gradients of {changed} other records of the batch",
            f"clipping each does not bound what one record moves (here {moved:.4g} C): let "
            "no layer, loss or collate function look at other rows (BatchNorm, contrastive losses, "
            "padding to the longest)",
            *at,
        )  # fmt: skip
    elif removed is not None and _scaled(rows[1:], removed["rows"]):
        yield Finding(
            "denominator", Certainty.PROVEN,
            "with one record less every other record's gradient is larger or smaller by n/(n-1): the loss "
            "is divided by "
            "the number of rows once too often, or once too little, for loss_reduction",
            "a record moves all others: make loss_reduction what the loss does (mean or sum)", *at,
        )  # fmt: skip


def _beside(
    parent: dict[str, Any], same: dict[str, Any], others: dict[str, dict[str, Any]], seen: Observed
) -> Iterator[Finding]:
    """Optimisers that no noise is added for, and whose gradient moves with a record that moves the private sum."""
    loader = seen.loader(parent["loader"])
    private = {made["dataset"] for event in seen.of("private") for made in (event["made"], event["given"])}
    if loader is None or loader["dataset"] not in private:
        return
    for event in seen.of("beside"):
        key = str(event["optimizer"])
        own = parent.get("beside", {}).get(key)
        if own is None or not torch.equal(own, same["beside"].get(key, own[:0])):
            continue
        moved = [
            role for role, held in others.items()  # (one row less may be one random number less)
            if role != "removed" and _distance(parent, held) and not torch.equal(own, held["beside"].get(key, own[:0]))
        ]  # fmt: skip
        if moved:
            yield Finding(
                "bypass", Certainty.PROVEN,
                "a second optimiser steps by a gradient that moves with a record, and is neither clipped nor noised",
                "no privacy for what it trains: let make_private make it, too, or train it on public rows",
                *place_of(event),
            )  # fmt: skip
            return


def _changed(before: torch.Tensor, after: torch.Tensor) -> int:
    if before.shape != after.shape:
        return len(before)
    scale = before.abs().amax(dim=1) + before.abs().mean()
    return int(((before - after).abs().amax(dim=1) > _ROUNDING * scale).sum())


def _scaled(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether all rows were multiplied by one number, that of a row more or less in a mean."""
    if before.shape != after.shape or not len(before):
        return False
    ratio = float((before * after).sum() / (before * before).sum().clamp_min(1e-300))
    count = len(before) + 1
    near = min(abs(ratio - count / (count - 1)), abs(ratio - (count - 1) / count))
    return near < 0.1 / count and not _changed(before * ratio, after)


def _of_gradient(
    folder: Path,
    parent: dict[str, Any],
    others: dict[str, dict[str, Any]],
    seen: Observed,
    at: tuple[str, int],
) -> tuple[list[Finding], list[str], list[str], bool]:
    """Hand-written loops: noise and movement of the gradient that the optimiser takes, whatever it was divided by."""
    quiet = released(folder, "quiet")
    names: dict[str, float] = {}
    for event in seen.of("claims"):
        names |= event["names"]
    counted = seen.of("account")
    claims = bool(counted) or bool({"noise", "sigma", "epsilon"} & set(names))
    if quiet is None or not claims:
        return [], [], ["noise, of which nothing in the run says how much there should be"], False
    std = _distance(parent, quiet) / math.sqrt(len(parent["release"]))
    if std == 0 or not math.isfinite(std):
        if parent["elsewhere"]:
            finding = Finding(
                "noise", Certainty.SUSPECTED, "the gradient of a step has no noise that is drawn in the step",
                "no privacy, if there is no other; noise that is drawn once, and added in each step, cancels in "
                "differences of steps", *at,
            )  # fmt: skip
        else:
            drawn = {e["drawn"] for e in seen.of("step")}
            finding = Finding(
                "noise", Certainty.SUSPECTED if len(drawn) > 1 else Certainty.PROVEN,
                NO_NOISE, "no privacy, if nothing is noised later", *at,
            )  # fmt: skip
        return [finding], [], [], False
    findings = [*_without_noise(parent, quiet, others, at), *outlived(folder, at)]
    distances = [_distance(parent, held) for role, held in others.items() if role != "removed"]
    moved = math.inf if any(map(math.isnan, distances)) else max(distances, default=0.0)
    if moved <= _HARDLY * std:
        return findings, [], ["neighbouring data sets: exchanging a record hardly moved the gradient"], False
    # So many standard errors of the noise's own measurement, by as many numbers as there are weights.
    slack = _SLACK * (1 + _ERRORS / math.sqrt(2 * len(parent["release"])))
    force = 2 * std / moved
    told = counted[0].get("noise_multiplier") if counted else None
    claimed = names.get("noise") if told is None else float(told)
    if claimed is None and "sigma" in names:
        claimed = min(names["sigma"], names["sigma"] / max(names.get("clip", 1.0), 1e-12))
    whose, unit = (
        ("round's sum", "client's update")
        if parent.get("round")
        else ("gradient", "example's gradient, not the batch's")
    )
    fact = f"one record exchanged moved the {whose} by {moved / std:.4g} standard deviations of its noise"
    if claimed is not None and force < claimed / slack:
        findings.append(Finding(
            "sensitivity", Certainty.PROVEN,
            f"{fact}; a noise multiplier of {claimed:.4g} allows {2 / claimed:.4g}",
            f"the noise multiplier in force is at most {force:.4g}: clip each {unit}, and add "
            "noise of the multiplier times the clip norm to the sum", *at,
        ))  # fmt: skip
    elif claimed is None and force < _SILENT:
        most = f"the noise multiplier in force is at most {force:.4g}"
        findings.append(Finding("noise", Certainty.PROVEN, fact, most, *at))
    return findings, [fact], [], claimed is not None


def _without_noise(
    parent: dict[str, Any], quiet: dict[str, Any], others: dict[str, dict[str, Any]], at: tuple[str, int]
) -> list[Finding]:
    """Coordinates that a record moves and no noise does, and noise that is the same number in many of them."""
    noise, size = parent["release"] - quiet["release"], len(parent["release"])
    alike = [held["release"] for held in others.values() if len(held["release"]) == size]
    moved = torch.stack([(held - parent["release"]).abs() for held in alike]).amax(0) if alike else noise.abs() * 0
    bare = int(((noise == 0) & (moved > _ROUNDING * moved.max())).sum())
    if bare > _FEW * size:
        return [Finding(
            "noise", Certainty.PROVEN, f"{bare} of {size} numbers of the gradient move with a record and have no noise",
            "whoever sees them sees the record: add noise to every tensor that a record moves", *at,
        )]  # fmt: skip
    drawn = noise[noise != 0]
    drawn = drawn[:: max(1, len(drawn) // _LOOKED_AT)]
    # Equal up to rounding, of which a thousand have few.
    different = len((drawn / drawn.abs().max() * 1e5).round().unique()) if len(drawn) else 0
    if len(drawn) >= _MANY and different <= len(drawn) / _MANY and different != 2:  # (two: signs of a noisy sum)
        return [Finding(
            "noise", Certainty.PROVEN,
            f"{len(drawn)} numbers of the gradient have noise, and among it are {different} different numbers",
            "differences of numbers that share their noise are without any: draw one for each", *at,
        )]  # fmt: skip
    return []
