"""What a schedule has spent after so many steps, as every accountant of the paper's Figures 2 and 4 sees it.

No training is needed, but minutes are: the numbers are computed once and kept.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decrescendo import accounting
from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments import lines
from decrescendo_papers.experiments.checked import numbers
from decrescendo_papers.experiments.perform import plan_of
from decrescendo_papers.experiments.spec import Spec

FORMAT, VERSION = "decrescendo-costs", 1


@dataclass(frozen=True, slots=True)
class Costs:
    """Epsilon after some numbers of steps, at the spec's delta.

    Args:
        steps: ascending, the last is the whole run.
        clt: what the central limit theorem claims.
        lower: certified lower end.
        upper: certified upper end.
        renyi: upper bound by Renyi accounting.
    """

    steps: list[int]
    clt: list[float]
    lower: list[float]
    upper: list[float]
    renyi: list[float]


def compute(spec: Spec, points: int) -> Costs:
    """The costs of a schedule at so many evenly spread numbers of steps."""
    ledger = plan_of(spec).ledger
    at = sorted({max(1, round(float(step))) for step in np.linspace(0, spec.steps, points + 1)[1:]})
    found = Costs(at, [], [], [], [])
    for step in at:
        first = ledger.first(step)
        lower, upper = accounting.Pld().bracket(first, spec.delta)
        found.lower.append(lower)
        found.upper.append(upper)
        found.clt.append(accounting.GdpClt().epsilon(first, spec.delta).value)
        found.renyi.append(accounting.Rdp().epsilon(first, spec.delta).value)
    return found


def path_of(folder: Path) -> Path:
    """The file that every costs are a line of."""
    return folder / "costs.jsonl"


def save(folder: Path, spec: Spec, points: int, costs: Costs) -> Path:
    """Write the costs, all or nothing."""
    facts = {"format": FORMAT, "version": VERSION, "spec": spec.settings(), "points": points, **asdict(costs)}
    return lines.keep(path_of(folder), f"{spec.hash}-{points}", kept.seal(facts), ("points",))


def find(folder: Path, spec: Spec, points: int) -> Costs | None:
    """Kept costs; ``None`` if there are none, or only damaged ones."""
    path = path_of(folder)
    try:
        line = lines.find(path, f"{spec.hash}-{points}", ("points",))
        if line is None:
            return None
        facts = kept.opened(line, path, FORMAT, VERSION)
        found: dict[str, Any] = {name: numbers(facts[name]) for name in Costs.__dataclass_fields__}
        return Costs(**found)
    except (FileRefused, KeyError, TypeError):
        return None
