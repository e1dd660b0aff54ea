"""A grid of numbers as a heat map that shows the numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from decrescendo.base import require
from decrescendo.report.canvas import new_figure, save

# Readable without colour vision, and even in grey: light is high.
COLOUR_MAP = "cividis"


def draw_heat(
    values: Float[np.ndarray, "rows columns"],
    rows: Sequence[float],
    columns: Sequence[float],
    path: Path,
    *,
    row_label: str,
    column_label: str,
    label: str,
) -> Path:
    """The first row is at the bottom, what is not a number stays empty.

    Args:
        values: what is shown.
        rows: coordinate of each row.
        columns: coordinate of each column.
        path: the PNG file to write.
        row_label: of the vertical axis.
        column_label: of the horizontal axis.
        label: of the colours.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, (axis,) = new_figure(columns=1, width=2.6 + 0.75 * len(columns), height=1.4 + 0.6 * len(rows))
    masked = np.ma.masked_invalid(values)
    colours = require("matplotlib").colormaps[COLOUR_MAP].with_extremes(bad="0.93")
    image = axis.imshow(masked, origin="lower", cmap=colours, aspect="auto")
    low, high = (float(masked.min()), float(masked.max())) if masked.count() else (0.0, 1.0)
    for i in range(len(rows)):
        for j in range(len(columns)):
            value = float(values[i, j])
            known = np.isfinite(value)
            dark = known and value < (low + high) / 2
            axis.text(
                j, i, f"{value:.2f}" if known else "-", ha="center", va="center", fontsize=9,
                color="white" if dark else "black",
            )  # fmt: skip
    axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    axis.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    axis.set_xlabel(column_label)
    axis.set_ylabel(row_label)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axis, label=label)
    bar.outline.set_visible(False)
    return save(figure, path)
