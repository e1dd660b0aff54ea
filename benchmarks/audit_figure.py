"""Audits of a healthy and of broken builds beside what was certified: a panel an epsilon, a row a build."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decrescendo.errors import InvalidValue
from decrescendo.report.canvas import COLOURS, label, legend, new_figure, save

_SHAPES = ("o", "s", "D", "^", "v", "P", "X")
_COLOURS = (*COLOURS, "black")


@dataclass(frozen=True, slots=True)
class Mark:
    """One audit.

    Args:
        build: what was audited.
        certified: epsilon of its plan.
        audit: how it was attacked.
        lower: the larger of its lower bounds on epsilon.
        plain: the lower bound that supposes nothing but (epsilon, delta)-DP.
        caught_by: tests that contradict the plan.
    """

    build: str
    certified: float
    audit: str
    lower: float
    plain: float
    caught_by: tuple[str, ...]


def draw_audits(marks: Sequence[Mark], *, builds: Sequence[str], path: Path) -> None:
    """Filled marks contradict the certified value, hollow ones do not; "noise" is a test without epsilon.

    Args:
        marks: at least one.
        builds: rows, from the top.
        path: the PNG file to write.

    Raises:
        InvalidValue: no mark.
        MissingExtra: matplotlib is not installed.
    """
    if not marks:
        raise InvalidValue("marks must hold at least one audit, got none")
    epsilons = sorted({mark.certified for mark in marks})
    audits = list(dict.fromkeys(mark.audit for mark in marks))
    figure, panels = new_figure(columns=len(epsilons), width=3.0 + 2.9 * len(epsilons), height=0.75 * len(builds))
    for panel, epsilon in zip(panels, epsilons, strict=True):
        limit = 3.2 * epsilon
        panel.axvspan(epsilon, limit, color="0.93", linewidth=0)
        panel.axvline(epsilon, color="0.3", linewidth=1.2)
        for row, build in enumerate(builds):
            here = [mark for mark in marks if mark.certified == epsilon and mark.build == build]
            for mark in here:
                at = audits.index(mark.audit)
                height = -row + 0.28 - 0.56 * at / max(1, len(audits) - 1)
                shown = min(mark.lower, 0.97 * limit)
                colour = _COLOURS[at % len(_COLOURS)]
                panel.plot([min(mark.plain, shown), shown], [height, height], color=colour, linewidth=1)
                panel.plot(
                    shown, height, marker=">" if mark.lower > shown else _SHAPES[at % len(_SHAPES)],
                    markersize=6, color=colour, markerfacecolor=colour if mark.caught_by else "white", linestyle="",
                )  # fmt: skip
                if mark.caught_by == ("noise",):
                    panel.annotate(
                        "noise test", (shown, height), xytext=(6, -3), textcoords="offset points", fontsize=7,
                        color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                    )  # fmt: skip
        panel.set_xlim(-0.03 * limit, limit)
        panel.set_ylim(-len(builds) + 0.5, 0.5)
        panel.set_yticks([-row for row in range(len(builds))])
        panel.set_yticklabels(builds if panel is panels[0] else [])
        label(panel, f"certified $\\varepsilon$ = {epsilon:g}", "", "lower bound on $\\varepsilon$")
    # Of everything once, in the first panel, for the legend only.
    for at, audit in enumerate(audits):
        panels[0].plot(
            [],
            [],
            marker=_SHAPES[at % len(_SHAPES)],
            color=_COLOURS[at % len(_COLOURS)],
            linestyle="-",
            label=audit,
        )
    legend(figure, panels[0], columns=len(audits))
    save(figure, path)
