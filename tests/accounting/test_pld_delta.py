"""Both ends of `Pld`'s delta are bounds however small it is: against 60 digits, and sums of positive terms."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from often import some
from scipy.stats import norm

from decrescendo.accounting import Gaussian, Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.accountant import _exposed
from decrescendo.accounting.pld.discretisation import LARGEST_MU
from decrescendo.accounting.release import Release


def exact_gaussian(epsilon: mp.mpf, mu: mp.mpf) -> mp.mpf:
    """Du Eq. (1) at the working precision."""
    return mp.ncdf(-epsilon / mu + mu / 2) - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)


def exact_step(epsilon: float, release: Release) -> mp.mpf:
    """delta(epsilon) of one release by its closed form: the larger of two directions, with digits to spare."""
    z, rate = release.noise_multiplier, release.sample_rate
    deviations = abs(epsilon * z - 0.5 / z)
    # Up to 36 deviations, that is 280 digits of delta, and all that cancels in the printed form beyond it.
    assert deviations < 36 or epsilon * z < 0.5 / z or rate < 1
    with mp.workdps(700 + int(2 * abs(math.log10(z)) - 2 * math.log10(rate))):
        e, mu, p = mp.mpf(epsilon), 1 / mp.mpf(z), mp.mpf(rate)
        remove = p * exact_gaussian(mp.log(1 + mp.expm1(e) / p), mu)
        y = (mp.exp(-e) - (1 - p)) / p
        if y <= 0 or e == 0 or p == 1:
            return remove
        return max(remove, mp.exp(e) * p * y * exact_gaussian(-mp.log(y), mu))


def assert_tight(epsilon: float, release: Release, *, within: float | None) -> None:
    """The exact value lies between the ends, which are close together where delta is a usual float."""
    lower, upper = Pld().delta_bracket(Ledger([release]), epsilon)
    exact = exact_step(epsilon, release)
    assert 0 <= lower <= exact <= upper <= 1
    assert upper > 0
    assert Pld().delta(Ledger([release]), epsilon).value == upper
    if within is not None and exact > 1e-290:
        assert upper - lower < within * exact


@pytest.mark.parametrize("z", some([0.05, 0.5, 1.0, 10.0, 1e4, 1e9], 3))
@pytest.mark.parametrize("deviations", [0.0, 0.3, 3.0, 8.0, 15.0, 30.0, 35.5])
@pytest.mark.parametrize("shifted", [False, True])
def test_one_gaussian_release_against_its_closed_form(z: float, deviations: float, shifted: bool) -> None:
    """With `shifted`, that many deviations above the mean loss; the largest of them is a delta of 1e-276."""
    epsilon = deviations / z + (0.5 / z**2 if shifted else 0.0)
    assert_tight(epsilon, Release(1.0, z), within=2e-10)


@pytest.mark.parametrize(("z", "epsilon"), [(10.0, 0.5), (10.0, 0.7), (1.0, 10.0), (1e4, 1e-3), (1e200, 0.0)])
def test_deltas_that_cancelled(z: float, epsilon: float) -> None:
    """1 - (1 - 0)(1 - delta) was below delta, and 0 below 1e-16."""
    exact = Gaussian().delta(Ledger([Release(1.0, z)]), epsilon).value
    lower, upper = Pld().delta_bracket(Ledger([Release(1.0, z)]), epsilon)
    assert lower < exact < upper
    assert upper - lower < 2e-10 * exact


@given(
    log_z=st.floats(-1.5, 6),
    rate=st.one_of(
        st.just(1.0),
        st.floats(-10, 0).map(lambda log_rate: 10.0**log_rate),
        st.floats(-16, -1).map(lambda log_rest: 1 - 10.0**log_rest),
    ),
    deviations=st.floats(-3, 35),
    at=st.sampled_from(["loss", "sampled loss", "end of added"]),
)
@example(log_z=0.0, rate=1.0, deviations=9.5, at="loss")
@example(log_z=0.0, rate=0.5, deviations=1.0, at="end of added")
@example(log_z=-0.5, rate=1 - 2.0**-53, deviations=3.0, at="end of added")
def test_one_release_against_its_closed_form_anywhere(log_z: float, rate: float, deviations: float, at: str) -> None:
    """Near epsilon = -log(1 - p) as well, where adding a record stops to show, at a logarithm of nearly 0."""
    z = 10.0**log_z
    loss = max(0.0, (0.5 / z + deviations) / z)
    epsilon = loss
    if at == "sampled loss" and loss < 600:
        epsilon = math.log1p(rate * math.expm1(loss))
    elif at == "end of added" and rate < 1:
        epsilon = -math.log1p(-rate) * (1 + math.copysign(10.0 ** -abs(deviations / 2), deviations))
    if rate == 1 or epsilon * z - 0.5 / z < 35.5:
        assert_tight(epsilon, Release(rate, z), within=None)


@pytest.mark.parametrize(
    ("rate", "z", "epsilon", "truth"),
    [
        (1.0, 1.0, 60.0, 0.0), (1.0, 1e200, 1.0, 0.0), (0.5, 1e200, 800.0, 0.0), (1e-300, 1.0, 1e-5, 0.0),
        (1.0, 1e-200, 1e300, 1.0), (1.0, 5e-324, 1.0, 1.0), (0.5, 1e-3, 800.0, 0.5), (1e-10, 1e-9, 1e4, 1e-10),
        (0.5, 1e-200, 1e300, 0.5), (1 - 2.0**-53, 2.0, 100.0, 0.0),
    ],
)  # fmt: skip
def test_one_release_at_the_ends_of_the_floats(rate: float, z: float, epsilon: float, truth: float) -> None:
    """Below all floats the upper end is above 0; losses beyond exp's range still expose what is sampled."""
    lower, upper = Pld().delta_bracket(Ledger([Release(rate, z)]), epsilon)
    assert lower <= truth <= upper
    assert upper - lower <= 1e-9 * truth + 1e-300
    assert upper > 0
    low, high = Pld().bracket(Ledger([Release(1.0, z)]), 1e-5)
    assert 0 <= low <= high


