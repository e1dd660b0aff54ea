"""Figures 1 and 5: the length of the gradients over the steps, and whether it ramps up."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from decrescendo.report import Scores
from decrescendo_papers.experiments.alike import above, first_of_most
from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.panels import Panel, draw_panels
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.tasks import find_task

# A mean length is said to ramp up when it later exceeds its first value by more than this.
RAMP = 1.1


def traces(figure: Figure, sources: Sources, series: str) -> dict[str, Scores]:
    """A recorded series of every run of the figure, by the name of the method; methods without results are left out."""
    found: dict[str, Scores] = {}
    for key, spec in figure.runs.items():
        runs = [result for result in sources.archive.of(spec).values() if result.trace]
        if runs:
            found[key.rsplit("/", 1)[1]] = _scores(runs, series)
    return found


def _scores(runs: list[Result], series: str) -> Scores:
    steps: Mapping[str, list[float]] = runs[0].trace
    factor = 100.0 if series == "test_accuracy" else 1.0
    return Scores(
        [int(step) for step in steps["step"]],
        [[factor * value for value in result.trace[series]] for result in runs],
    )


def draw_lengths(figure: Figure, sources: Sources, path: Path) -> Path | None:
    """The drawing; nothing without results."""
    lengths = traces(figure, sources, "gradient_norm")
    if not lengths:
        return None
    return draw_panels(
        [
            Panel(
                lengths,
                "mean length of an example's gradient",
                other=(coordinates(figure) ** 0.5, "average coordinate (root mean square)"),
            ),
            Panel(
                accuracies := traces(figure, sources, "test_accuracy"),
                "test accuracy (%)", from_zero=False, each=True, bottom=bottom_of(accuracies),
            ),
        ],
        path,
    )  # fmt: skip


def bottom_of(accuracies: Mapping[str, Scores]) -> float:
    """Where the axis begins: below the medians of all methods once a tenth of the steps are done.

    >>> lost = Scores([1, 50, 100], [[10.0, 88.0, 11.0]] * 3)
    >>> bottom_of({"a": Scores([1, 50, 100], [[10.0, 91.0, 95.0]]), "b": lost})
    10.0
    >>> bottom_of({"b": Scores([1, 50, 100], [[10.0, 88.0, 90.0], [10.0, 88.0, 90.0], [10.0, 88.0, 11.0]])})
    80.0
    """
    late = [
        float(median)
        for scores in accuracies.values()
        for step, median in zip(scores.steps, np.median(scores.values, axis=0), strict=True)
        if step >= scores.steps[-1] / 10
    ]
    return 10.0 * float(np.floor(min(late) / 10))


def coordinates(figure: Figure) -> int:
    """How many a gradient of the figure's model has."""
    spec = next(iter(figure.runs.values()))
    return sum(part.numel() for part in find_task(spec.task).build(spec.model, 0).parameters())


def ramps(figure: Figure, sources: Sources) -> dict[str, dict[int, float]]:
    """Logarithm of the largest recorded length over the first, by name of the method and seed."""
    return {
        key.rsplit("/", 1)[1]: {
            seed: float(np.log(max(norms) / norms[0]))
            for seed, result in sources.archive.of(spec).items() if (norms := result.trace.get("gradient_norm"))
        }
        for key, spec in figure.runs.items()
    }  # fmt: skip


def lengths_words(figure: Figure, sources: Sources) -> str:
    """What is seen."""
    lengths = traces(figure, sources, "gradient_norm")
    accuracy = traces(figure, sources, "test_accuracy")
    lines: list[str] = []
    root = coordinates(figure) ** 0.5 if lengths else 1.0
    for name, scores in lengths.items():
        mean, score = scores.mean, accuracy[name]
        top = first_of_most(range(len(mean)), mean.tolist().__getitem__)
        ratio = float(mean[top] / mean[0])
        seen = "a ramp-up is seen" if top > 0 and above(ratio, RAMP) else "no ramp-up is seen"
        lines.append(
            f"- {name} ({_seeds(len(scores.values))}): {mean[0]:.2f} at step {scores.steps[0]}, the most "
            f"{mean[top]:.2f} at step {scores.steps[top]}, {mean[-1]:.2f} at the end (average coordinate "
            f"{mean[0] / root:.3f}, {mean[top] / root:.3f}, {mean[-1] / root:.3f}); test accuracy "
            f"{_at_the_end(score)} at the end. By the rule that the length must grow by more than a tenth after the "
            f"first point, {seen} (factor {ratio:.2f}).{_lost(score)}"
        )
    missing = [key for key in figure.runs if key.rsplit("/", 1)[1] not in lengths]
    if missing:
        lines.append(f"- **Unfinished**: no run yet of {', '.join(missing)}.")
    return "\n".join(lines)


def _at_the_end(accuracy: Scores) -> str:
    last = [values[-1] for values in accuracy.values]
    spread = f" ({min(last):.2f} .. {max(last):.2f})" if len(last) > 1 else ""
    return f"{accuracy.mean[-1]:.2f} %{spread}"


def _lost(accuracy: Scores) -> str:
    lost = sum(above(max(values) / 2, values[-1]) for values in accuracy.values)
    if not lost:
        return ""
    return f" **{_seeds(lost)} lost what was learned**: less than half of the best score is left at the end."


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
