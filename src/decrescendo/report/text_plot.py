"""A curve as a few lines of text, for terminals."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from decrescendo.errors import check_array, check_integer

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_STEEP = 5.0


def text_plot(
    values: Sequence[float] | Float[np.ndarray, " steps"], *, title: str, width: int = 60, height: int = 6
) -> list[str]:
    """A bar chart of positive values over the steps, from the smallest to the largest.

    Args:
        values: > 0, one a step; at least one. Where steps share a column it shows their geometric mean.
        title: what is drawn.
        width, height: in characters, >= 1, without the labels.

    Returns:
        Lines of text with Unicode blocks. Ratios above 5 are drawn on a logarithmic scale, and the title says so.

    >>> print("\\n".join(text_plot([1.0, 1.5, 2.0, 1.0], title="noise", height=2)))
    noise
    2 ┤  █
    1 ┤▁██▁
      step 1 to 4
    """
    y = check_array("values", values, above=0)
    columns, rows = check_integer("width", width, at_least=1), check_integer("height", height, at_least=1)
    parts = np.array_split(np.log(y), min(columns, y.size))
    logs = np.array([part.mean() for part in parts])
    logs[0], logs[-1] = np.log(y[0]), np.log(y[-1])  # the ends as they are
    steep = np.ptp(logs) > np.log(_STEEP)
    shown = logs if steep else np.exp(logs)
    low, high = float(shown.min()), float(shown.max())
    share = (shown - low) / (high - low) if high > low else np.zeros(shown.size)
    eighths = np.maximum(np.rint(share * 8 * rows).astype(int), 1)
    top, bottom = (f"{np.exp(end) if steep else end:.4g}" for end in (high, low))
    pad = max(len(top), len(bottom))
    lines = [f"{title} (logarithmic scale)" if steep else title]
    for row in range(rows - 1, -1, -1):
        name = top if row == rows - 1 else bottom if row == 0 else ""
        bars = "".join(_EIGHTHS[int(level)] for level in np.clip(eighths - 8 * row, 0, 8))
        lines.append(f"{name:>{pad}} ┤{bars}".rstrip())
    return [*lines, f"{'':>{pad}} step 1 to {y.size}"]