@pytest.mark.parametrize("delta", [5e-324, 1e-310, 1e-300, 1e-100])
def test_epsilon_of_the_smallest_deltas(delta: float) -> None:
    lower, upper = Pld().bracket(Ledger([Release(1.0, 2.0)]), delta)
    assert upper - lower < 1e-10 * upper
    with mp.workdps(700):
        assert exact_gaussian(mp.mpf(upper), mp.mpf(0.5)) <= delta <= exact_gaussian(mp.mpf(lower), mp.mpf(0.5))


# --- several releases -----------------------------------------------------------------------------------------------


def convolved(release: Release, epsilons: list[float], grid: float) -> list[tuple[float, float]]:
    """(lower, upper) of delta for removing a record from all releases, by sums of positive terms only.

    Losses rounded down and up to a grid, tails left out and counted as infinite; convolved term by term, so that the
    smallest probabilities keep their digits.
    """
    p, z, n = release.sample_rate, release.noise_multiplier, release.count
    first = math.floor(math.log1p(-p) / grid) + 1
    inner = np.arange(first, math.ceil(math.log1p(p * math.expm1(16 / z)) / grid)) * grid
    places = z * z * np.log((np.exp(inner) - (1 - p)) / p) + 0.5
    masses = sum(weight * -np.diff(norm.sf((places - mean) / z)) for weight, mean in (((1 - p), 0.0), (p, 1.0)))
    low_end, top_end = (
        (1 - p) * cut(places[at] / z) + p * cut((places[at] - 1) / z) for at, cut in ((0, norm.cdf), (-1, norm.sf))
    )
    ends: list[list[float]] = []
    for cells, start, infinite in (
        (np.r_[low_end, masses], first - 1, 0.0),  # down; the lowest cell begins at log(1 - p)
        (np.r_[low_end, masses], first, float(top_end)),
    ):
        total = np.ones(1)
        for _ in range(n):
            total = np.convolve(total, cells)
        losses = (n * start + np.arange(total.size)) * grid
        ends.append(
            [
                float(np.sum(total * np.maximum(-np.expm1(np.minimum(e - losses, 0.0)), 0.0))) + n * infinite
                for e in epsilons
            ]
        )
    return list(zip(*ends, strict=True))


@pytest.mark.parametrize("release", [Release(0.1, 2.0, 8), Release(0.01, 1.0, 5), Release(0.6, 4.0, 6)])
def test_many_releases_against_sums_of_positive_terms(release: Release) -> None:
    """From 1e-2 down to 1e-40 and below, where rounding is all there is, and all before it was lost was below 0."""
    epsilons = [0.05, 0.3, 1.0, 2.0, 4.0, 6.0]
    reference = convolved(release, epsilons, 2e-3)
    ledger = Ledger([release])
    for epsilon, (low, high) in zip(epsilons, reference, strict=True):
        lower, upper = Pld().delta_bracket(ledger, epsilon)
        assert low <= upper
        assert lower <= high * (1 + 1e-12)
        assert lower <= upper
    assert reference[-1][1] < 1e-12
    assert any(upper > 0 for _, upper in reference)


