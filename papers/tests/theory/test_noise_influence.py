"""Facts: the library's weights from a learning rate are the influences of Hong et al. that they generalise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decrescendo.plans import noise_influence
from decrescendo_papers.theory import influence

RATES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12).map(np.array)


@settings(deadline=None)
@given(RATES, st.floats(0.001, 0.95))
def test_with_a_curvature_they_are_those_of_theorem_4_1(eta: np.ndarray, share: float) -> None:
    smoothness = 1 / eta.max()
    expected = influence.step_sizes(eta, pl=share * smoothness, smoothness=smoothness)
    assert noise_influence(eta, curvature=share * smoothness) == pytest.approx(expected / expected.max(), rel=1e-9)


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(0.05, 0.99), st.floats(0, 0.99))
def test_with_momentum_they_are_the_exact_influence_of_u_3(steps: int, gamma: float, beta: float) -> None:
    expected = influence.momentum(steps, gamma=gamma, beta=beta)
    found = noise_influence(np.full(steps, 0.5), curvature=2 * (1 - gamma), momentum=beta)
    assert found == pytest.approx(expected / expected.max(), rel=1e-9)
