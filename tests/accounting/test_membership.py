"""What (epsilon, delta) says of membership tests, against tests that exist and a slow search over all others."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from decrescendo.accounting.gaussian import epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.membership import membership, most_advantage, most_power

epsilons, deltas = st.floats(0, 8), st.floats(0, 0.3)


def randomised_response(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The mechanism that attains every bound: it tells all with probability delta, else answers at random."""
    yes = math.exp(epsilon) / (1 + math.exp(epsilon))
    inside = [delta, (1 - delta) * yes, (1 - delta) * (1 - yes), 0.0]
    return inside, inside[::-1]


@given(epsilons, deltas, st.floats(0, 1))
def test_the_bound_is_what_the_best_test_of_the_worst_mechanism_reaches(
    epsilon: float, delta: float, alarms: float
) -> None:
    inside, outside = randomised_response(epsilon, delta)
    # Neyman and Pearson: outputs in the order of their likelihood ratios, the last one by a coin.
    power, left = 0.0, alarms
    for member, other in zip(inside, outside, strict=True):
        share = 1.0 if other <= left or not other else left / other
        power, left = power + share * member, max(0.0, left - share * other)
    assert most_power(epsilon, delta, alarms) == pytest.approx(min(1.0, power), abs=1e-12)


@given(epsilons, deltas)
def test_the_advantage_is_the_largest_gap_over_all_false_alarms(epsilon: float, delta: float) -> None:
    inside, outside = randomised_response(epsilon, delta)
    total_variation = 0.5 * sum(abs(a - b) for a, b in zip(inside, outside, strict=True))
    assert most_advantage(epsilon, delta) == pytest.approx(total_variation, abs=1e-12)
    grid = [most_power(epsilon, delta, alarms) - alarms for alarms in np.linspace(0, 1, 201)]
    assert max(grid) <= most_advantage(epsilon, delta) + 1e-12


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_gaussian_mechanism_is_never_told_apart_better(mu: float) -> None:
    for delta in (1e-6, 1e-2):
        epsilon = epsilon_of(delta, mu)
        for alarms in (1e-3, 1e-2, 0.1, 0.5):
            assert norm.cdf(norm.ppf(alarms) + mu) <= most_power(epsilon, delta, alarms)
        assert 2 * norm.cdf(mu / 2) - 1 <= most_advantage(epsilon, delta)


def test_without_privacy_everything_is_told_apart() -> None:
    assert most_power(math.inf, 0.0, 1e-3) == 1.0
    assert most_power(800.0, 0.0, 1e-3) == 1.0
    assert most_advantage(800.0, 0.0) == 1.0


@pytest.mark.parametrize("alarm", [0.0, 1e-20, 1e-17, 1e-15, 1e-9])
def test_no_attack_is_worse_than_to_guess_at_any_rate(alarm: float) -> None:
    """1 less a number near 1 rounded to 0."""
    assert most_power(0.0, 0.0, alarm) == alarm
    assert most_power(0.0, 1e-17, alarm) == pytest.approx(alarm + 1e-17, rel=1e-12)
    assert membership(Ledger.of([1000.0], 1e-7), None, [alarm]).power[0] >= alarm
