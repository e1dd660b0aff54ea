"""`Allocated`: what batches cost in which each record takes part once an epoch, at a step of its own fair draw."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from decrescendo.accounting.budget import Bound, Budget, Guarantee, check_one_example
from decrescendo.accounting.gaussian import check_delta, epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.accountant import Pld, upper_delta, upper_epsilon
from decrescendo.accounting.pld.allocation import LEAST_NOISE, Epoch, epoch_masses
from decrescendo.accounting.pld.discretisation import LossGrid, Masses, losses
from decrescendo.accounting.pld.interpolation import exactly
from decrescendo.accounting.pld.transform import Part
from decrescendo.accounting.pld.waves import DIRECTIONS, UNIT
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.rdp import is_trivial, round_down
from decrescendo.errors import AccountingError, check_integer, check_real

_VALUES = 24  # of noise multipliers


@dataclass(frozen=True, slots=True)
class Allocated(Accountant):
    """Upper bounds for random allocation: each record takes part once per epoch, in a step drawn uniformly for it.

    What `pld.allocation` proves, composed over epochs: t releases each, at sample rate 1/t (`Ledger.allocated`). Noise
    may move between epochs and is rounded down onto a few values.

    Args:
        steps_per_epoch: t >= 2, for ledgers that do not say it; ``None``: the ledger must.

    Guarantee: for adding or removing one record, whose bin is independent of the others'. Of a list that is shuffled
        and cut into batches of one size it says nothing: there may be less privacy in it.

    Edge cases: an empty ledger costs 0; noise that moves within an epoch, an epoch that is not whole, Poisson batches
        among epochs, and another sample rate are refused, and noise below some 0.65; where delta is below some 1e-10,
        or steps are few and noise is small, what the grid loses makes epsilon infinite.

    Raises:
        AccountingError: a ledger of anything else.

    >>> epochs = Ledger.of([1.0] * 480, sample_rate=1 / 240).allocated(240)
    >>> print(Allocated().epsilon(epochs, delta=1e-6).shown(3))
    0.585
    """

    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.steps_per_epoch is not None:
            count = check_integer("steps_per_epoch", self.steps_per_epoch, at_least=2)
            object.__setattr__(self, "steps_per_epoch", count)

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Upper bound on epsilon at ``delta``."""
        check_delta(delta)
        epochs = self._epochs(ledger)
        if is_trivial(epochs.allocated(0), self.name):
            return Bound(0.0 if not len(ledger) else math.inf, "upper")
        parts = self._parts(epochs, 1e-4 * delta)
        if max(sum(part.infinite_mass(d) for part in parts) for d in DIRECTIONS) >= delta:
            return Bound(math.inf, "upper")
        return Bound(upper_epsilon(parts, delta), "upper")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Upper bound on delta at ``epsilon``."""
        near = check_real("epsilon", epsilon, at_least=0)
        epochs = self._epochs(ledger)
        if is_trivial(epochs.allocated(0), self.name):
            return Bound(0.0 if not len(ledger) else 1.0, "upper")
        return Bound(upper_delta(self._parts(epochs, 1e-13), near), "upper")

    def least_epsilon(self, ledger: Ledger, delta: float) -> float:
        """Lower bound on epsilon at ``delta``, by an attack that uses only the mean of each epoch's sums.

        That is a Gaussian release of mu = 1/(z sqrt(t)), and epochs compose to mu^2 = sum 1/(z^2 t).

        >>> round(Allocated(240).least_epsilon(Ledger.of([1.0] * 480, sample_rate=1 / 240), 1e-6), 3)
        0.36
        """
        epochs = self._epochs(ledger)
        if not len(epochs) or (epochs.noise_multiplier == 0).any():
            return math.inf if len(epochs) else 0.0
        squares = epochs.count / (epochs.steps_per_epoch * epochs.noise_multiplier) ** 2
        return epsilon_of(check_delta(delta), math.sqrt(float(squares.sum())) * (1 - 1e-12))

    def certify(self, ledger: Ledger, budget: Budget) -> Guarantee:
        """The upper bound at the budget's delta as a guarantee, with `least_epsilon` beside it; of releases that were
        drawn so, and of no others: `epsilon` also says what they would cost if they were."""
        check_one_example(budget, self.name)
        if len(ledger) and not ledger.is_allocated:
            raise AccountingError(
                f"{self.name} promises nothing for Poisson batches, got {ledger}. Draw by RandomAllocation, or take Pld"
            )
        upper, lower = self.epsilon(ledger, budget.delta).value, self.least_epsilon(ledger, budget.delta)
        return Guarantee(upper, budget.delta, budget.unit, self.name, "upper", min(lower, upper))

    def estimate(self, ledger: Ledger, delta: float) -> float:
        """Epsilon to search with: that of Poisson batches of as many records, which is near."""
        epochs = self._epochs(ledger)
        if len(epochs) and 0 < (least := float(epochs.noise_multiplier.min())) < LEAST_NOISE:
            raise AccountingError(
                f"{self.name} accounts noise multipliers from {LEAST_NOISE} up, got noise_multiplier={least:.4g}. Add "
                "noise, or take Poisson batches"
            )
        return Pld().estimate(epochs.allocated(0), delta)

    def _epochs(self, ledger: Ledger) -> Ledger:
        """The ledger, if it is one of whole epochs of one noise multiplier each."""
        t = self.steps_per_epoch
        if not len(ledger):
            return ledger
        if t is not None and (odd := np.flatnonzero(ledger.sample_rate != 1 / t)).size:
            raise AccountingError(
                f"random allocation over {t} steps must have sample_rate=1/{t} at every release, got "
                f"sample_rate={ledger.sample_rate[odd[0]]:g} at release {odd[0] + 1}"
            )
        if t is not None and not ledger.is_allocated:
            ledger = ledger.allocated(t)
        steps, noise = ledger.steps_per_epoch, ledger.noise_multiplier
        if (steps == 0).any() or (t is not None and (steps != t).any()):
            raise AccountingError(
                f"{self.name} accounts records that each take part once an epoch"
                f"{'' if t is None else f' of {t} steps'}, got {ledger}. Pld accounts Poisson batches, and costs of "
                "both kinds of runs add up"
            )
        if ledger.is_cut:
            raise AccountingError(
                f"{self.name} accounts batches of any size only, got {ledger}. Use Truncated, which adds the price"
            )
        starts = np.flatnonzero(np.r_[True, (np.diff(noise) != 0) | (np.diff(steps) != 0)])
        lengths = np.add.reduceat(ledger.count, starts)
        if (broken := np.flatnonzero(lengths % steps[starts])).size:
            at = int(starts[broken[0]])
            raise AccountingError(
                f"random allocation must have noise that is constant within each epoch of {steps[at]} steps, got "
                f"noise_multiplier={noise[at]:g} for {lengths[broken[0]]} steps. "
                "Let it move between epochs, and take whole ones"
            )
        return ledger

    def _parts(self, ledger: Ledger, tail: float) -> list[Part]:
        epochs = ledger.with_noise(lambda noise: round_down(noise, _VALUES)).distinct()
        parts: list[Part] = []
        for release in epochs:
            t = release.steps_per_epoch
            grid, masses = _epoch(t, release.noise_multiplier, tail * t / ledger.steps)
            mixtures = exactly(masses, np.array([release.count // t]))
            parts.append(Part(losses(grid, 1.0), mixtures, 1.0, error=16 * UNIT))  # of its hull
        return parts


@functools.lru_cache(maxsize=64)
def _epoch(steps: int, noise_multiplier: float, tail: float) -> tuple[LossGrid, Masses]:
    """Kept, for a curve asks for the same epochs at many epsilons."""
    return epoch_masses(Epoch.of(steps, noise_multiplier, tail))
