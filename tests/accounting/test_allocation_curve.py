"""Each record once an epoch, by a bin of its own: upper bounds, and what they do not cover."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

from decrescendo.accounting import Allocated, Pld
from decrescendo.accounting.gaussian import delta_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.allocation import Epoch, epoch_masses
from decrescendo.accounting.pld.discretisation import Masses
from decrescendo.accounting.release import Release
from decrescendo.errors import AccountingError, InvalidValue


def two_bins(z: float, epsilon: float) -> tuple[float, float]:
    """Both hockey-stick divergences of an epoch of two steps, by quadrature over one of them."""
    y, x = math.exp(epsilon), np.linspace(-14 * z, 14 * z, 200_001)
    weight = norm.pdf(x, 0, z) * (x[1] - x[0])
    first = np.exp((x - 0.5) / z**2)  # W_1; then W_2 must be above (below) 2 y - W_1

    def call(strike: np.ndarray) -> np.ndarray:
        """E[(W - strike)_+], W lognormal of mean 1."""
        safe = np.maximum(strike, 1e-300)
        d = (-np.log(safe) + 0.5 / z**2) * z
        return np.where(strike > 0, ndtr(d) - safe * ndtr(d - 1 / z), 1 - strike)

    remove = float(weight @ call(2 * y - first)) / 2
    strike = 2 / y - first
    add = float(weight @ (call(strike) - 1 + strike)) / 2 * y
    return remove, add


def rounding_of(masses: Masses) -> np.ndarray:
    """How far masses may be off by rounding of the slopes whose differences they are."""
    scale = masses.slope_scale[0]
    return 2.0**-48 * (np.r_[0.0, scale] + np.r_[scale, scale[-1]])


class TestOneEpoch:
    @pytest.mark.slow
    @given(st.floats(0.8, 5.0), st.floats(0.0, 2.0))
    def test_two_steps_are_an_integral(self, z: float, epsilon: float) -> None:
        remove, add = two_bins(z, epsilon)
        down, up = Epoch.of(2, z, 1e-13).excess(np.array([-epsilon - 1e-12, epsilon]))
        assert remove - 1e-9 <= up <= remove * 1.01 + 1e-9
        assert add - 1e-9 <= down * math.exp(epsilon) <= add * 1.05 + 1e-8

    @pytest.mark.parametrize("z", [1.0, 3.0])
    def test_one_step_is_a_gaussian(self, z: float) -> None:
        found = Epoch.of(1, z, 1e-13).excess(np.array([0.0, 0.5, 2.0]))
        exact = np.array([delta_of(e, 1 / z) for e in (0.0, 0.5, 2.0)])
        assert (found >= exact).all()
        assert (found <= exact * 1.002 + 1e-12).all()

    @pytest.mark.parametrize(("t", "z"), [(3, 1.0), (40, 1.5), (240, 0.8)])
    def test_many_draws_of_the_ratio_agree(self, t: int, z: float) -> None:
        """Monte Carlo under Q, 5 standard deviations; it would see half a percent of noise missing."""
        rng, n = np.random.default_rng(7), 4_000_000 // t
        ratio = np.exp((rng.standard_normal((n, t)) - 0.5 / z) / z).mean(1)
        e = np.array([-0.05, 0.0, 0.05, 0.2])

        def off(noise: float) -> np.ndarray:
            found = Epoch.of(t, noise, 1e-12).excess(e)
            seen = np.maximum((ratio[:, None] - np.exp(e)) * np.where(e < 0, -1, 1), 0.0)
            return (found - seen.mean(0)) / (seen.std(0) / math.sqrt(n))

        assert np.abs(off(z)).max() < 5
        assert np.abs(off(z * 1.03)).max() > 5

    @pytest.mark.parametrize(("t", "z"), [(8, 1.0), (60, 1.0), (240, 1.5)])
    def test_masses_are_no_less_than_nothing_where_losses_are_largest(self, t: int, z: float) -> None:
        """An excess of 1e-13 was added to 1: rounding made masses of -1e-10, whose tilted sum is no bound."""
        _, masses = epoch_masses(Epoch.of(t, z, 1e-13))
        assert (masses.q[0] >= -rounding_of(masses)).all()
        assert masses.q[0, :9].sum() > 1e3 * rounding_of(masses)[:9].sum()  # so it would be seen

    @pytest.mark.slow
    @given(st.integers(2, 400), st.floats(0.8, 4.0))
    def test_it_is_one_mechanism_and_more_noise_or_steps_never_cost_more(self, t: int, z: float) -> None:
        epoch = Epoch.of(t, z, 1e-12)
        grid, masses = epoch_masses(epoch)
        assert (masses.q[0] >= -rounding_of(masses)).all()
        assert masses.q.sum() == pytest.approx(1, abs=1e-9)
        e = np.array([-0.1, 0.0, 0.1, 0.5])
        here = epoch.excess(e) + np.maximum(0.0, -np.expm1(e))
        y = np.r_[0.0, np.exp(grid.e)]
        joined = np.maximum(y[:, None] - np.exp(e), 0.0).T @ masses.q[0] + masses.infinite[0]
        assert (joined >= here * (1 - 1e-9) - 1e-15).all()  # of its own sum
        for less in (Epoch.of(t, 1.2 * z, 1e-12), Epoch.of(2 * t, z, 1e-12)):
            assert (less.excess(e) + np.maximum(0.0, -np.expm1(e)) <= here * (1 + 2e-3) + 1e-9).all()


class TestRuns:
    def test_an_independent_implementation_brackets_it(self) -> None:
        """PLD_accounting 2.0 (Feldman and Shenfeld), `gaussian_allocation_epsilon_range`: (0.573581, 0.596562)."""
        found = Allocated(240).epsilon(Ledger([Release(1 / 240, 1.0, 480)]), 1e-6)
        assert found.kind == "upper"
        assert 0.573581 <= found.value <= 0.596562

    def test_noise_moves_between_epochs(self) -> None:
        z = np.repeat(np.linspace(1.4, 1.0, 6), 50)
        found = Allocated(50).epsilon(Ledger.of(z, 1 / 50), 1e-6).value
        ends = [Allocated(50).epsilon(Ledger.of([end] * 300, 1 / 50), 1e-6).value for end in (1.4, 1.0)]
        assert ends[0] < found < ends[1]
        again = Allocated(50).epsilon(Ledger([Release(1 / 50, one, 50) for one in z[::50]]), 1e-6).value
        assert again == found
        assert Allocated(50).delta(Ledger.of(z, 1 / 50), found).value == pytest.approx(1e-6, rel=0.05)

    @given(st.integers(5, 60), st.floats(1.0, 4.0), st.integers(1, 10), st.floats(1.1, 2.0))
    @settings(max_examples=6)
    def test_laws(self, t: int, z: float, epochs: int, more: float) -> None:
        """More noise and fewer epochs never cost more; two halves are the whole."""
        judge, ledger = Allocated(t), Ledger([Release(1 / t, z, t * epochs)])
        here = judge.epsilon(ledger, 1e-5).value * (1 + 2e-3)
        assert judge.epsilon(ledger.with_noise(lambda z: more * z), 1e-5).value <= here
        assert here <= judge.epsilon(ledger + ledger, 1e-5).value * (1 + 2e-3)
        parts = Ledger([Release(1 / t, z, t)] * epochs)
        assert judge.epsilon(parts, 1e-5).value == judge.epsilon(ledger, 1e-5).value

    def test_noise_that_moves_within_an_epoch_and_broken_epochs_are_refused(self) -> None:
        judge = Allocated(10)
        for ledger, says in (
            (Ledger.of(np.linspace(2, 1, 20), 0.1), "constant within each epoch of 10 steps"),
            (Ledger.of([1.0] * 15, 0.1), "for 15 steps"),
            (Ledger.of([1.0] * 20, 0.2), r"sample_rate=1/10 at every release, got sample_rate=0\.2"),
            (Ledger.of([0.05] * 20, 0.1), "ratios that one grid holds"),
        ):
            with pytest.raises(AccountingError, match=says):
                judge.epsilon(ledger, 1e-5)
        with pytest.raises(InvalidValue, match="steps_per_epoch must be >= 2"):
            Allocated(1)
        assert judge.epsilon(Ledger(), 1e-5).value == 0
        assert judge.epsilon(Ledger.of([0.0] * 10, 0.1), 1e-5).value == math.inf


class TestWhatItIsNot:
    """A likelihood-ratio test of one record among n that pull the other way, over many epochs of simulated sums."""

    t, z, size, epsilon, runs = 12, 1.0, 4, 1.0, 60_000

    def shown(self, kind: str, *, present: bool, rng: np.random.Generator) -> np.ndarray:
        """Sums of an epoch: others pull by -1, the record by +1."""
        t, others = self.t, self.t * self.size - 1
        sums = self.z * rng.standard_normal((self.runs, t))
        if kind == "allocated":
            sums -= rng.multinomial(others, np.full(t, 1 / t), self.runs)
            if present:
                sums[np.arange(self.runs), rng.integers(t, size=self.runs)] += 1
        else:  # a list that is shuffled and cut: without the record the last batch has one row less
            sums -= self.size
            if present:
                sums[np.arange(self.runs), rng.integers(t, size=self.runs)] += 2
            else:
                sums[:, -1] += 1
        return sums

    def least_delta(self, kind: str) -> float:
        """delta(1) that the best test of the shuffled kind shows, 4 standard deviations below what was counted."""
        rng = np.random.default_rng(3)

        def evidence(sums: np.ndarray) -> np.ndarray:
            x = sums + self.size
            return (
                logsumexp((4 * x - 4) / (2 * self.z**2), axis=1)
                - math.log(self.t)
                - (2 * x[:, -1] - 1) / (2 * self.z**2)
            )

        true, false = (evidence(self.shown(kind, present=p, rng=rng)) > self.epsilon for p in (True, False))
        share, alarms = float(true.mean()), float(false.mean())
        spread = math.sqrt((share + math.exp(2 * self.epsilon) * alarms) / self.runs)
        return share - math.exp(self.epsilon) * alarms - 4 * spread

    def test_a_shuffled_list_sold_as_allocation_is_caught_and_allocation_is_not(self) -> None:
        ledger = Ledger.of([self.z] * self.t, 1 / self.t)
        promised = Allocated(self.t).delta(ledger, self.epsilon).value
        assert self.least_delta("shuffled") > 2 * promised
        assert self.least_delta("allocated") <= promised

    def test_allocation_counted_as_poisson_would_be_false(self) -> None:
        """Somebody who surely takes part can be seen where one who may have stayed away cannot: exactly, of two steps
        with little noise."""
        ledger = Ledger.of([0.4] * 2, 1 / 2)
        exact, _ = two_bins(0.4, 1.0)
        assert exact > 1.1 * Pld().delta(ledger, 1.0).value
