"""Section 4.2 of Du et al.: how fast and how stably the methods converge, by measures of our own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from decrescendo.report import Paired, paired
from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.lengths_section import bottom_of, traces
from decrescendo_papers.experiments.panels import Panel, draw_panels
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.table import fits

# The measures, set before the first of these runs.
EARLY = 1 / 4  # of the steps
LATE = 1 / 2
Measure = Callable[[Result], float]


def early_accuracy(result: Result) -> float:
    """Mean test accuracy, in percent, over the steps of the first quarter, on lines between those recorded."""
    steps, scores = np.array(result.trace["step"]), np.array(result.trace["test_accuracy"])
    return 100 * float(np.interp(np.arange(steps[0], EARLY * steps[-1] + 1), steps, scores).mean())


def unsteadiness(result: Result) -> float:
    """Standard deviation, in points, of the changes of test accuracy between recorded steps of the second half."""
    steps, scores = np.array(result.trace["step"]), np.array(result.trace["test_accuracy"])
    return 100 * float(np.diff(scores[steps >= LATE * steps[-1]]).std(ddof=1))


def gain(figure: Figure, sources: Sources, task: str, measure: Measure, one: str, other: str) -> Paired:
    """By how much a method measures more than another one on a task, one difference a seed."""

    def measured(name: str) -> dict[int, float]:
        (spec,) = (spec for key, spec in figure.runs.items() if key.startswith(f"{task}/") and key.endswith(f"/{name}"))
        return {seed: measure(result) for seed, result in sources.archive.of(spec).items() if result.trace}

    return paired(measured(one), measured(other))


def tasks_of(figure: Figure) -> list[str]:
    """In their order."""
    return list(dict.fromkeys(spec.task for spec in figure.runs.values()))


def _part(figure: Figure, task: str) -> Figure:
    """The runs of one task."""
    runs = {key: spec for key, spec in figure.runs.items() if fits(key, f"{task}/*/*")}
    return Figure(figure.key, figure.title, runs=runs)


def draw_convergence(figure: Figure, sources: Sources, path: Path) -> Path | None:
    """Test accuracy over the steps, a panel a task; nothing without results."""
    found = {task: traces(_part(figure, task), sources, "test_accuracy") for task in tasks_of(figure)}
    panels = [
        Panel(lines, "test accuracy (%)", title=task, from_zero=False, bottom=bottom_of(lines))
        for task, lines in found.items() if lines
    ]  # fmt: skip
    return draw_panels(panels, path) if panels else None


def convergence_words(figure: Figure, sources: Sources) -> str:
    """Both measures of every method."""
    lines: list[str] = []
    for key, spec in figure.runs.items():
        runs = [result for result in sources.archive.of(spec).values() if result.trace]
        if not runs:
            lines.append(f"- **Unfinished**: no run yet of {key}.")
            continue
        task, _, name = key.split("/")
        lines.append(
            f"- {task}, {name} ({len(runs)} seeds): early accuracy {_spread([early_accuracy(run) for run in runs])} %, "
            f"late changes {_spread([unsteadiness(run) for run in runs])} points"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{error}"