@given(
    parts=st.lists(
        st.builds(
            Release,
            st.one_of(st.just(1.0), st.floats(-8, -0.05).map(lambda log_rate: 10.0**log_rate)),
            st.one_of(st.floats(-0.3, 4).map(lambda log_z: 10.0**log_z), st.just(0.0)),
            st.integers(1, 2_000),
        ),
        min_size=1,
        max_size=3,
    ),
    epsilon=st.one_of(st.floats(0, 12), st.floats(-12, 0).map(lambda log_epsilon: 10.0**log_epsilon)),
)
@example(parts=[Release(0.01, 2.0, 100)], epsilon=0.5)
@example(parts=[Release(0.01, 2.0, 100)], epsilon=2.0)
@example(parts=[Release(0.01, 2.0, 100), Release(1e-8, 0.0)], epsilon=2.0)
@example(parts=[Release(1.0, 1.0), Release(0.0145, 1.72, 2)], epsilon=10.88)
@example(parts=[Release(9.26e-8, 10.0, 2), Release(1.0, 7.067, 2)], epsilon=1.865)
def test_no_upper_end_is_below_its_lower_end(parts: list[Release], epsilon: float) -> None:
    """Nor below what a part of the ledger alone costs at least."""
    ledger = Ledger(parts)
    everybody = Ledger(part for part in parts if part.sample_rate == 1 and part.noise_multiplier > 0)
    assume(Gaussian().mu(everybody) < LARGEST_MU)  # what is refused
    lower, upper = Pld().delta_bracket(ledger, epsilon)
    assert 0 <= lower <= upper <= 1
    assert upper > 0
    for part in parts:
        assert Pld().delta_bracket(Ledger([Release(part.sample_rate, part.noise_multiplier)]), epsilon)[0] <= upper


@pytest.mark.parametrize("z", [1e2, 1e8, 1e12, 1e20, 1e200])
def test_releases_that_say_next_to_nothing(z: float) -> None:
    """Two of rate p are one Gaussian release of mu = p sqrt(2)/z, up to a relative 1/z: an upper end of the noise
    of inversion alone, however small delta is; and a lower end that was 1e-29 where delta is 1e-200."""
    rate, mu = 0.5, 0.5 * math.sqrt(2) / z
    for deviations in (0.0, 2.0):
        exact = Gaussian().delta(Ledger([Release(1.0, 1 / mu)]), deviations * mu).value
        lower, upper = Pld().delta_bracket(Ledger([Release(rate, z, 2)]), deviations * mu)
        assert lower <= exact * (1 + 4 / z + 1e-9)
        assert upper >= exact * (1 - 4 / z - 1e-9)
        if z < 1e10:
            assert upper - lower < 2e-3 * exact


def test_an_epsilon_below_1e_14_is_not_called_nothing() -> None:
    """The search for it began above, ended at 1e-14 and said 0; for the lower end it then never ended."""
    rate, z = 0.5, 1e13
    mu = rate * math.sqrt(3) / z
    delta = 0.97 * math.erf(mu / math.sqrt(8))
    exact = Gaussian().epsilon(Ledger([Release(1.0, 1 / mu)]), delta).value
    assert 1e-15 < exact < 1e-14
    lower, upper = Pld().bracket(Ledger([Release(rate, z, 3)]), delta)
    assert lower <= exact <= upper < 1.01 * exact


@pytest.mark.parametrize("count", [2**52, 2**53])
def test_so_many_releases_that_rounding_is_all_are_promised_nothing(count: int) -> None:
    assert Pld().delta_bracket(Ledger([Release(1e-10, 1.0, count)]), 1.0) == (0.0, 1.0)


# --- releases without noise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 12.0])
def test_a_release_without_noise_beside_one_with_it(rate: float, epsilon: float) -> None:
    """Exactly: what is not laid open has a loss of log(1 - q), or -log(1 - q), besides that of the Gaussian."""
    z = 2.0
    with mp.workdps(200):
        q, e, mu = mp.mpf(rate), mp.mpf(epsilon), 1 / mp.mpf(z)
        remove = q + (1 - q) * exact_gaussian(e - mp.log(1 - q), mu)
        add = exact_gaussian(e + mp.log(1 - q), mu)  # the closed form holds for negative epsilon as well
        exact = max(remove, add)
    lower, upper = Pld().delta_bracket(Ledger([Release(rate, 0.0), Release(1.0, z)]), epsilon)
    assert lower <= exact <= upper
    assert upper <= rate + (1 - rate) * Gaussian().delta(Ledger([Release(1.0, z)]), epsilon).value * (1 + 1e-10) + 1e-14


def test_the_probability_of_being_laid_open_is_bracketed() -> None:
    cases = [[(1e-6, 1)], [(1e-300, 3)], [(0.3, 7), (1e-9, 10**9)], [(1 - 2.0**-53, 1)], [(0.5, 2_000)]]
    for case, reach in itertools.product(cases, (1.0, 0.1)):
        rows = [(rate * reach, count) for rate, count in case]
        with mp.workdps(900):
            kept = mp.fprod((1 - mp.mpf(rate)) ** count for rate, count in rows)
            lower, upper = _exposed(Ledger([Release(rate, 0.0, count) for rate, count in rows]), 1)
            assert lower <= 1 - kept <= upper
            assert upper - lower <= 1e-14 * upper
    assert _exposed(Ledger([Release(1.0, 0.0), Release(0.1, 0.0)]), 1) == (1.0, 1.0)
    assert _exposed(Ledger(), 1) == (0.0, 0.0)
