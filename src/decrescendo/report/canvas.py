"""What all figures share: palette, axes, legend, and files without date or half-written pictures."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from decrescendo.base.extras import require

# Okabe and Ito's palette: told apart by people with any kind of colour vision, and in grey by the line styles.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
DPI = 150


def new_figure(*, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """An empty figure of this size in inches, and its panels side by side."""
    # Figure objects and not pyplot: pyplot keeps every figure in a global list and picks a screen backend.
    matplotlib_figure = require("matplotlib.figure")
    figure = matplotlib_figure.Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def label(panel: Any, title: str, y: str, x: str = "step") -> None:
    """Words around a panel; no title where ``title`` is empty."""
    if title:
        panel.set_title(title, fontsize=10)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(True, color="0.9", linewidth=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def legend(figure: Any, panel: Any, *, columns: int) -> None:
    """One legend for all panels, below them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)


def save(figure: Any, path: Path) -> Path:
    """Write ``figure`` as PNG, or as SVG by the suffix, and return the path. The same figure gives the same file."""
    svg = path.suffix == ".svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed, so that a crash leaves no half picture. No date in it.
    beside = path.with_name(f".{path.name}.part")
    with require("matplotlib").rc_context({"svg.hashsalt": "decrescendo"}):
        unsaid = ("Date", "Creator") if svg else ("Software",)
        figure.savefig(beside, format="svg" if svg else "png", metadata=dict.fromkeys(unsaid))
    os.replace(beside, path)
    return path
