"""Facts: weights from a learning rate are the influences they generalise, and what is out of range is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decrescendo.errors import InvalidValue
from decrescendo.plans.noise_influence import noise_influence

RATES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12).map(np.array)


@settings(deadline=None)
@given(RATES, st.floats(0, 0.9), st.floats(0, 0.99))
def test_they_are_the_double_sum(eta: np.ndarray, share: float, beta: float) -> None:
    top = eta.max()
    c = 1 - 2 * share / top * eta * (1 - eta / top / 2)
    t = np.arange(1, eta.size + 1)
    a = [(eta[i] * (1 - beta) / (1 - beta ** (i + 1))) ** 2 * math.prod(c[i + 1 :].tolist()) for i in range(eta.size)]
    slow = np.array([sum(a[j - 1] * beta ** (2 * (j - i)) for j in t if j >= i) for i in t])
    assert noise_influence(eta, curvature=share / top, momentum=beta) == pytest.approx(slow / slow.max(), rel=1e-9)


def test_rates_alone_count_squared_and_only_by_ratio() -> None:
    assert noise_influence([3.0, 1.5]) == pytest.approx([1, 0.25])
    assert noise_influence([3e-9, 1.5e-9]) == pytest.approx([1, 0.25])


def test_what_is_forgotten_beyond_floats_still_counts_a_little() -> None:
    q = noise_influence(np.full(5000, 1.0), curvature=0.5)
    assert q[0] > 0
    assert np.all(np.diff(q) >= 0)


@pytest.mark.parametrize(
    ("rates", "curvature", "momentum", "words"),
    [
        ([], 0.0, 0.0, "at least one step"),
        ([1.0, 0.0], 0.0, 0.0, r"learning_rate\[1\]=0"),
        ([1.0], -0.1, 0.0, "curvature must be >= 0"),
        ([2.0], 0.5, 0.0, "must be below 1"),
        ([1.0], 0.0, 1.0, "momentum must be"),
    ],
)
def test_what_has_no_weights_is_refused(rates: list[float], curvature: float, momentum: float, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        noise_influence(rates, curvature=curvature, momentum=momentum)
