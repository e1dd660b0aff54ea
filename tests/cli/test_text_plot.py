"""Facts: a text plot shows every value at its height, ends included."""

import numpy as np
import pytest

from decrescendo.errors import InvalidValue
from decrescendo.report.text_plot import text_plot


def heights(lines: list[str]) -> list[int]:
    """Of the bars, in eighths of a row, read back from the text."""
    rows = [line.split("┤")[1] for line in lines if "┤" in line]
    width = max(map(len, rows))
    return [sum(" ▁▂▃▄▅▆▇█".index(row.ljust(width)[i]) for row in rows) for i in range(width)]


@pytest.mark.parametrize("ratio", [2.0, 1000.0])
def test_heights_are_the_values_on_the_scale_that_is_said(ratio: float) -> None:
    values = np.geomspace(1.0, ratio, 48)
    lines = text_plot(values, title="z")
    logarithmic = ratio > 5
    assert lines[0] == ("z (logarithmic scale)" if logarithmic else "z")
    share = np.linspace(0, 1, 48) if logarithmic else (values - 1) / (ratio - 1)
    assert np.abs(heights(lines) - share * 48).max() <= 1
    assert lines[1].startswith(f"{ratio:.4g} ┤")
    assert lines[-2].lstrip().startswith("1 ┤")


def test_many_steps_share_columns_and_the_ends_stay() -> None:
    values = np.r_[9.0, np.full(4998, 3.0), 1.0]
    found = heights(text_plot(values, title="z", width=30))
    assert len(found) == 30
    assert found[0] == 48
    assert found[-1] == 1


def test_even_values_and_one_step_are_a_flat_line() -> None:
    assert heights(text_plot([2.0] * 7, title="z")) == [1] * 7
    assert heights(text_plot([2.0], title="z")) == [1]


@pytest.mark.parametrize("values", [[0.0, 1.0], [float("inf")]])
def test_what_cannot_be_drawn_is_refused(values: list[float]) -> None:
    with pytest.raises(InvalidValue):
        text_plot(values, title="z")
