"""Renyi divergences at fractional orders: against integrals of 40 digits, an independent library, and as properties."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from decrescendo.accounting import Ledger, Pld, Rdp, Release, Selection, Trials
from decrescendo.accounting.renyi_orders import log_moment, whole_moment


def exact(rate: float, noise: float, order: float) -> mp.mpf:
    """log E[(1 - q + q l)^alpha], by quadrature of its excess over 1."""
    with mp.workdps(40):
        mu, q, a = 1 / mp.mpf(noise), mp.mpf(rate), mp.mpf(order)

        def density(t: mp.mpf) -> mp.mpf:
            w = q * mp.expm1(mu * t - mu**2 / 2)
            return ((1 + w) ** a - 1 - a * w) * mp.npdf(t)

        inner = sorted({0.0, float(mu), float(2 * mu), *np.linspace(0.5, float(a * mu) + 14, 12).tolist()})
        return mp.log(1 + mp.quad(density, [-14, -6, -3, *inner]))


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [
        (0.5, 0.5, 1.1),
        (0.5, 0.5, 4.5),
        (1e-6, 1.0, 1.1),
        (1e-4, 10.0, 2.5),
        (0.999999, 0.3, 1.5),
        (0.01, 0.1, 2.75),
        (0.3, 100.0, 1.25),
    ],
)
def test_a_moment_is_the_integral_and_not_below_it(rate: float, noise: float, order: float) -> None:
    found, truth = log_moment(rate, noise, order), exact(rate, noise, order)
    assert truth <= found <= truth * (1 + 1e-9)


def test_at_orders_near_1_and_hardly_any_noise_it_is_the_integral_too() -> None:
    """The power was taken for g there, of which alpha w was a twentieth part."""
    rate, noise, order = 0.99609375, 0.0546875, 1.015625
    found, truth = log_moment(rate, noise, order), exact(rate, noise, order)
    assert truth <= found <= truth * (1 + 1e-9)


def test_where_the_librarys_series_does_not_converge_small_orders_still_count() -> None:
    """It was 220: orders 1.1 to 1.5 were left out."""
    run = Ledger.of([0.5] * 100, 0.5)
    found = Rdp().epsilon(run, 1e-5).value
    assert Pld().bracket(run, 1e-5)[0] < found < 146
    assert Rdp().delta(run, found).value == pytest.approx(1e-5, rel=1e-6)
    assert Selection(Trials(mean=2, shape=1)).epsilon(run, 1e-5).value < 220


@pytest.mark.parametrize("order", [1.5, 2.5, 4.5])
def test_where_the_librarys_series_converges_it_is_a_little_above(order: float) -> None:
    """It adds the terms of an alternating series without their signs."""
    accountant = RdpAccountant([order])
    accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)))
    found, library = log_moment(0.01, 1.1, order) / (order - 1), float(accountant.rdp[0])
    assert found <= library <= found * 1.04


@given(
    rate=st.floats(1e-7, 0.999),
    noise=st.floats(0.05, 200.0),
    order=st.floats(1.01, 6.0),
    more=st.floats(1.0, 3.0),
)
def test_a_moment_is_positive_and_falls_with_noise_and_rises_with_rate_and_order(
    rate: float, noise: float, order: float, more: float
) -> None:
    slack = 1 + 1e-9
    found = log_moment(rate, noise, order)
    assert 0 < found <= order * (order - 1) / (2 * noise**2) * slack  # that of a step without sampling
    assert log_moment(rate, noise * more, order) <= found * slack
    assert log_moment(rate / more, noise, order) <= found * slack
    assert found / (order - 1) <= log_moment(rate, noise, order * more) / (order * more - 1) * slack


def test_hardly_any_noise_is_a_bound_too() -> None:
    assert log_moment(0.5, 1e-3, 1.1) >= 1.1 * math.log(0.5) + 1.1 * 0.1 * 1e6 / 2
    assert math.isfinite(log_moment(0.5, 1e-9, 1.5))


def test_drawn_releases_have_the_moment() -> None:
    """A Monte-Carlo mean; a rate that is 15 % off would be seen."""
    rate, noise, order = 0.3, 1.5, 1.75
    rng = np.random.default_rng(3)
    x = noise * rng.standard_normal(400_000)
    ratio = 1 - rate + rate * norm.pdf(x, 1, noise) / norm.pdf(x, 0, noise)
    moments = ratio**order - 1 - order * (ratio - 1)
    mean, deviation = moments.mean(), moments.std() / math.sqrt(x.size)
    assert abs(mean - math.expm1(log_moment(rate, noise, order))) < 5 * deviation
    assert abs(mean - math.expm1(log_moment(1.15 * rate, noise, order))) > 5 * deviation


def test_whole_orders_are_positive_where_a_step_costs_next_to_nothing() -> None:
    """dp-accounting's came out negative, and delta(0) of a run that costs 4e-8 was 0."""
    run = Ledger([Release(1e-7, 1e4, 10**8)])
    low, high = Pld().delta_bracket(run, 0.0)
    assert low <= high <= Rdp().delta(run, 0.0).value < 1e-3
    assert Pld().bracket(run, 1e-8)[0] <= Rdp().epsilon(run, 1e-8).value


@pytest.mark.parametrize(
    ("rate", "noise", "order"), [(1e-7, 1e4, 2), (1e-7, 1e4, 64), (1e-5, 300.0, 12), (0.3, 2.0, 5)]
)
def test_a_whole_moment_is_its_sum(rate: float, noise: float, order: int) -> None:
    with mp.workdps(60):
        q, z = mp.mpf(rate), mp.mpf(noise)
        terms = (
            mp.binomial(order, k) * (1 - q) ** (order - k) * q**k * mp.expm1(k * (k - 1) / (2 * z**2))
            for k in range(2, order + 1)
        )
        truth = mp.log1p(mp.fsum(terms))
    assert whole_moment(rate, noise, order) == pytest.approx(float(truth), rel=1e-10)
