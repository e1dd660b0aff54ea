"""What cutting large batches costs: against laws written out subset by subset, as properties, and drawn."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, norm

from decrescendo.accounting import Budget, Gaussian, GdpClt, Ledger, Pld, Truncated, smallest_cap
from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidValue
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
    bound = Truncated(others.size, cap).delta(ledger, epsilon).value
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
    assert max(found) <= Truncated(2, cap).delta(Ledger.of([noise] * 2, rate), epsilon).value + 1e-6


def test_the_price_is_the_sum_of_binomial_tails_at_every_steps_own_rate() -> None:
    ledger = Ledger.of([1.0, 2.0, 1.0], [0.1, 0.2, 0.1])
    tau = sum(
        p * sum(math.comb(50, k) * p**k * (1 - p) ** (50 - k) for k in range(9, 51)) for p in (0.1, 0.2, 0.1)
    )
    assert Truncated(50, 9).overflow(ledger) == pytest.approx(tau, rel=1e-7)
    assert Truncated(50, 9).overflow(ledger) >= tau
    assert Truncated(50, 51).overflow(ledger) == 0


RUN = Ledger.of([1.0] * 500, 250 / 60_000)


def test_epsilon_is_where_delta_and_the_price_meet() -> None:
    judge = Truncated(60_000, 335)
    found = judge.epsilon(RUN, 1e-6).value
    assert judge.delta(RUN, found).value == pytest.approx(1e-6, rel=0.01)
    assert found > 1.01 * Pld().epsilon(RUN, 1e-6).value
    assert math.isinf(Truncated(60_000, 300).epsilon(RUN, 1e-6).value)


def test_a_cap_for_a_hundredth_of_delta() -> None:
    cap = smallest_cap(RUN, 60_000, 1.2, 1e-6)
    assert Truncated(60_000, cap).overflow(RUN) * math.exp(1.2) <= 1e-8
    assert Truncated(60_000, cap - 1).overflow(RUN) * math.exp(1.2) > 1e-8
    assert smallest_cap(Ledger.of([1.0], 1.0), 10, 1.0, 1e-6) == 11


@settings(max_examples=30)
@given(
    cap=st.integers(150, 400),
    rate=st.floats(0.001, 0.004),
    more=st.floats(1.0, 2.0),
    epsilon=st.floats(0.1, 3.0),
)
def test_a_larger_cap_more_noise_or_a_smaller_rate_never_costs_more(
    cap: int, rate: float, more: float, epsilon: float
) -> None:
    clt = GdpClt()
    worst = Truncated(60_000, cap, clt).delta(Ledger.of([1.0] * 100, rate), epsilon).value
    slack = 1 + 1e-9
    assert (
        Truncated(60_000, cap + 10, clt).delta(Ledger.of([1.0] * 100, rate), epsilon).value <= worst * slack
    )
    assert Truncated(60_000, cap, clt).delta(Ledger.of([more] * 100, rate), epsilon).value <= worst * slack
    assert (
        Truncated(60_000, cap, clt).delta(Ledger.of([1.0] * 100, rate / more), epsilon).value <= worst * slack
    )


def test_what_is_exact_becomes_a_bound_and_an_estimate_stays_one() -> None:
    full = Ledger.of([20.0], 1.0)
    assert Truncated(100, 50, Gaussian()).delta(full, 1.0).kind == "upper"
    assert Truncated(100, 101, Gaussian()).delta(full, 1.0).kind == "exact"
    assert Truncated(60_000, 330, GdpClt()).certify(RUN, Budget(2.0, 1e-6)).kind == "estimate"
    assert Truncated(60_000, 335).certify(RUN, Budget(2.0, 1e-6)).epsilon_lower is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(InvalidValue, match="max_batch_size must be >= 1"):
        Truncated(100, 0)
    with pytest.raises(InvalidValue, match="another Truncated"):
        Truncated(100, 10, Truncated(100, 10))
    with pytest.raises(InvalidValue, match="max_batch_size must be >= 1"):
        next(PoissonSampling(10, 5).batches(1, np.random.default_rng(0), max_batch_size=0))


class TestBatches:
    """Batches as they are drawn: 8 records at rate 1/2, at most 3 kept."""

    SAMPLING = PoissonSampling(8, 4)
    DRAWS = 4_000

    def sets(self, rng: np.random.Generator | SecureStream, cap: int = 3) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for batch in self.SAMPLING.batches(self.DRAWS, rng, max_batch_size=cap):
            key = tuple(int(row) for row in batch)
            found[key] = found.get(key, 0) + 1
        return found

    def far_off(self, found: dict[tuple[int, ...], int], cap: int) -> bool:
        """Whether a chi-squared test at 1e-6 tells the counts from the law of batches cut to ``cap``, chosen evenly."""
        statistic, cells = 0.0, 0
        for size in range(cap + 1):
            mass = binom.pmf(size, 8, 0.5) if size < cap else binom.sf(cap - 1, 8, 0.5)
            for rows in itertools.combinations(range(8), size):
                expected = self.DRAWS * mass / math.comb(8, size)
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
        for batch in self.SAMPLING.batches(self.DRAWS, np.random.default_rng(7)):
            key = tuple(int(row) for row in batch[:3])
            first[key] = first.get(key, 0) + 1
        assert self.far_off(first, 3)

    def test_a_record_is_drawn_into_a_full_batch_as_often_as_is_paid_for(self) -> None:
        """The price of one release, by counting; a tail that is 15 % off would be seen."""
        rng, draws = np.random.default_rng(8), 40_000
        drawn = rng.random((draws, 9)) < 0.5
        pushed = np.count_nonzero(drawn[:, 8] & (drawn[:, :8].sum(axis=1) >= 6))
        price = Truncated(8, 6).overflow(Ledger.of([1.0], 0.5))
        deviation = math.sqrt(draws * price)
        assert abs(pushed - draws * price) < 5 * deviation
        assert 0.15 * draws * price > 5 * deviation
