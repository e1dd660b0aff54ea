"""Facts: no test of membership has fewer errors than the trade-off curve says, and the curve is nearly reached."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from decrescendo.accounting import Ledger, Pld, Release, trade_off
from decrescendo.errors import InvalidValue

ALARMS = np.concatenate([[0.0], np.logspace(-4, 0, 40)])


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 6.0])
def test_one_gaussian_release_has_the_closed_form(mu: float) -> None:
    """f(a) = Phi(Phi^-1(1 - a) - mu), Dong et al. Eq. (4): never above it, and not far below."""
    found, exact = trade_off(Ledger.of([1 / mu], 1.0), ALARMS), norm.cdf(norm.isf(ALARMS) - mu)
    assert (found <= exact + 1e-12).all()
    assert (exact - found).max() < 0.03


@pytest.mark.slow
@settings(max_examples=2)
@given(
    st.lists(st.tuples(st.floats(0.3, 20), st.floats(0.001, 1)), min_size=0, max_size=2),
)
def test_it_is_the_curve_of_a_test(releases: list[tuple[float, float]]) -> None:
    ledger = Ledger(Release(rate, noise) for noise, rate in releases)
    found = trade_off(ledger, ALARMS)
    assert (found >= 0).all()
    assert (found <= 1 - ALARMS + 1e-12).all()
    assert (np.diff(found) <= 1e-12).all()
    slopes = np.diff(found) / np.diff(ALARMS)
    assert (np.diff(slopes) >= -1e-6 * np.abs(slopes[1:])).all()
    weaker = trade_off(ledger + Ledger([Release(0.1, 1.0)]), ALARMS)
    assert (weaker <= found + 0.02).all()  # another release never helps to hide, up to the lines that were left out


def test_the_edges() -> None:
    assert trade_off(Ledger(), ALARMS) == pytest.approx(1 - ALARMS)
    assert trade_off(Ledger.of([0.0], 1.0), [0.0, 0.5]).tolist() == [0.0, 0.0]
    assert trade_off(Ledger.of([0.0], 0.1), [0.0]) == pytest.approx([0.9])
    assert trade_off(Ledger.of([2.0], 0.1), []).size == 0
    for wrong in ([-0.1], [1.1], [float("nan")]):
        with pytest.raises(InvalidValue, match="false_positive_rates"):
            trade_off(Ledger.of([2.0], 0.1), wrong)


def test_an_epsilon_whose_power_is_no_number_leaves_nothing() -> None:
    """It ended in an error without a word, for 300,000 steps as for one with hardly any noise."""
    left = trade_off(Ledger.of([1e-3], sample_rate=0.1), [0.0, 1e-3, 0.5, 1.0])
    # Whoever is drawn is seen, so that the others are missed: 0.9 (1 - a), of which the lines of 1 - 0.1 - a are left.
    assert left[0] > 0.9
    np.testing.assert_allclose(left[1:], [0.899, 0.4, 0.0], atol=1e-3)


@pytest.mark.slow
def test_the_best_attacker_stays_above_it_and_comes_close() -> None:
    """40 sampled releases, 100,000 trials of the likelihood ratio: if the noise were 10 % less, it would go below."""
    rate, noise, steps, trials = 0.2, 2.0, 40, 100_000
    generator = np.random.default_rng(0)

    def errors(true_noise: float) -> tuple[float, float]:
        def ratio(member: bool) -> np.ndarray:
            total = np.zeros(trials)
            for _ in range(steps):
                taken = (generator.random(trials) < rate) & member
                seen = taken + true_noise * generator.standard_normal(trials)
                total += np.log1p(rate * np.expm1((2 * seen - 1) / (2 * noise**2)))
            return total

        threshold = 0.5
        return float((ratio(False) > threshold).mean()), float((ratio(True) <= threshold).mean())

    margin = 5 * 0.5 / np.sqrt(trials)
    false_positive, missed = errors(noise)
    least = float(trade_off(Ledger.of([noise] * steps, rate), [false_positive])[0])
    assert least - margin <= missed <= least + 0.02
    false_positive, missed = errors(0.9 * noise)
    assert missed < float(trade_off(Ledger.of([noise] * steps, rate), [false_positive])[0]) - margin


@pytest.mark.slow
def test_every_line_is_an_epsilon_and_its_delta() -> None:
    """(epsilon, delta)-DP at one point is a weaker statement than the curve."""
    ledger = Ledger.of(np.linspace(1.4, 1.1, 200), 0.01)
    delta = Pld().delta(ledger, 0.5).value
    one_point = np.maximum(1 - delta - np.exp(0.5) * ALARMS, np.exp(-0.5) * (1 - delta - ALARMS))
    assert (trade_off(ledger, ALARMS) >= one_point - 0.01).all()
