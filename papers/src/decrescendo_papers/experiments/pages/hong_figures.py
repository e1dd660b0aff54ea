"""Figures of Hong et al.'s experiment: influence over the steps, gains and scores over the number of images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from decrescendo.report import Scores
from decrescendo_papers.experiments.estimate import Influence, fit_exponential
from decrescendo_papers.experiments.hong import METHODS, SEEDS, SIZES, STAND_INS, Case, influence_of
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.hong_cases import (
    SCALE_NAMES,
    UNITS,
    Compared,
    compared,
    reach,
    sized,
)
from decrescendo_papers.experiments.panels import Panel, draw_panels

NAMES = {"mnist35-pca": "3 and 5", "mnist-pca": "10 digits"}


def draw_hong(sources: Sources, folder: Path) -> list[Path]:
    """Every figure that has something to show."""
    cases = compared(sources)
    return draw_influences(sources, folder) + (draw_gains(cases, folder) if cases else [])


def draw_influences(sources: Sources, folder: Path) -> list[Path]:
    """``hong-influence`` over N, and ``hong-scale`` over the length of the data."""

    def curve(case: Case, *, made_up: bool = True) -> Influence | None:
        return influence_of(case.study(made_up=made_up), sources.influence, SEEDS)

    panels: list[Panel] = []
    for task in STAND_INS:
        curves = {f"made-up, N = {size}": curve(Case(task, size)) for size in SIZES}
        curves[f"the images, N = {max(SIZES)} (private)"] = curve(Case(task, max(SIZES)), made_up=False)
        panels.append(_influence_panel(curves, f"Influence of step t, {NAMES[task]}"))
    scales = {
        f"at most {length} long": curve(Case("mnist35-pca", max(SIZES), model)) for model, length in SCALE_NAMES.items()
    }
    written: list[Path] = []
    if all(panel.lines for panel in panels):
        written.append(draw_panels(panels, folder / "hong-influence.png"))
    if all(scales.values()):
        panel = _influence_panel(scales, "Influence of step t, 3 and 5, made-up, N = 1000")
        written.append(draw_panels([panel], folder / "hong-scale.png"))
    return written


def _relative(found: Influence) -> Scores:
    low, high = found.interval()
    last = float(found.mean[-1])
    return Scores(found.at.tolist(), [(part / last).tolist() for part in (low, found.mean, high)])


def _fitted(found: Influence) -> Scores:
    """The fitted exponential, over the last measured value."""
    steps = np.arange(1, found.steps + 1)
    return Scores(steps.tolist(), [(fit_exponential(found).at(steps) / float(found.mean[-1])).tolist()])


def _influence_panel(curves: Mapping[str, Influence | None], title: str) -> Panel:
    found = {name: influence for name, influence in curves.items() if influence is not None}
    return Panel(
        {name: _relative(influence) for name, influence in found.items()}, "influence $q_t$ over the last", title,
        (0.0, ""), markers=True, from_zero=False, fits={name: _fitted(influence) for name, influence in found.items()},
    )  # fmt: skip


def draw_gains(cases: Sequence[Compared], folder: Path) -> list[Path]:
    """``hong-gain``, and the scores of each task."""

    def line(task: str, of: Sequence[Sequence[float]]) -> Scores:
        centres = np.array([np.mean(values) for values in of])
        half = np.array([reach(values) for values in of])
        ends = (centres - half, centres, centres + half)
        return Scores([one.case.size for one in sized(cases, task)], [part.tolist() for part in ends])

    tasks = [task for task in STAND_INS if sized(cases, task)]
    gains = [
        Panel(
            {NAMES[task]: line(task, [one.gain(metric).differences for one in sized(cases, task)]) for task in tasks},
            f"gain in {unit.replace('%', 'points')}", "", (0.0, ""), markers=True, from_zero=False,
            x="number of images N",
        )
        for metric, unit in UNITS.items()
    ]  # fmt: skip
    written = [draw_panels(gains, folder / "hong-gain.png")]
    for task in tasks:
        panels = [
            Panel(
                {
                    name: line(task, [list(one.values(metric, method).values()) for one in sized(cases, task)])
                    for method, name in METHODS.items()
                },
                unit, NAMES[task], markers=True, from_zero=False, x="number of images N",
            )
            for metric, unit in UNITS.items()
        ]  # fmt: skip
        written.append(draw_panels(panels, folder / f"hong-{task}.png"))
    return written
