"""Du Eq. (1) and its inverses against 60-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from decrescendo.accounting import Gaussian, delta_of, epsilon_of, mu_of
from decrescendo.accounting.gaussian import log_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import AccountingError


def exact_log_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


@given(st.floats(-12, 1.3), st.floats(0, 12), st.booleans())
def test_log_delta_is_exact_where_the_printed_form_cancels(log_mu: float, deviations: float, shifted: bool) -> None:
    mu = 10**log_mu
    epsilon = deviations * mu + (mu**2 / 2 if shifted else 0.0)
    error = float(mpmath.mpf(float(log_delta(epsilon, mu))) - exact_log_delta(epsilon, mu))
    assert abs(error) < 2e-13


def test_the_printed_form_fails_where_ours_does_not() -> None:
    # mu = 1e-12, epsilon = 3e-11: thirty deviations out the printed difference has lost every digit.
    mu, epsilon = 1e-12, 3e-11
    printed = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
    exact = float(mpmath.exp(exact_log_delta(epsilon, mu)))
    assert abs(printed / exact - 1) > 0.05
    assert delta_of(epsilon, mu) == pytest.approx(exact, rel=1e-12)


@given(st.floats(-3, 1), st.floats(-15, -0.5))
def test_inverses_invert(log_mu: float, log_delta_10: float) -> None:
    mu, delta = 10**log_mu, 10**log_delta_10
    epsilon = epsilon_of(delta, mu)
    if epsilon > 0:
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-9)
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-9)
    else:
        assert delta >= math.erf(mu / math.sqrt(8)) * (1 - 1e-12)


def test_the_figures_of_the_paper_s_setting() -> None:
    # T = 4,800, p = 250/60,000, delta = 1/600,000.
    assert [round(mu_of(e, 1 / 600_000), 5) for e in (0.4, 0.6, 1.2)] == [0.10363, 0.15117, 0.28729]


@pytest.mark.parametrize("mu", [1e9, 1e50, 1e200])
def test_absurd_mu_overflows_nothing(mu: float) -> None:
    assert epsilon_of(1e-5, mu) == pytest.approx(mu * (mu / 2), rel=1e-6)


def test_composition_adds_squares() -> None:
    ledger = Ledger.of([3.0, 4.0], sample_rate=1.0)
    assert Gaussian().mu(ledger) == pytest.approx(math.hypot(1 / 3, 1 / 4), rel=1e-15)
    assert Gaussian().epsilon(ledger, 1e-5).value == pytest.approx(epsilon_of(1e-5, math.hypot(1 / 3, 1 / 4)))


def test_sampled_releases_are_refused_by_name() -> None:
    ledger = Ledger.of([3.0], sample_rate=1.0) + Ledger.of([4.0], sample_rate=0.5)
    with pytest.raises(AccountingError, match=r"release 2 of 2 with sample_rate=0.5"):
        Gaussian().epsilon(ledger, 1e-5)


def test_shapes_broadcast() -> None:
    assert log_delta(np.ones((3, 1)), np.ones(2)).shape == (3, 2)


@given(log_mu=st.floats(-12, 1.5), log_epsilon=st.floats(-12, 3))
def test_one_value_has_the_bits_that_it_has_among_others(log_mu: float, log_epsilon: float) -> None:
    """One value is worked out in another way, at all of its points at once."""
    epsilon, mu = 10**log_epsilon, 10**log_mu
    alone, among = log_delta(epsilon, mu), log_delta(np.array([epsilon, epsilon]), np.array([mu, mu]))
    assert alone.shape == ()
    assert alone.tobytes() == among[1:].tobytes()


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 1e6])
def test_without_noise_delta_is_one(epsilon: float) -> None:
    assert delta_of(epsilon, math.inf) == 1.0
    assert epsilon_of(1e-5, math.inf) == math.inf
