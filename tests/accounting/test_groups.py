"""People with several examples: what a step, and a run, is to somebody of whom at most k rows come and go together."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from decrescendo.accounting import Gaussian, GdpClt, Pld, Rdp, Truncated
from decrescendo.accounting.budget import Budget, Unit
from decrescendo.accounting.gaussian import epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.mixture import BinomialMixture, composed
from decrescendo.accounting.pld.discretisation import masses_above, masses_below, place_grid
from decrescendo.accounting.pld.groups import Group
from decrescendo.accounting.release import Release
from decrescendo.accounting.verify import verify_epsilon
from decrescendo.errors import AccountingError, InvalidValue


def curve(size: int, p: float, z: float, epsilon: float) -> float:
    """One release, by quadrature of both hockey-stick integrals."""
    x = np.linspace(-12 * z, size + 12 * z, 400_001)
    mixed = sum(binom.pmf(j, size, p) * norm.pdf(x, j, z) for j in range(size + 1))
    plain = norm.pdf(x, 0, z)
    remove = np.maximum(mixed - math.exp(epsilon) * plain, 0).sum()
    add = np.maximum(plain - math.exp(epsilon) * mixed, 0).sum()
    return float(max(remove, add) * (x[1] - x[0]))


def composed_elsewhere(ledger: Ledger, size: int, delta: float, grid: float) -> float:
    """By dp-accounting, each release as its mixture of Gaussians, pessimistically."""
    total = None
    for release in ledger.distinct():
        one = composed(BinomialMixture(size, release.sample_rate, release.noise_multiplier), grid, release.count)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


class TestOneStep:
    @pytest.mark.parametrize(("size", "p", "mu"), [(2, 0.1, 0.5), (3, 0.004, 1.0), (8, 0.3, 0.05), (20, 0.02, 0.7)])
    def test_values_equal_many_digits_in_both_tails(self, size: int, p: float, mu: float) -> None:
        group = Group(size, p)
        e = np.array([-6.0, -1.5, -0.01, 0.0, 0.01, 1.5, 6.0]) * mu
        found = group.excess(e, np.array([mu]))[0]
        with mpmath.workdps(60):
            m, q = mpmath.mpf(mu), 1 - (1 - mpmath.mpf(p)) ** size
            w = {
                j: mpmath.binomial(size, j) * mpmath.mpf(p) ** j * (1 - mpmath.mpf(p)) ** (size - j) / q
                for j in range(1, size + 1)
            }

            def ratio(x: Any) -> Any:
                return sum(w[j] * mpmath.exp(j * m * x - j * j * m * m / 2) for j in w)

            for one, value in zip(e.tolist(), found.tolist(), strict=True):
                y = mpmath.exp(mpmath.mpf(one))

                def gap(x: Any, y: Any = y) -> Any:
                    return mpmath.log(ratio(x) / y)

                x = mpmath.findroot(gap, one / mu)
                delta = sum(w[j] * mpmath.ncdf(j * m - x) for j in w) - y * mpmath.ncdf(-x)
                exact = delta - max(0, 1 - y)
                assert abs(value / exact - 1) < group.error

    @pytest.mark.slow
    @given(st.integers(2, 6), st.floats(0.01, 0.6), st.floats(0.5, 4.0), st.floats(0.0, 3.0))
    def test_one_release_is_the_integral_of_the_mixture(self, size: int, p: float, z: float, epsilon: float) -> None:
        lower, upper = Pld(group=size).delta_bracket(Ledger.of([z], p), epsilon)
        exact = curve(size, p, z, epsilon)
        assert lower - 1e-9 <= exact <= upper + 1e-9
        assert upper - lower <= 0.02 * exact + 1e-9

    @given(st.integers(2, 12), st.floats(-3, -0.1), st.floats(-2, 0.0), st.floats(0, 1), st.floats(4, 8))
    def test_it_lies_between_its_two_discrete_mechanisms(
        self, size: int, log_p: float, log_mu: float, spread: float, tail: float
    ) -> None:
        group, mu = Group(size, 10**log_p), 10**log_mu * np.array([1.0, 1 + spread])
        ends = group.ends(mu[1], tail + 0.6, tail + 0.6)
        grid = place_grid(mu[0], kappa=0.05, ends=ends)
        above, below = masses_above(grid, mu, group), masses_below(grid, mu, group, tail=tail)
        y = np.r_[0.0, np.exp(grid.e)]
        e = (grid.e[1:] + grid.e[:-1]) / 2
        e = e[np.linspace(0, e.size - 1, 60).astype(int)]
        for row in range(2):
            exact = group.excess(e, mu[row : row + 1])[0] + np.maximum(0.0, -np.expm1(e))
            for masses, side in ((above, 1), (below, -1)):
                found = np.maximum(y[:, None] - np.exp(e), 0.0).T @ masses.q[row] + masses.infinite[row]
                assert (side * (found - exact) >= -1e-11 * (1 + exact)).all()
        assert (below.q >= -1e-13).all()
        assert below.infinite.max() == 0

    @given(st.integers(2, 30), st.floats(-3, -0.1), st.floats(-2, 0.3), st.floats(0.01, 0.5), st.floats(-6, 6))
    def test_curves_are_convex_in_the_total_variation_of_the_bend(
        self, size: int, log_p: float, log_mu: float, step: float, place: float
    ) -> None:
        """On which mixtures of nodes stand: at every loss, between any two mu."""
        from decrescendo.accounting.pld.interpolation import variation

        group, mu = Group(size, 10**log_p), 10**log_mu * np.array([1.0, 1 + step / 2, 1 + step])
        values = group.excess(np.array([place * mu[0]]), mu)[:, 0]
        first, second = variation(group.bend * mu[:-1], group.bend * mu[1:])
        if first + second > 1e-12:
            chord = (values[0] * second + values[2] * first) / (first + second)
            assert values[1] <= chord * (1 + 1e-9)


class TestRuns:
    @pytest.mark.parametrize(
        ("ledger", "size"),
        [
            (Ledger([Release(0.02, 1.0, 50)]), 3),
            pytest.param(Ledger([Release(0.02, 1.0, 50)]), 10, marks=pytest.mark.slow),
            (Ledger([Release(0.01, 4.0, 300), Release(0.02, 3.0, 100)]), 5),
            pytest.param(Ledger.of(np.linspace(1.4, 1.1, 5), np.linspace(0.01, 0.02, 5)), 2, marks=pytest.mark.slow),
        ],
    )
    def test_the_bracket_holds_what_dp_accounting_says_step_by_step(self, ledger: Ledger, size: int) -> None:
        lower, upper = Pld(group=size).bracket(ledger, 1e-5)
        theirs = composed_elsewhere(ledger, size, 1e-5, upper / 2_000)
        assert lower <= theirs * (1 + 1e-9)
        assert upper <= theirs * (1 + 2e-3)
        assert upper - lower <= 1e-3 * upper
        # Their rounding is upwards, and of second order: what is twice as coarse shows three times of it.
        coarse = composed_elsewhere(ledger, size, 1e-5, upper / 1_000)
        assert upper >= theirs - (coarse - theirs)

    @pytest.mark.slow
    def test_their_own_mixture_agrees(self) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        weights = binom.pmf(np.arange(3), 2, 0.1).tolist()
        theirs = pld.from_mixture_gaussian_mechanism(
            2.0, [0.0, 1.0, 2.0], weights, value_discretization_interval=5e-3
        ).self_compose(4)
        lower, upper = Pld(group=2).bracket(Ledger([Release(0.1, 2.0, 4)]), 1e-5)
        assert lower <= theirs.get_epsilon_for_delta(1e-5) <= upper * 1.01

    def test_a_group_of_one_is_one_record_bit_for_bit(self) -> None:
        ledger = Ledger.of(np.linspace(2.0, 1.5, 30), 0.05)
        assert Pld(group=1) == Pld()
        assert Pld(group=1).bracket(ledger, 1e-5) == Pld().bracket(ledger, 1e-5)

    def test_everybody_taking_part_is_a_gaussian_of_k_times_the_sensitivity(self) -> None:
        lower, upper = Pld(group=3).bracket(Ledger.of([4.0, 5.0], 1.0), 1e-5)
        truth = epsilon_of(1e-5, 3 * math.hypot(1 / 4, 1 / 5))
        assert lower <= truth <= upper <= truth * 1.001

    def test_a_release_without_noise_lays_a_person_open_k_times_as_often(self) -> None:
        lower, upper = Pld(group=4).delta_bracket(Ledger.of([0.0], 0.1), 1.0)
        assert lower <= 1 - 0.9**4 <= upper <= (1 - 0.9**4) * (1 + 1e-9)
        assert Pld(group=2).bracket(Ledger(), 1e-5) == (0.0, 0.0)

    @pytest.mark.slow
    def test_many_rates_are_rounded_to_the_safe_side(self) -> None:
        """A bracket of at most a hundredth, which holds the runs at rates that are all a little larger, or smaller."""
        t = np.linspace(0, 1, 60)
        ledger = Ledger.of(1.4 - 0.3 * t, 0.004 * (1 + t))
        lower, upper = Pld(group=3).bracket(ledger, 1e-6)
        assert 0 < upper - lower <= 1e-2 * upper
        # Ten rates are few enough to be taken as they are.
        for side, end in ((1, lower), (-1, upper)):
            stairs = 0.004 * (1 + (np.floor if side < 0 else np.ceil)(t * 10) / 10)
            own = Pld(group=3).bracket(Ledger.of(1.4 - 0.3 * t, stairs), 1e-6)
            assert side * (own[1] - end) >= 0

    @given(
        st.lists(st.floats(0.8, 4.0), min_size=1, max_size=5),
        st.floats(0.005, 0.3), st.integers(2, 5), st.floats(1.05, 2.0), st.integers(2, 20),
    )  # fmt: skip
    @settings(max_examples=2)
    def test_laws(self, noise: list[float], rate: float, size: int, more: float, count: int) -> None:
        """More noise, a smaller rate and a smaller group never cost more; splitting changes nothing."""
        z, judge = np.array(noise), Pld(group=size)
        ledger = Ledger([Release(rate, one, count) for one in noise])
        lower, upper = judge.bracket(ledger, 1e-6)
        for less in (
            judge.bracket(ledger.with_noise(lambda z: more * z), 1e-6),
            judge.bracket(ledger.with_rates(lambda p: p / more), 1e-6),
            Pld(group=size - 1).bracket(ledger, 1e-6),
        ):
            assert less[0] <= upper
        split = Ledger.of(np.repeat(z, count), rate)
        again = judge.bracket(split, 1e-6)
        assert again[0] <= upper
        assert lower <= again[1]
        # A group of two or more has one record at least.
        assert upper >= Pld().bracket(ledger, 1e-6)[0]

    def test_what_loses_more_than_is_accounted_is_refused(self) -> None:
        with pytest.raises(AccountingError, match="for a group of 40"):
            Pld(group=40).bracket(Ledger.of([0.5] * 3, 0.9), 1e-5)
        with pytest.raises(InvalidValue, match="group must be >= 1"):
            Pld(group=0)


class TestStatistics:
    def test_counting_one_example_would_be_false_and_an_attacker_shows_it(self) -> None:
        """The likelihood-ratio test of one person's five rows, many runs: above the curve of one example, below the
        group's. Power: had the noise of the runs been three tenths larger, the first would not be seen."""
        size, p, z, runs, epsilon = 5, 0.2, 2.0, 200_000, 0.7
        rng = np.random.default_rng(5)

        def losses(noise: float, *, taken: bool) -> np.ndarray:
            drawn = rng.binomial(size, p, runs) if taken else np.zeros(runs)
            x = drawn + noise * rng.standard_normal(runs)
            j = np.arange(size + 1)[:, None]
            return np.log(binom.pmf(j, size, p).T @ np.exp((2 * j * x - j**2) / (2 * z**2)))[0]

        def attacked(noise: float) -> float:
            """A lower bound on delta(epsilon), 4 standard deviations below what was counted."""
            true, false = (float(np.mean(losses(noise, taken=t) > epsilon)) for t in (True, False))
            spread = math.sqrt((true + math.exp(2 * epsilon) * false) / runs)
            return true - math.exp(epsilon) * false - 4 * spread

        ledger = Ledger.of([z], p)
        assert attacked(z) > Pld().delta(ledger, epsilon).value
        assert attacked(z) <= Pld(group=size).delta(ledger, epsilon).value
        assert attacked(5 * z) < Pld().delta(ledger, epsilon).value


