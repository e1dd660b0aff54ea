"""Measured seeds of one training on disk: one checked file that grows by a seed at a time, so that work can stop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments.checked import named, number, numbers, whole
from decrescendo_papers.experiments.influence import Measured

FORMAT, VERSION = "decrescendo-influence", 2


def read_seeds(path: Path, identity: Mapping[str, Any]) -> dict[int, Measured]:
    """What is kept, by seed; nothing if there is no file.

    Args:
        path: of the file.
        identity: what was measured, as plain values, the steps under "at"; those of the file must be equal.

    Raises:
        FileRefused: damaged, foreign, or of something else.
    """
    at = tuple(identity["at"])
    return {
        row["seed"]: Measured(row["seed"], at, row["base"], tuple(row["slopes"]))
        for row in _rows(path, identity)
    }


def add_seed(path: Path, identity: Mapping[str, Any], measured: Measured, facts: Mapping[str, Any]) -> None:
    """Keep one more seed, with facts about how it was measured; the file is replaced as a whole.

    Raises:
        FileRefused: as `read_seeds`.
    """
    row: dict[str, Any] = {
        "seed": measured.seed,
        "base": measured.base,
        "slopes": list(measured.slopes),
        **facts,
    }
    others = [one for one in _rows(path, identity) if one["seed"] != measured.seed]
    seeds = sorted([*others, row], key=lambda one: one["seed"])
    kept.write(path, FORMAT, VERSION, {**identity, "seeds": seeds})


def _rows(path: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    content = kept.read(path, FORMAT, VERSION)
    rows: Any = content.pop("seeds", None)
    if content != dict(identity) or not isinstance(rows, list):
        raise FileRefused(
            f"{path} must hold measurements of the same training, got others. Give another file, or delete it"
        )
    found: list[dict[str, Any]] = rows
    for row in found:
        try:
            seed, _, slopes = whole(named(row)["seed"]), number(row["base"]), numbers(row["slopes"])
        except (KeyError, TypeError) as error:
            raise FileRefused(f"{path} must hold a measured seed in each entry, got {error}") from None
        if seed < 0 or len(slopes) != len(identity["at"]):
            raise FileRefused(
                f"{path} must have a slope for each step of each seed, got others for seed {seed}"
            )
    return found


def seeds_bar(console: Console | None) -> Progress:
    """A bar with the time left, for work whose steps are known."""
    return Progress(
        BarColumn(), TextColumn("{task.percentage:>4.1f} %"), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.description}"),
        console=console or Console(stderr=True), speed_estimate_period=600,
    )  # fmt: skip
