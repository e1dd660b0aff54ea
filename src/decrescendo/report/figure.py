"""Figures: the schedules of plans, and accuracy over steps. PNG files, drawn without any global state."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.errors import InvalidValue
from decrescendo.plans.plan import Plan
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.workload import Workload, as_workload
from decrescendo.report.canvas import COLOURS, LINES, label, legend, new_figure, save

WIDE = 10.0  # noise that moves by more than this is drawn on a logarithmic axis


@dataclass(frozen=True, slots=True)
class Scores:
    """A score over steps for one method.

    Args:
        steps: where it was measured, ascending.
        values: one row a seed, one column a step.

    >>> Scores([10, 20], [[0.5, 0.7], [0.6, 0.8]]).mean
    array([0.55, 0.75])
    """

    steps: Sequence[int]
    values: Sequence[Sequence[float]]

    @property
    def mean(self) -> Float[np.ndarray, " steps"]:
        """Over the seeds."""
        return np.mean(np.asarray(self.values, dtype=np.float64), axis=0)

    @property
    def spread(self) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
        """Lowest and highest over the seeds."""
        values = np.asarray(self.values, dtype=np.float64)
        return values.min(axis=0), values.max(axis=0)


def is_wide(low: float, high: float) -> bool:
    """Whether noise from ``low`` to ``high`` has a logarithmic axis.

    >>> is_wide(1.0, 10.0), is_wide(1.0, 10.1)
    (False, True)
    """
    return bool(low * WIDE < high)


def draw_schedules(
    plans: Mapping[str, Plan],
    path: str | os.PathLike[str],
    *,
    checkpoints: int = 25,
    workload: Workload | CurveOrValues | None = None,
) -> None:
    """Panels over the steps: clip norm C_t, noise multiplier z_t, the noise on the clipped sum (z_t C_t where it is
    independent), the certified epsilon spent so far, the expected batch size B_t where one moves, and, where noise is
    correlated, the noise that is still in the iterate. Noise that moves by more than `WIDE` has a
    logarithmic axis; other axes begin at zero, so that heights compare.

    Args:
        plans: by the name shown in the legend; at least one.
        path: the PNG file to write.
        checkpoints: how many values of epsilon are computed for each plan.
        workload: what a training makes of the noise, as of `calibrate`; by default a constant rate.

    Raises:
        InvalidValue: no plan.
        MissingExtra: matplotlib is not installed.
    """
    if not plans:
        raise InvalidValue("plans must hold at least one plan, got none")
    moving = any(np.ptp(plan.batch_size) > 0 for plan in plans.values())
    iterates = any(plan.bands > 1 for plan in plans.values())
    more = moving + iterates
    figure, panels = new_figure(columns=4 + more, width=15.3 + 3.8 * more, height=3.9)
    clips, noises, sums, spents = panels[:4]
    budgets = {(plan.budget.epsilon, plan.budget.delta) for plan in plans.values()}
    for i, (name, plan) in enumerate(plans.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i % len(LINES)], "label": name}
        steps = np.arange(1, plan.steps + 1)
        clips.plot(steps, plan.schedule.clip_norm, **style)
        noises.plot(steps, plan.schedule.noise_multiplier, **style)
        sums.plot(steps, plan.noise_std, **style)
        if iterates:
            own = plan.correlation or plan.noise_multiplier
            panels[-1].plot(steps, as_workload(workload).noise_std(own, plan.clip_norm / plan.batch_size), **style)
        if moving:
            panels[4].plot(steps, plan.batch_size, **style)
        spent = EpsilonCurve(
            plan.ledger, plan.budget.delta, checkpoints=checkpoints, group=plan.budget.examples_per_person
        )
        spents.plot(np.r_[0, spent.steps], np.r_[0.0, spent.curve()], marker="o", markersize=2.5, **style)
    for epsilon, _ in sorted(budgets):
        spents.axhline(epsilon, color="0.45", linewidth=0.9)
        spents.annotate(
            f"budget {epsilon:g}", (0.02, epsilon), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", color="0.35", fontsize=8,
        )  # fmt: skip
    _label_schedules(panels, budgets, moving=moving, iterates=iterates)
    for panel in panels:
        panel.set_xlim(left=0)
        if panel in (noises, sums) and is_wide(panel.dataLim.y0, panel.dataLim.y1):
            panel.set_yscale("log")
        else:
            panel.set_ylim(0, panel.dataLim.y1 * 1.12)  # room for the topmost line
    figure.get_layout_engine().set(wspace=0.05)
    legend(figure, panels[0], columns=4)
    save(figure, Path(path))


def _label_schedules(panels: Sequence[Any], budgets: set[tuple[float, float]], *, moving: bool, iterates: bool) -> None:
    clips, noises, sums, spents = panels[:4]
    deltas = ", ".join(f"{delta:.3g}" for _, delta in sorted(budgets))
    label(clips, "How hard each gradient is clipped", "clip norm $C_t$ (gradient norm)")
    name = "1 / column norm" if iterates else "std / $C_t$"
    label(noises, "How much noise, relative to the clip", f"noise multiplier $z_t$ = {name}")
    std = "noise std (gradient norm)" if iterates else "noise std $z_t C_t$ (gradient norm)"
    label(sums, "How much noise on the sum", std)
    if iterates:
        label(panels[-1], "How much noise is still in the iterate", "noise std (largest rate x gradient norm)")
    label(
        spents,
        "What has been spent (computed at the dots)",
        f"certified $\\varepsilon$ spent, $\\delta$ = {deltas}",
    )
    if moving:
        label(panels[4], "How many examples are expected in a batch", "expected batch size $B_t$")


def draw_scores(
    scores: Mapping[str, Scores],
    path: str | os.PathLike[str],
    *,
    title: str,
    compared: Sequence[str] = (),
    score: str = "",
) -> None:
    """One line a method, the mean over seeds; the band is from the lowest to the highest seed.

    Lines that lie on each other are told apart by a second panel: the difference of some methods to another one, seed
    by seed, its mean and a band of two standard errors to both sides.

    Args:
        scores: by the name shown in the legend; at least one.
        path: the PNG file to write.
        title: what was measured, on what data.
        compared: the method that others are compared with, and those, with the same steps and seeds; empty: one panel.
        score: what is drawn, in its own unit; empty: a test accuracy, in percent.

    Raises:
        InvalidValue: no scores, or none of a name in ``compared``.
        MissingExtra: matplotlib is not installed.
    """
    if not scores:
        raise InvalidValue("scores must hold at least one method, got none")
    for name in compared:
        if name not in scores:
            raise InvalidValue(f"compared must hold names among {', '.join(scores)}, got {name!r}")
    figure, panels = new_figure(columns=2 if compared else 1, width=12.0 if compared else 7.0, height=4.4)
    panel, unit = panels[0], 1.0 if score else 100.0
    seeds = max(len(one.values) for one in scores.values())
    for i, (name, one) in enumerate(scores.items()):
        colour = COLOURS[i % len(COLOURS)]
        low, high = one.spread
        panel.plot(one.steps, unit * one.mean, color=colour, linestyle=LINES[i % len(LINES)], label=name)
        if len(one.values) > 1:
            panel.fill_between(one.steps, unit * low, unit * high, color=colour, alpha=0.18, linewidth=0)
    band = f"mean of {seeds} seeds, band from lowest to highest" if seeds > 1 else "one seed"
    label(panel, f"{title}\n({band})", score or "test accuracy (%)")
    panel.set_xlim(left=0)
    if not score:
        panel.set_ylim(top=min(100.0, panel.get_ylim()[1]))
    if compared:
        _draw_differences(scores, compared, panels[1], unit)
    legend(figure, panel, columns=2)
    save(figure, Path(path))


def _draw_differences(scores: Mapping[str, Scores], compared: Sequence[str], panel: Any, unit: float) -> None:
    base, seeds = np.asarray(scores[compared[0]].values, dtype=np.float64), len(scores[compared[0]].values)
    for i, (name, score) in enumerate(scores.items()):
        if name not in compared:
            continue
        colour, line = COLOURS[i % len(COLOURS)], LINES[i % len(LINES)]
        differences = unit * (np.asarray(score.values, dtype=np.float64) - base)
        mean = differences.mean(axis=0)
        panel.plot(score.steps, mean, color=colour, linestyle=line)
        if seeds > 1:
            two = 2 * differences.std(axis=0, ddof=1) / np.sqrt(seeds)
            panel.fill_between(score.steps, mean - two, mean + two, color=colour, alpha=0.18, linewidth=0)
    band = f"mean of {seeds} paired seeds, band of two standard errors" if seeds > 1 else "one seed"
    label(panel, f"Against {compared[0]}\n({band})", "difference (points)" if unit != 1 else "difference")
    panel.set_xlim(left=0)
