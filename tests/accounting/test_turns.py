"""Correlated noise: the ledger of each group of records, their mean, and the mechanism itself by simulation."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from decrescendo.accounting import Gaussian, GdpClt, Ledger, Pld, Rdp, Release, Truncated, trade_off
from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.accounting.filters import ZcdpFilter
from decrescendo.accounting.verify import verify_epsilon
from decrescendo.errors import AccountingError, InvalidValue
from decrescendo.plans.strategy import Strategy

EPSILONS = (0.2, 0.5, 1.0)
RATES = np.array([0.3, 0.2, 0.4, 0.25, 0.35, 0.5])


def integrated(rates: np.ndarray, mu: np.ndarray, epsilon: float) -> np.ndarray:
    """(remove, add): delta of a few Poisson-sampled Gaussians, by a product grid of their outputs."""
    x = np.linspace(-9, 9 + mu.max(), 600 if rates.size == 2 else 5_000)
    step = x[1] - x[0]
    p, q = np.ones(()), np.ones(())
    for rate, one in zip(rates, mu, strict=True):
        null = norm.pdf(x) * step
        with_it = (1 - rate) * null + rate * norm.pdf(x - one) * step
        p, q = np.multiply.outer(p, with_it), np.multiply.outer(q, null)
    e = np.exp(epsilon)
    return np.array([np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum()])


@pytest.mark.parametrize(("steps", "bands"), [(2, 2), (3, 2), (4, 2), (5, 3), (2, 5), (6, 3)])
def test_delta_is_the_mean_over_groups_by_exact_integrals(steps: int, bands: int) -> None:
    rng = np.random.default_rng(steps * 10 + bands)
    mu, rates = rng.uniform(0.6, 1.6, steps), rng.uniform(0.1, 0.6, steps)
    ledger = Ledger.of(1 / mu, rates).banded(bands)
    for epsilon in EPSILONS:
        exact = np.zeros(2)
        worst = 0.0
        for g in range(bands):
            own = slice(g, None, bands)
            one = integrated(rates[own], mu[own], epsilon) if rates[own].size else np.zeros(2)
            exact, worst = exact + one / bands, max(worst, one.max())
        lower, upper = Pld().delta_bracket(ledger, epsilon)
        assert lower < exact.max() <= upper * (1 + 1e-5)
        assert upper <= exact.max() * (1 + 2e-3)
        assert upper < worst  # the mean is better than the worst group


def test_epsilon_inverts_the_mean_and_not_the_groups() -> None:
    ledger = Ledger.of(np.linspace(1.5, 0.7, 60), 0.2).banded(4)
    upper = Pld().epsilon(ledger, 1e-4).value
    assert Pld().delta(ledger, upper).value == pytest.approx(1e-4, rel=1e-2)
    each = [Pld().bracket(ledger.turn(g), 1e-4) for g in range(4)]
    assert min(low for low, _ in each) < upper < max(high for _, high in each)


def test_the_lower_end_is_an_attack_on_one_group() -> None:
    """Only a record of group 0 is ever seen: with probability 1/2 it is a release at rate 1."""
    ledger = Ledger.of([0.8, 1e9], 1.0).banded(2)
    for epsilon in EPSILONS[1:2]:
        x = np.linspace(-12, 14, 400_001)
        null, moved = norm.pdf(x), norm.pdf(x - 1 / 0.8)
        own = np.maximum((null + moved) / 2 - np.exp(epsilon) * null, 0).sum() * (x[1] - x[0])
        lower, upper = Pld().delta_bracket(ledger, epsilon)
        assert own * (1 - 1e-2) <= lower <= own
        assert lower < upper
        at = Pld().bracket(ledger, own)[0]
        assert at == pytest.approx(epsilon, rel=1e-2)
        assert at <= epsilon * (1 + 1e-9)


def test_equal_steps_of_one_group_at_a_time_are_one_run_a_group() -> None:
    one = Pld().epsilon(Ledger.of([1.1] * 50, 0.1), 1e-5).value
    assert Pld().epsilon(Ledger.of([1.1] * 200, 0.1).banded(4), 1e-5).value == pytest.approx(one, rel=2e-3)


def test_everybody_may_take_part_in_other_releases_of_the_ledger() -> None:
    first = Ledger.of([2.0, 2.0], 0.3)
    run = first + Ledger.of([1.2] * 12, 0.3).banded(3)
    alone = Pld().epsilon(Ledger.of([2.0] * 2 + [1.2] * 4, 0.3), 1e-5).value
    assert Pld().epsilon(run, 1e-5).value == pytest.approx(alone, rel=2e-3)


def test_moving_rates_in_cells_agree_with_each_group_by_itself() -> None:
    steps = 42
    ledger = Ledger.of(np.linspace(1.6, 1.0, steps), np.linspace(0.05, 0.2, steps)).banded(2)
    upper = Pld(rtol=1e-1).delta_bracket(ledger, 2.0)[1]
    each = [Pld(rtol=1e-2).delta_bracket(ledger.turn(g), 2.0) for g in range(2)]
    lows, highs = np.mean(each, axis=0)
    assert lows <= upper * (1 + 1e-6)
    assert upper <= highs * 1.1


def test_rows_without_noise_and_groups_without_turns() -> None:
    assert Pld().epsilon(Ledger.of([0.0, 1.0], 0.5).banded(2), 1e-5).value == np.inf
    assert Pld().delta(Ledger.of([0.0, 1.0], 0.5).banded(2), 50.0).value == pytest.approx(0.25, rel=1e-6)
    lone = Pld().delta(Ledger.of([1.0], 0.5), 0.5).value
    assert Pld().delta(Ledger.of([1.0], 0.5).banded(4), 0.5).value == pytest.approx(lone / 4, rel=2e-3)
    assert Pld().epsilon(Ledger().banded(3), 1e-5).value == 0


def test_a_ledger_that_grows_step_by_step_is_the_planned_one() -> None:
    planned = Ledger.of([1.0, 1.2, 0.9], [0.2, 0.3, 0.4]).banded(2)
    grown = Ledger()
    for release in planned:
        grown += Ledger([release])
    assert grown == planned
    assert planned.first(2) == Ledger.of([1.0, 1.2], [0.2, 0.3]).banded(2)
    assert [release.group for release in planned] == [0, 1, 0]


def test_two_runs_are_not_one() -> None:
    """Groups are drawn again in each run: the mean over the same groups would say too little."""
    run = Ledger.of([0.6, 5.0], 0.5).banded(2)
    with pytest.raises(AccountingError, match="one run from its first step"):
        Pld().epsilon(run + run, 1e-5)
    with pytest.raises(AccountingError, match="one run"):
        Pld().epsilon(run + Ledger.of([1.0] * 3, 0.5).banded(3), 1e-5)
    with pytest.raises(AccountingError, match="one run"):
        Pld().epsilon(Ledger(tuple(run)[1:]), 1e-5)


@pytest.mark.parametrize("judge", [GdpClt(), Rdp(), Gaussian(), Pld(group=2), Truncated(Rdp())])
def test_others_refuse(judge: Pld) -> None:
    with pytest.raises(AccountingError, match=r"independent noise|not correlated"):
        judge.epsilon(Ledger.of([1.0, 1.0], 1.0).banded(2), 1e-5)


def test_filters_and_impossible_releases_are_refused() -> None:
    with pytest.raises(AccountingError, match="independent noise"):
        ZcdpFilter(Budget(1.0, 1e-5)).request(Release(0.2, 1.0, bands=2))
    with pytest.raises(InvalidValue, match="one Poisson sum"):
        Release(0.2, 1.0, count=2, bands=2)
    with pytest.raises(InvalidValue, match="one band"):
        Release(0.2, 1.0, step=2)
    with pytest.raises(InvalidValue, match="not truncated"):
        Ledger.of([1.0], 0.2).cut(100, 30).banded(2)


def test_truncated_and_the_trade_off_take_a_run_of_correlated_noise() -> None:
    ledger = Ledger.of([1.0, 1.2, 0.9], 0.3).banded(2)
    assert Truncated().epsilon(ledger, 1e-4) == Pld().epsilon(ledger, 1e-4)
    known = trade_off(ledger.turn(0), [0.05])[0]
    assert known < trade_off(ledger, [0.05])[0] < 0.95


def test_the_independent_library_takes_the_mean_too() -> None:
    ledger = Ledger.of([1.0, 1.4, 0.8, 1.1], 0.3).banded(2)
    epsilon = Pld().epsilon(ledger, 1e-4).value
    found = verify_epsilon(ledger, Guarantee(epsilon, 1e-4, Unit.EXAMPLE, "Pld", "upper"))
    assert found.lower <= epsilon
    assert found.upper == pytest.approx(epsilon, rel=3e-3)
    assert not verify_epsilon(ledger, Guarantee(0.98 * epsilon, 1e-4, Unit.EXAMPLE, "Pld", "upper")).consistent


# The mechanism itself: S^-1 xi beside an adaptive record, in two coordinates.
MATRIX = np.array([[1.0, 1.3, 0.8, 1.6, 1.1, 0.9], [-0.4, -0.5, 0.3, -0.6, -0.2, 0.0]])
DRAWS = 200_000


def square(matrix: np.ndarray) -> np.ndarray:
    """S of the rows of its bands."""
    bands, steps = matrix.shape
    found = np.zeros((steps, steps))
    for k, t in itertools.product(range(bands), range(steps)):
        if t + k < steps:
            found[t + k, t] = matrix[k, t]
    return found


def losses(strategy: np.ndarray, rates: np.ndarray, turns: np.ndarray, *, bands: int, present: bool) -> np.ndarray:
    """log-likelihood ratios of each group, shape (bands, draws), of runs with or without the record.

    At each step the record's direction follows from the outputs so far, and so does a sum of others. ``turns``: shape
    (draws, steps), who may take part.
    """
    rng = np.random.default_rng(11 + present)
    steps = len(rates)
    noises = np.linalg.solve(strategy, rng.standard_normal((2, DRAWS, steps)).reshape(-1, steps).T)
    noises = noises.T.reshape(2, DRAWS, steps)
    coins = (rng.random((DRAWS, steps)) < rates) & turns & present
    out, others, angle = np.zeros((2, DRAWS, steps)), np.zeros((2, DRAWS, steps)), np.zeros((DRAWS, steps))
    for t in range(steps):
        angle[:, t] = out[0, :, t - 1] * 0.7 + out[1, :, t - 1] if t else 0.3
        others[0, :, t] = 2 * np.tanh(out[1, :, t - 1]) if t else 1.0
        pull = coins[:, t] * np.array([np.cos(angle[:, t]), np.sin(angle[:, t])])
        out[:, :, t] = others[:, :, t] + pull + noises[:, :, t]
    white = (out - others) @ strategy.T
    found = np.zeros((bands, DRAWS))
    for g in range(bands):
        for t in range(g, steps, bands):
            column = strategy[:, t]
            along = (white @ column) * np.array([np.cos(angle[:, t]), np.sin(angle[:, t])])
            found[g] += np.log1p(rates[t] * np.expm1(along.sum(axis=0) - column @ column / 2))
    return found


def hockey_stick(under_p: np.ndarray, epsilon: float) -> tuple[float, float]:
    """delta from log-likelihood ratios under the first law, and its standard error."""
    each = np.maximum(-np.expm1(epsilon - under_p), 0)
    return float(each.mean()), float(each.std() / np.sqrt(each.size))


def turns_of(groups: np.ndarray, bands: int) -> np.ndarray:
    return np.arange(len(RATES)) % bands == groups[:, None]


class TestSimulatedMechanism:
    STRATEGY = Strategy.rounded(MATRIX)
    LEDGER = Ledger.of(STRATEGY.noise_multiplier, RATES).banded(2)

    @pytest.mark.parametrize("group", [0, 1])
    @pytest.mark.parametrize("present", [True, False])
    def test_each_group_is_its_ledger_in_both_directions(self, group: int, present: bool) -> None:
        turns = turns_of(np.full(DRAWS, group), 2)
        own = losses(square(self.STRATEGY.matrix), RATES, turns, bands=2, present=present)[group]
        run = self.LEDGER.turn(group)
        for epsilon in EPSILONS:
            mu, rates = 1 / run.noise_multiplier, run.sample_rate
            found, error = hockey_stick(own if present else -own, epsilon)
            exact = self.exact(mu, rates, epsilon)[0 if present else 1]
            assert abs(found - exact) < 4.5 * error

    @staticmethod
    def exact(mu: np.ndarray, rates: np.ndarray, epsilon: float) -> np.ndarray:
        """(remove, add) of three steps, by a product grid."""
        x = np.linspace(-6.5, 6.5 + mu.max(), 150)
        step = x[1] - x[0]
        p, q = np.ones(()), np.ones(())
        for rate, one in zip(rates, mu, strict=True):
            null = norm.pdf(x) * step
            p = np.multiply.outer(p, (1 - rate) * null + rate * norm.pdf(x - one) * step)
            q = np.multiply.outer(q, null)
        e = np.exp(epsilon)
        return np.array([np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum()])

    def test_who_does_not_know_the_group_finds_no_more_than_the_mean_and_no_less_than_the_lower_end(
        self,
    ) -> None:
        found = self.attack(square(self.STRATEGY.matrix), RATES, turns_of(self.groups(), 2))
        for epsilon, (delta, error) in found.items():
            lower, upper = Pld().delta_bracket(self.LEDGER, epsilon)
            assert lower - 4.5 * error < delta < upper + 4.5 * error

    @staticmethod
    def groups() -> np.ndarray:
        return np.random.default_rng(5).integers(2, size=DRAWS)

    @staticmethod
    def attack(strategy: np.ndarray, rates: np.ndarray, turns: np.ndarray) -> dict[float, tuple[float, float]]:
        each = losses(strategy, rates, turns, bands=2, present=True)
        ratio = np.logaddexp(each[0], each[1]) - np.log(2)
        return {epsilon: hockey_stick(ratio, epsilon) for epsilon in EPSILONS}

    def refuted(self, ledger: Ledger, group: int, turns: np.ndarray, strategy: np.ndarray, rates: np.ndarray) -> bool:
        """Whether runs of somebody known to be in ``group`` beat what the ledger says of that group."""
        own = losses(strategy, rates, turns, bands=2, present=True)[group]
        return any(
            hockey_stick(own, e)[0] - 4.5 * hockey_stick(own, e)[1] > Pld().delta(ledger.turn(group), e).value
            for e in EPSILONS
        )

    def test_the_right_build_is_not_refuted(self) -> None:
        turns = turns_of(np.zeros(DRAWS, dtype=int), 2)
        assert not self.refuted(self.LEDGER, 0, turns, square(self.STRATEGY.matrix), RATES)

    def test_a_record_that_takes_every_turn_is_caught(self) -> None:
        every = np.ones((DRAWS, len(RATES)), dtype=bool)
        strategy = square(self.STRATEGY.matrix)
        each = losses(strategy, RATES, every, bands=2, present=True)
        whole = each.sum(axis=0)  # overlapping columns: an attack, if not the best one
        delta, error = max(hockey_stick(whole, e) for e in EPSILONS)
        assert delta - 4.5 * error > Pld().delta(self.LEDGER, EPSILONS[0]).value

    def test_a_rate_that_is_not_multiplied_by_the_bands_is_caught(self) -> None:
        turns = turns_of(np.zeros(DRAWS, dtype=int), 2)
        wrong = Ledger.of(self.STRATEGY.noise_multiplier, RATES / 2).banded(2)
        assert self.refuted(wrong, 0, turns, square(self.STRATEGY.matrix), RATES)

    def test_a_band_too_many_is_caught(self) -> None:
        """Noise of a strategy of three bands, accounted as one of two."""
        wide = Strategy.rounded(np.r_[MATRIX, [[0.9, 0.9, 0.9, 0.9, 0.0, 0.0]]])
        cut = Strategy.rounded(wide.matrix[:2])
        wrong = Ledger.of(cut.noise_multiplier, RATES).banded(2)
        turns = turns_of(np.zeros(DRAWS, dtype=int), 2)
        assert self.refuted(wrong, 0, turns, square(wide.matrix), RATES)


def test_the_lower_end_is_below_the_upper_at_any_epsilon() -> None:
    """Beyond 600 it was that of 600; and exponentials ran out of floats."""
    run = Ledger([Release(0.9, 0.1, 1)] * 24).banded(2)
    for epsilon in (700.0, 748.0, 900.0):
        low, high = Pld().delta_bracket(run, epsilon)
        assert 0 <= low <= high
    low, high = Pld().bracket(run, 1e-6)
    assert 700 < low <= high
