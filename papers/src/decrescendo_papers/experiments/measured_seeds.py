"""Measured seeds of trainings: a sealed line each training, which grows by a seed at a time, so that work can stop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments import lines
from decrescendo_papers.experiments.checked import named, number, numbers, whole
from decrescendo_papers.experiments.influence import Measured

FORMAT, VERSION = "decrescendo-influence", 3
_BY = ("low", "high", "at")


def read_seeds(path: Path, identity: Mapping[str, Any]) -> dict[int, Measured]:
    """What is kept, by seed; nothing if there is no file, or no line of this training.

    Args:
        path: of the file.
        identity: what was measured, as plain values: the training under "spec", the steps under "at", the factors of
            the noise under "low" and "high".

    Raises:
        FileRefused: damaged or foreign.
    """
    at = tuple(identity["at"])
    return {row["seed"]: Measured(row["seed"], at, row["base"], tuple(row["slopes"])) for row in _rows(path, identity)}


def add_seed(path: Path, identity: Mapping[str, Any], measured: Measured, facts: Mapping[str, Any]) -> None:
    """Keep one more seed, with facts about how it was measured; a damaged line of this training is replaced."""
    row: dict[str, Any] = {
        "seed": measured.seed,
        "base": measured.base,
        "slopes": list(measured.slopes),
        **facts,
    }
    try:
        others = [one for one in _rows(path, identity) if one["seed"] != measured.seed]
    except FileRefused:
        others = list[dict[str, Any]]()
    seeds = sorted([*others, row], key=lambda one: one["seed"])
    content = {"format": FORMAT, "version": VERSION, **identity, "seeds": seeds}
    lines.keep(path, lines.key_of(identity, _BY), kept.seal(content), _BY)


def _rows(path: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    line = lines.find(path, lines.key_of(identity, _BY), _BY)
    if line is None:
        return []
    rows: Any = kept.opened(line, path, FORMAT, VERSION).get("seeds")
    if not isinstance(rows, list):
        raise FileRefused(f"{path} must hold measured seeds, got others")
    found: list[dict[str, Any]] = rows
    for row in found:
        try:
            seed, _, slopes = whole(named(row)["seed"]), number(row["base"]), numbers(row["slopes"])
        except (KeyError, TypeError) as error:
            raise FileRefused(f"{path} must hold a measured seed in each entry, got {error}") from None
        if seed < 0 or len(slopes) != len(identity["at"]):
            raise FileRefused(f"{path} must have a slope for each step of each seed, got others for seed {seed}")
    return found


def seeds_bar(console: Console | None) -> Progress:
    """A bar with the time left, for work whose steps are known."""
    return Progress(
        BarColumn(), TextColumn("{task.percentage:>4.1f} %"), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.description}"),
        console=console or Console(stderr=True, emoji=False), speed_estimate_period=600,
    )  # fmt: skip