class TestBudgets:
    people = Budget(2.0, 1e-5, Unit.PERSON, 3)
    ledger = Ledger([Release(0.02, 2.0, 50)])

    def test_what_is_certified_for_a_person_is_of_all_of_their_examples(self) -> None:
        found = Pld().certify(self.ledger, self.people)
        assert (found.epsilon_lower, found.epsilon) == Pld(group=3).bracket(self.ledger, 1e-5)
        assert found.examples_per_person == 3
        assert "per person with at most 3 examples" in str(found)

    @pytest.mark.parametrize("judge", [Rdp(), GdpClt(), Gaussian(), Truncated(Rdp())])
    def test_accountants_of_one_example_refuse(self, judge: Rdp) -> None:
        with pytest.raises(InvalidValue, match="must protect one example, got a person with at most 3"):
            judge.certify(self.ledger, self.people)

    def test_several_examples_of_something_else_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="examples_per_person must be 1 unless the unit is a person"):
            Budget(1.0, 1e-5, Unit.EXAMPLE, 2)

    def test_the_second_opinion_is_of_the_group_too(self) -> None:
        found = Pld().certify(self.ledger, self.people)
        opinion = verify_epsilon(self.ledger, found, values=4)
        assert opinion.consistent
        assert opinion.lower <= found.epsilon <= opinion.upper * 1.001
        assert opinion.lower >= 0.98 * found.epsilon
        as_example = Pld().certify(self.ledger, Budget(2.0, 1e-5)).epsilon
        assert as_example < opinion.lower
