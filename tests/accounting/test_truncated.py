"""What cutting large batches costs: against laws written out subset by subset, as properties, and drawn."""

import itertools
import math

import numpy as np
import pytest
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
    Release,
    RenyiFilter,
    Selection,
    Trials,
    Truncated,
    smallest_cap,
    trade_off,
)
from decrescendo.accounting.truncated import least_epsilon, overflow_of
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
    tau = sum(
        p * sum(math.comb(50, k) * p**k * (1 - p) ** (50 - k) for k in range(9, 51)) for p in (0.1, 0.2, 0.1)
    )
    assert overflow_of(ledger.cut(50, 9)) == pytest.approx(tau, rel=1e-7)
    assert overflow_of(ledger.cut(50, 9)) >= tau
    assert overflow_of(ledger.cut(50, 51)) == 0


RUN = Ledger.of([1.0] * 500, 250 / 60_000)


def test_epsilon_is_where_delta_and_the_price_meet() -> None:
    judge, run = Truncated(), RUN.cut(60_000, 335)
    found = judge.epsilon(run, 1e-6).value
    assert judge.delta(run, found).value == pytest.approx(1e-6, rel=0.01)
    assert found > 1.01 * Pld().epsilon(RUN, 1e-6).value
    assert math.isinf(Truncated().epsilon(RUN.cut(60_000, 300), 1e-6).value)


def test_a_cap_for_a_hundredth_of_delta() -> None:
    cap = smallest_cap(RUN, 60_000, 1.2, 1e-6)
    assert overflow_of(RUN.cut(60_000, cap)) * math.exp(1.2) <= 1e-8
    assert overflow_of(RUN.cut(60_000, cap - 1)) * math.exp(1.2) > 1e-8
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
def test_splitting_and_ordering_releases_change_no_price(
    noise: list[float], rate: float, cap: int, at: int
) -> None:
    whole = Ledger.of(noise, rate).cut(50, cap)
    parts = whole.first(min(at, len(whole)))
    rest = Ledger(list(whole)[min(at, len(whole)) :])
    assert overflow_of(rest + parts) == pytest.approx(overflow_of(whole), rel=1e-12)
    assert parts + rest == whole


@pytest.mark.slow
def test_a_promise_by_plain_pld_is_below_the_least_that_can_be_right() -> None:
    run, budget = RUN.cut(60_000, 335), Budget(2.0, 1e-6)
    right, wrong = Truncated().certify(run, budget), Pld().certify(RUN, budget)
    assert least_epsilon(run, right) <= right.epsilon
    assert least_epsilon(run, wrong) > wrong.epsilon
    assert verify_epsilon(run, right, values=4).consistent
    assert not verify_epsilon(run, wrong, values=4).consistent
    hopeless = RUN.cut(60_000, 300)
    assert math.isinf(least_epsilon(hopeless, wrong))
    assert not verify_epsilon(hopeless, wrong).consistent


def test_a_search_and_a_filter_refuse_batches_that_are_cut() -> None:
    search = Truncated(Selection(Trials(mean=5)))
    assert search.epsilon(RUN, 1e-6) == Selection(Trials(mean=5)).epsilon(RUN, 1e-6)
    with pytest.raises(AccountingError, match="the cut of each trial"):
        search.epsilon(RUN.cut(60_000, 345), 1e-6)
    with pytest.raises(AccountingError, match="any size only"):
        RenyiFilter(Budget(1.0, 1e-5), 16).request(Release(0.1, 5.0, overflow=1e-9))


@pytest.mark.slow
def test_the_curve_of_a_run_and_its_trade_off_pay_too() -> None:
    cut = RUN.cut(60_000, 335)
    assert EpsilonCurve(cut, 1e-6).at_step(500) == Truncated().epsilon(cut, 1e-6).value
    often = RUN.cut(60_000, 280)
    assert trade_off(often, [1e-4])[0] < trade_off(RUN, [1e-4])[0] - 0.5 * overflow_of(often)


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
    def test_rows_over_the_cap_are_left_out_by_an_even_choice(
        self, rng: np.random.Generator | SecureStream
    ) -> None:
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
