"""Times plain training as a picture: one line a workload, one mark a contender, logarithmic."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine.contenders import CONTENDERS
from decrescendo.base.extras import require
from decrescendo.report.canvas import COLOURS, DPI, save

# Ours first and largest; the palette has six colours, so the seventh is black. In little memory ours keeps its colour.
_MARKS = ("D", "o", "s", "^", "v", "P", "X")
_SHOWN = ("decrescendo", "opacus-hooks", "opacus-ghost", "opacus-ew", "vmap", "opake", "jax-privacy")
_LOW = "decrescendo-low"
_TICKS = (0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200)


def draw(reports: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Write the picture.

    Args:
        reports: results of one device by workload, in the order of the rows.
        path: the PNG file to write.
    """
    figure = require("matplotlib.figure").Figure(
        figsize=(8.6, 1.9 + 0.42 * len(reports)), layout="constrained", dpi=DPI
    )
    panel = figure.subplots()
    places = range(len(reports) - 1, -1, -1)
    for i, name in enumerate((*_SHOWN, _LOW)):
        points = [
            (report["contenders"][name], place)
            for report, place in zip(reports.values(), places, strict=True)
            if "times plain" in report["contenders"].get(name, {})
        ]
        if not points:
            continue
        ours = name in (_SHOWN[0], _LOW)
        colour = (*COLOURS, "#000000", COLOURS[0])[i]
        middle = [entry["times plain"] for entry, _ in points]
        low = [entry["times plain"] - entry["times plain, quartiles"][0] for entry, _ in points]
        high = [entry["times plain, quartiles"][1] - entry["times plain"] for entry, _ in points]
        panel.errorbar(
            middle, [place for _, place in points], xerr=(low, high), label=CONTENDERS[name].title.replace("`", ""),
            linestyle="none", marker=(*_MARKS, "*")[i], markersize=9 if ours else 6, color=colour, elinewidth=1.0,
            alpha=1.0 if ours else 0.85, zorder=3 if ours else 2,
        )  # fmt: skip
    panel.axvline(1.0, color="0.35", linewidth=1.2)
    panel.annotate(
        "plain training", (1.0, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -3),
        textcoords="offset points", va="top", fontsize=8, color="0.35",
    )  # fmt: skip
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_yticks(list(places), [f"{r['title']} ({r['rows']})" for r in reports.values()])
    panel.set_ylim(-0.6, len(reports) - 0.2)
    panel.set_xlabel("time of one private step, times plain training (bars: middle half of the rounds)")
    panel.set_title("What a private step costs (batch size in brackets)", fontsize=10)
    panel.grid(True, color="0.9", linewidth=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)
