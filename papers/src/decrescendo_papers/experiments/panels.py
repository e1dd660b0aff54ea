"""Lines over steps in panels side by side, one legend for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from decrescendo.errors import InvalidValue
from decrescendo.report import Scores
from decrescendo.report.canvas import COLOURS, LINES, label, legend, new_figure, save

DOTS = 40  # a line of more points is a curve


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Args:
        lines: by the name in the legend; the same names in the same order in every panel.
        y: the label of the axis.
        title: above the panel; empty for none.
        level: a horizontal line, with what it is called.
        markers: mark the points that were computed.
        from_zero: the axis starts at zero, so that heights compare.
        x: the label of the horizontal axis.
        each: a thin line a seed, and their median in place of mean and band, which one seed that is lost would fill.
        fits: thin lines beside those of the same name.
        other: a second vertical axis: the values over this number, and its label.
        top: the axis holds at least this; for panels that are to be compared.
        bottom: where the axis begins; what is lower is not shown.
    """

    lines: Mapping[str, Scores]
    y: str
    title: str = ""
    level: tuple[float, str] | None = None
    markers: bool = False
    from_zero: bool = True
    top: float | None = None
    bottom: float | None = None
    x: str = "step"
    each: bool = False
    fits: Mapping[str, Scores] = field(default_factory=dict[str, Scores])
    other: tuple[float, str] | None = None


def draw_panels(panels: Sequence[Panel], path: Path) -> Path:
    """A line is the mean of a `Scores`, its band from the lowest to the highest, or see
    `Panel.each`.

    Args:
        panels: at least one.
        path: the PNG file to write.

    Raises:
        InvalidValue: no panel.
        MissingExtra: matplotlib is not installed.
    """
    if not panels:
        raise InvalidValue("panels must hold at least one panel, got none")
    figure, axes = new_figure(columns=len(panels), width=2.2 + 3.9 * len(panels), height=4.0)
    figure.get_layout_engine().set(wspace=0.05)
    for panel, axis in zip(panels, axes, strict=True):
        for i, (name, scores) in enumerate(panel.lines.items()):
            colour, (low, high) = COLOURS[i % len(COLOURS)], scores.spread
            middle = np.median(scores.values, axis=0) if panel.each else scores.mean
            axis.plot(
                scores.steps, middle, color=colour, linestyle=LINES[i % len(LINES)], label=name,
                marker="o" if panel.markers and len(scores.steps) <= DOTS else None, markersize=2.5,
            )  # fmt: skip
            if panel.each:
                axis.plot(scores.steps, np.transpose(scores.values), color=colour, linewidth=0.6, alpha=0.5)
            else:
                axis.fill_between(scores.steps, low, high, color=colour, alpha=0.18, linewidth=0)
            if name in panel.fits:
                fit = panel.fits[name]
                axis.plot(fit.steps, fit.mean, color=colour, linewidth=0.8, alpha=0.9)
        if panel.level is not None:
            height, words = panel.level
            axis.axhline(height, color="0.45", linewidth=0.9)
            axis.annotate(
                words, (0.02, height), xycoords=("axes fraction", "data"), xytext=(0, 3),
                textcoords="offset points", color="0.35", fontsize=8,
            )  # fmt: skip
        label(axis, panel.title, panel.y, panel.x)
        if panel.other is not None:
            unit, words = panel.other
            axis.secondary_yaxis(
                "right", functions=(partial(np.multiply, 1 / unit), partial(np.multiply, unit))
            ).set_ylabel(words)
        axis.set_xlim(left=0)
        if panel.bottom is not None:
            axis.set_ylim(bottom=panel.bottom)
        if panel.from_zero:
            heights = [float(np.max(scores.spread[1])) for scores in panel.lines.values()]
            heights += [panel.level[0]] if panel.level is not None else []
            axis.set_ylim(0, max(*heights, panel.top or 0.0) * 1.12)
    legend(figure, axes[0], columns=4)
    return save(figure, path)
