"""What cutting large batches costs: against laws written out subset by subset, as properties, and drawn."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import TruncatedSubsampledGaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, norm

from decrescendo.accounting import (
    Budget,
    EpsilonCurve,
    Gaussian,
    GdpClt,
    Ledger,
    Pld,
    Rdp,
    Release,
    RenyiFilter,
    Selection,
    Trials,
    Truncated,
    smallest_cap,
    trade_off,
)
from decrescendo.accounting.overflow import overflow_of
from decrescendo.accounting.pld.overfull import Overfull
from decrescendo.accounting.truncated import least_epsilon
from decrescendo.accounting.verify import verify_epsilon
from decrescendo.base.rng import SecureStream
from decrescendo.errors import AccountingError, InvalidValue
from decrescendo.plans.sampling import PoissonSampling

FINE, COARSE = np.linspace(-14, 14, 4001), np.linspace(-9, 9, 901)


def law(values: np.ndarray, rate: float, cap: int, noise: float, grid: np.ndarray = FINE) -> np.ndarray:
    """The density of one noisy sum on the grid: over every subset that may be drawn and all that may be kept of it."""
    density = np.zeros(grid.size)
    for drawn in itertools.product([False, True], repeat=values.size):
        rows = np.flatnonzero(drawn)
        chance = rate**rows.size * (1 - rate) ** (values.size - rows.size)
        kept = list(itertools.combinations(rows, min(cap, rows.size)))
        for some in kept:
            density += chance / len(kept) * norm.pdf(grid, values[list(some)].sum(), noise)
    return density


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float, grid: np.ndarray = FINE) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (grid[1] - grid[0]) ** p.ndim)


TINY = [
    pytest.param(np.array([-1.0]), 0.4, 1, 1.0, id="one other record"),
    pytest.param(np.array([-1.0, -1.0]), 0.3, 1, 0.7, id="two others, one kept"),
    pytest.param(np.array([1.0, -1.0, -1.0]), 0.5, 2, 1.0, id="three others, two kept"),
]


@pytest.mark.parametrize(("others", "rate", "cap", "noise"), TINY)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5, 3.0])
def test_one_release_is_within_the_bound_in_both_directions(
    others: np.ndarray, rate: float, cap: int, noise: float, epsilon: float
) -> None:
    ledger = Ledger.of([noise], rate)
    without, with_x = law(others, rate, cap, noise), law(np.append(others, 1.0), rate, cap, noise)
    bound = Truncated().delta(ledger.cut(others.size, cap), epsilon).value
    assert divergence(with_x, without, epsilon) <= bound + 1e-9
    assert divergence(without, with_x, epsilon) <= bound + 1e-9


def test_without_the_caps_price_the_bound_would_be_false() -> None:
    """A record that pushes another one out moves the sum by two."""
    others, rate, noise = np.array([-1.0, -1.0]), 0.3, 0.7
    without, with_x = law(others, rate, 1, noise), law(np.append(others, 1.0), rate, 1, noise)
    exact = divergence(with_x, without, 3.0)
    assert exact > 1.5 * Pld().delta(Ledger.of([noise], rate), 3.0).value


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_two_releases_are_within_the_bound(epsilon: float) -> None:
    others, rate, cap, noise = np.array([-1.0, -1.0]), 0.3, 1, 0.8
    without, with_x = (law(values, rate, cap, noise, COARSE) for values in (others, np.append(others, 1.0)))
    pairs = np.outer(with_x, with_x), np.outer(without, without)
    found = divergence(*pairs, epsilon, COARSE), divergence(*pairs[::-1], epsilon, COARSE)
    assert max(found) <= Truncated().delta(Ledger.of([noise] * 2, rate).cut(2, cap), epsilon).value + 1e-6


def test_the_price_is_the_sum_of_binomial_tails_at_every_steps_own_rate() -> None:
    ledger = Ledger.of([1.0, 2.0, 1.0], [0.1, 0.2, 0.1])
    tau = sum(p * sum(math.comb(50, k) * p**k * (1 - p) ** (50 - k) for k in range(9, 51)) for p in (0.1, 0.2, 0.1))
    assert overflow_of(ledger.cut(50, 9)) == pytest.approx(tau, rel=1e-7)
    assert overflow_of(ledger.cut(50, 9)) >= tau
    assert overflow_of(ledger.cut(50, 51)) == 0


RUN = Ledger.of([1.0] * 500, 250 / 60_000)


def test_epsilon_and_delta_invert_each_other() -> None:
    for cap in (300, 335):
        run = RUN.cut(60_000, cap)
        found = Truncated().epsilon(run, 1e-6).value
        assert Truncated().delta(run, found).value == pytest.approx(1e-6, rel=1e-3)
        assert found > Pld().epsilon(RUN, 1e-6).value
    assert math.isinf(Truncated(Gaussian()).epsilon(Ledger.of([20.0], 1.0).cut(100, 50), 1e-6).value)


def theirs(ledger: Ledger, others: int, cap: int, delta: float) -> float:
    """dp-accounting's truncated event; its data set is the larger one."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for release in ledger:
        event = TruncatedSubsampledGaussianDpEvent(others + 1, release.sample_rate, cap, release.noise_multiplier)
        accountant.compose(event, release.count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("others", "batch", "cap", "noise", "steps", "delta"),
    [
        (1_000, 100, 110, 1.0, 100, 1e-5),
        (1_000, 100, 120, 1.0, 100, 1e-5),
        (1_000, 100, 140, 1.0, 100, 1e-5),
        (10_000, 100, 130, 0.7, 200, 1e-6),
        (60_000, 250, 300, 1.0, 500, 1e-6),
        pytest.param(2_000, 100, 100, 2.0, 50, 1e-5, marks=pytest.mark.slow),
        pytest.param(500, 100, 150, 3.0, 1_000, 1e-6, marks=pytest.mark.slow),
        pytest.param(100_000, 100, 125, 0.5, 2_000, 1e-7, marks=pytest.mark.slow),
        pytest.param(50, 25, 20, 4.0, 5, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_a_cap_costs_no_more_than_by_the_mechanism_of_another_library(
    others: int, batch: int, cap: int, noise: float, steps: int, delta: float
) -> None:
    """It was infinite for all of these. Theirs replaces a record by another one, but knows that of more rows fewer are
    kept, which is worth a percent where caps are near the expected size."""
    run = Ledger([Release(batch / others, noise, steps)])
    found = Truncated().epsilon(run.cut(others, cap), delta).value
    assert Pld().bracket(run, delta)[0] <= found <= theirs(run, others, cap, delta) * 1.01
    assert Truncated().estimate(run.cut(others, cap), delta) == pytest.approx(found, rel=0.05)


def test_of_moving_noise_and_batches_it_lies_between_what_bounds_them() -> None:
    """Each step's own noise, rate and probability of a full batch, against all steps at the best and at the worst."""
    rates = np.linspace(80, 100, 60) / 1_000
    moving = Ledger.of(np.geomspace(2.0, 1.0, 60), rates).cut(1_000, 130)
    best, worst = (
        Truncated().epsilon(Ledger.of([z] * 60, p).cut(1_000, 130), 1e-5).value for z, p in ((2.0, 0.08), (1.0, 0.1))
    )
    found = Truncated().epsilon(moving, 1e-5).value
    assert best < found < worst


def test_steps_that_are_cut_and_steps_that_are_not_are_told_from_each_other() -> None:
    cut = RUN.cut(60_000, 290)
    both, twice = Truncated().epsilon(RUN + cut, 1e-6).value, Truncated().epsilon(cut + cut, 1e-6).value
    assert Truncated().epsilon(cut, 1e-6).value < both < twice


@given(
    epsilon=st.floats(-30, 30),
    low=st.floats(0.05, 3.0),
    more=st.floats(1.01, 4.0),
    share=st.floats(0.01, 0.99),
    full=st.floats(1e-6, 1.0),
)
def test_the_curves_of_truncated_steps_are_convex_in_the_variation_they_are_mixed_by(
    epsilon: float, low: float, more: float, share: float, full: float
) -> None:
    """What mixing two nodes of noise is proven by: the curve between them is at most the chord."""
    curves = Overfull(0.1, full)
    ends = np.array([low, low * more])
    variation = 2 * norm.cdf(curves.bend * ends / 2) - 1
    between = share * variation[0] + (1 - share) * variation[1]
    mu = 2 * norm.ppf((between + 1) / 2) / curves.bend
    if not low < mu < low * more:  # variations so near to 1 that they cannot be told apart
        return
    values = curves.excess(np.array([epsilon]), np.array([*ends, mu]))[:, 0]
    assert values[2] <= (share * values[0] + (1 - share) * values[1]) * (1 + 1e-6) + 1e-15


CURVES = {
    "composed": (Truncated(), RUN.cut(60_000, 320)),
    "little noise": (Truncated(), Ledger.of([0.15] * 3, 0.01).cut(10_000, 130)),
    "by another accountant": (Truncated(Rdp()), RUN.cut(60_000, 330)),
    "once an epoch": (Truncated(), Ledger.of([1.0] * 40, 1 / 20).allocated(20).cut(2_000, 140)),
}


@pytest.mark.parametrize("kind", CURVES)
def test_delta_never_rises_with_epsilon(kind: str) -> None:
    """It was 0.073 at 0.2 and 1.0 at 3: what holds at an epsilon holds at every larger one."""
    accountant, run = CURVES[kind]
    found = [accountant.delta(run, epsilon).value for epsilon in (0.0, 0.2, 1.0, 3.0, 8.0, 50.0)]
    for smaller, larger in itertools.pairwise(found):
        assert larger <= smaller * (1 + 1e-6)
    assert found[-1] < 1


def test_of_drawn_batches_no_event_is_likelier_than_the_bound_says() -> None:
    """Eight others that pull one way and one that pulls the other way; a bound without the cap would be false."""
    rng, draws, rate, noise, epsilon = np.random.default_rng(0), 200_000, 0.6, 0.5, 2.0

    def sums(rows: int) -> np.ndarray:
        drawn = rng.random((draws, rows)) < rate
        keep = np.argsort(rng.random((draws, rows)) + 2.0 * ~drawn, axis=1)[:, :3]
        kept = np.take_along_axis(drawn, keep, axis=1)
        pull = np.where(np.arange(rows) == 8, 1.0, -1.0)
        return (kept * pull[keep]).sum(axis=1) + noise * rng.standard_normal(draws)

    threshold = -1.6
    p, q = ((sums(rows) > threshold).mean() for rows in (9, 8))
    deviation = math.sqrt((p + math.exp(2 * epsilon) * q) / draws)
    found = p - math.exp(epsilon) * q
    run = Ledger.of([noise], rate)
    assert found - 4 * deviation > Pld().delta(Ledger.of([noise], rate * 3 / 6), epsilon).value / 3
    assert found - 4 * deviation <= Truncated().delta(run.cut(8, 3), epsilon).value


def test_a_cap_for_a_hundredth_of_delta() -> None:
    cap = smallest_cap(RUN, 60_000, 1.2, 1e-6)
    assert overflow_of(RUN.cut(60_000, cap)) <= 1e-8 < overflow_of(RUN.cut(60_000, cap - 1))
    cost = Truncated().delta(RUN.cut(60_000, cap), 0.65).value - Pld().delta(RUN, 0.65).value
    assert cost <= 1.1e-8
    epochs = Ledger.of([1.0] * 40, 1 / 20).allocated(20)
    once = smallest_cap(epochs, 2_000, 1.2, 1e-6)
    assert overflow_of(epochs.cut(2_000, once)) * math.exp(1.2) <= 1e-8
    assert smallest_cap(Ledger.of([1.0], 1.0), 10, 1.0, 1e-6) == 11


@given(
    cap=st.integers(150, 400),
    rate=st.floats(0.001, 0.004),
    more=st.floats(1.0, 2.0),
    epsilon=st.floats(0.1, 3.0),
)
def test_a_larger_cap_more_noise_or_a_smaller_rate_never_costs_more(
    cap: int, rate: float, more: float, epsilon: float
) -> None:
    judge, slack = Truncated(GdpClt()), 1 + 1e-9

    def delta(noise: float, rate: float, cap: int) -> float:
        return judge.delta(Ledger.of([noise] * 100, rate).cut(60_000, cap), epsilon).value

    worst = delta(1.0, rate, cap) * slack
    assert delta(1.0, rate, cap + 10) <= worst
    assert delta(more, rate, cap) <= worst
    assert delta(1.0, rate / more, cap) <= worst


def test_what_is_exact_becomes_a_bound_and_an_estimate_stays_one() -> None:
    full = Ledger.of([20.0], 1.0)
    assert Truncated(Gaussian()).delta(full.cut(100, 50), 1.0).kind == "upper"
    assert Truncated(Gaussian()).delta(full.cut(100, 101), 1.0).kind == "exact"
    assert Truncated(GdpClt()).certify(RUN.cut(60_000, 345), Budget(2.0, 1e-6)).kind == "estimate"
    assert Truncated().certify(RUN.cut(60_000, 335), Budget(2.0, 1e-6)).epsilon_lower is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(InvalidValue, match="max_batch_size must be >= 1"):
        RUN.cut(100, 0)
    with pytest.raises(InvalidValue, match="max_batch_size must be >= 1"):
        PoissonSampling(10, 5, max_batch_size=0)
    with pytest.raises(InvalidValue, match="overflow must be"):
        Release(0.1, 1.0, overflow=0.2)


def test_where_no_batch_is_cut_it_is_the_judge() -> None:
    budget = Budget(2.0, 1e-6)
    assert Truncated().certify(RUN, budget) == Pld().certify(RUN, budget)
    assert Truncated().delta(RUN, 0.5) == Pld().delta(RUN, 0.5)
    assert Truncated().estimate(RUN, 1e-6) == Pld().estimate(RUN, 1e-6)
    assert Truncated().certify(RUN.cut(60_000, 345), budget).accountant == "Truncated(Pld)"


def test_a_ledger_keeps_what_its_batches_overflow_by() -> None:
    cut = RUN.cut(60_000, 335)
    other = Ledger.of([1.0, 2.0], 0.1).cut(50, 9)
    both = cut + other
    assert overflow_of(both) == pytest.approx(overflow_of(cut) + overflow_of(other), rel=1e-12)
    assert Ledger(both) == both
    assert both.first(500) == cut != RUN
    assert hash(both.first(500)) == hash(cut) != hash(RUN)
    assert overflow_of(both.distinct()) == pytest.approx(overflow_of(both), rel=1e-12)
    assert (both.with_noise(lambda z: 2 * z).overflow == both.overflow).all()
    assert len((RUN + cut).distinct()) == 2
    assert not cut.cut(60_000, None).is_cut


@given(
    noise=st.lists(st.floats(0.5, 5.0), min_size=1, max_size=8),
    rate=st.floats(0.01, 0.9),
    cap=st.integers(1, 60),
    at=st.integers(0, 8),
)
def test_splitting_and_ordering_releases_change_no_price(noise: list[float], rate: float, cap: int, at: int) -> None:
    whole = Ledger.of(noise, rate).cut(50, cap)
    parts = whole.first(min(at, len(whole)))
    rest = Ledger(list(whole)[min(at, len(whole)) :])
    assert overflow_of(rest + parts) == pytest.approx(overflow_of(whole), rel=1e-12)
    assert parts + rest == whole


@pytest.mark.slow
def test_a_promise_by_plain_pld_is_contradicted_by_an_independent_library() -> None:
    run, budget = RUN.cut(60_000, 300), Budget(3.0, 1e-6)
    right, wrong = Truncated().certify(run, budget), Pld().certify(RUN, budget)
    assert least_epsilon(run, right) <= right.epsilon
    assert verify_epsilon(run, right, values=4).consistent
    assert not verify_epsilon(run, wrong, values=4).consistent


def test_a_search_and_a_filter_refuse_batches_that_are_cut() -> None:
    search = Truncated(Selection(Trials(mean=5)))
    assert search.epsilon(RUN, 1e-6) == Selection(Trials(mean=5)).epsilon(RUN, 1e-6)
    with pytest.raises(AccountingError, match="searches of truncated trials"):
        search.epsilon(RUN.cut(60_000, 345), 1e-6)
    with pytest.raises(AccountingError, match="any size only"):
        RenyiFilter(Budget(1.0, 1e-5), 16).request(Release(0.1, 5.0, overflow=1e-9))


@pytest.mark.slow
def test_the_curve_of_a_run_and_its_trade_off_pay_too() -> None:
    cut = RUN.cut(60_000, 335)
    assert EpsilonCurve(cut, 1e-6).at_step(500) == Truncated().epsilon(cut, 1e-6).value
    often = RUN.cut(60_000, 280)
    assert trade_off(often, [1e-4])[0] < trade_off(RUN, [1e-4])[0] - 1e-4


class TestBatches:
    """Batches as they are drawn: 8 records at rate 1/2, at most 3 kept."""

    SIZES = 8, 4
    DRAWS = 4_000

    def sets(self, rng: np.random.Generator | SecureStream, cap: int = 3) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for batch in PoissonSampling(*self.SIZES, max_batch_size=cap).batches(self.DRAWS, rng):
            key = tuple(int(row) for row in batch)
            found[key] = found.get(key, 0) + 1
        return found

    def far_off(self, found: dict[tuple[int, ...], int], cap: int) -> bool:
        """Whether a chi-squared test at 1e-6 tells the counts from the law of batches cut to ``cap``, chosen evenly."""
        statistic, cells, draws = 0.0, 0, sum(found.values())
        for size in range(cap + 1):
            mass = binom.pmf(size, 8, 0.5) if size < cap else binom.sf(cap - 1, 8, 0.5)
            for rows in itertools.combinations(range(8), size):
                expected = draws * mass / math.comb(8, size)
                statistic += (found.get(rows, 0) - expected) ** 2 / expected
                cells += 1
        return statistic > chi2.isf(1e-6, cells - 1) or any(len(rows) > cap for rows in found)

    @pytest.mark.parametrize(
        "rng", [np.random.default_rng(5), SecureStream(bytes(range(32)))], ids=["seeded", "secure"]
    )
    def test_rows_over_the_cap_are_left_out_by_an_even_choice(self, rng: np.random.Generator | SecureStream) -> None:
        assert not self.far_off(self.sets(rng), 3)

    def test_the_test_sees_a_cap_that_is_ignored_and_a_choice_of_the_first_rows(self) -> None:
        assert self.far_off(self.sets(np.random.default_rng(6), cap=8), 3)
        first: dict[tuple[int, ...], int] = {}
        for batch in PoissonSampling(*self.SIZES).batches(self.DRAWS, np.random.default_rng(7)):
            key = tuple(int(row) for row in batch[:3])
            first[key] = first.get(key, 0) + 1
        assert self.far_off(first, 3)

    def test_a_record_is_drawn_into_a_full_batch_as_often_as_is_paid_for(self) -> None:
        """The price of one release, by counting; a tail that is 15 % off would be seen."""
        rng, draws = np.random.default_rng(8), 40_000
        drawn = rng.random((draws, 9)) < 0.5
        pushed = np.count_nonzero(drawn[:, 8] & (drawn[:, :8].sum(axis=1) >= 6))
        price = PoissonSampling(8, 4, max_batch_size=6).release(1.0).overflow
        deviation = math.sqrt(draws * price)
        assert abs(pushed - draws * price) < 5 * deviation
        assert 0.15 * draws * price > 5 * deviation
