"""A second opinion: the same releases accounted by an independent library, Google's dp-accounting."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.allocated import Allocated
from decrescendo.accounting.budget import Guarantee, rounded
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.mixture import BinomialMixture, composed
from decrescendo.accounting.overflow import left_of
from decrescendo.accounting.rdp import round_down, round_up
from decrescendo.accounting.release import Release
from decrescendo.errors import AccountingError, check_integer

# Even grids of this share of epsilon for so many steps or more: rounding then costs a few parts in ten thousand. It
# costs as a grid's square times the number of steps: of fewer the grid is as much coarser, up to so many times.
_GRID_SHARE, _STEPS, _COARSER = 1 / 8_000, 5_000, 16
# Ends that are further apart hardly test a guarantee.
_WIDE = 1.5
# What dp-accounting's sums may be above the truth, relative: measured 2.4e-11 for one release.
_SUMS = 1e-8
# An epsilon may be below its accountant's word by this share: versions of one accountant differ by less.
TOLERANCE = 1e-3


def check_word(whose: str, given: Guarantee, again: Guarantee) -> None:
    """``given`` says no less than ``again``, the word of the accountant that it names, and calls it the same.

    Raises:
        AccountingError: it does.
    """
    if given.kind != again.kind:
        raise AccountingError(
            f"{whose}'s guarantee must be called what it is, {again.kind} by {again.accountant}, got {given.kind}"
        )
    if given.epsilon < again.epsilon * (1 - TOLERANCE):
        raise AccountingError(
            f"{whose}'s guarantee must not be below what its accountant says, {again}, got "
            f"epsilon={given.epsilon:.6g}. Calibrate again"
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """What the independent library says: epsilon lies in [lower, upper].

    ``upper`` is a bound: noise rounded down, pessimistic grid. It may lie above the guarantee, for it is the end of a
    coarser method. ``lower`` is numerical: noise rounded up, and three times the grid's estimated error taken off.
    ``consistent``: the guarantee is not below ``lower``; one that were would be wrong.

    Of records that each take part once an epoch the library says nothing: ``upper`` is infinite, and ``lower`` is
    `Allocated.least_epsilon`, the closed form of one attack.

    Where records take turns (correlated noise) both ends are of the mechanism that publishes each record's group: its
    delta is the mean over groups, and the guarantee is the upper end of that. One below ``lower`` is not proved.
    """

    lower: float
    upper: float
    guarantee: Guarantee

    @property
    def consistent(self) -> bool:
        """Whether the guarantee can be right."""
        return self.guarantee.epsilon >= self.lower

    def __str__(self) -> str:
        promised, delta = rounded(self.guarantee.epsilon, "up"), rounded(self.guarantee.delta, "up")
        verdict = "consistent with" if self.consistent else "CONTRADICTS"
        if math.isinf(self.upper) and math.isfinite(self.lower):
            return (
                f"whoever sees the mean of each epoch: epsilon at least {rounded(self.lower, 'down')} at "
                f"delta={delta}; {verdict} the guarantee {promised}"
            )
        wide = ""
        if self.consistent and 0 < _WIDE * self.lower < self.upper < math.inf:
            wide = ", which ends so far apart hardly test (noise and sample rates are rounded onto few values)"
        return (
            f"dp-accounting: epsilon in [{rounded(self.lower, 'down')}, {rounded(self.upper, 'up')}] at delta={delta}; "
            f"{verdict} the guarantee {promised}{wide}"
        )


def verify_epsilon(ledger: Ledger, guarantee: Guarantee, *, values: int = 16) -> Verification:
    """Bracket epsilon with dp-accounting's pessimistic PLD, of noise rounded down and of noise rounded up.

    Rounding up alone gives no lower end, because the grid itself rounds: its error is of second order in the step, so
    a grid twice as coarse shows three times of it, and that much is taken off (and 1e-8 of it: dp-accounting adds in
    float64, and a single release has no grid's error that would hide it). Truncated batches are composed as
    `pld.overfull` says; of records that take part once an epoch the lower end is at what truncation leaves of delta if
    the guarantee is right (`truncated.left_of`).

    >>> from decrescendo.accounting.budget import Unit
    >>> ledger = Ledger.of(np.linspace(1.2, 1.0, 50), sample_rate=0.02)
    >>> print(verify_epsilon(ledger, Guarantee(0.5, 1e-5, Unit.EXAMPLE, "Pld", "upper"), values=4))
    dp-accounting: epsilon in [..., ...] at delta=1e-05; CONTRADICTS the guarantee 0.5
    """
    check_integer("values", values, at_least=2)
    if not len(ledger):
        return Verification(0.0, 0.0, guarantee)
    if (ledger.noise_multiplier == 0).any():
        return Verification(math.inf, math.inf, guarantee)
    delta, size = guarantee.delta, guarantee.examples_per_person
    if ledger.is_allocated:
        left = left_of(ledger, delta, guarantee.epsilon)
        least = Allocated().least_epsilon(ledger.cut(1, None), left) if left > 0 else math.inf
        return Verification(least, math.inf, guarantee)
    grid = max(guarantee.epsilon, 1e-3) * _GRID_SHARE * (4 if size > 1 else 1)  # mixtures take longer
    grid *= min(max(1.0, math.sqrt(_STEPS / len(ledger))), _COARSER)
    upper = _compose(_rounded(ledger, values, up=False), grid, delta, size)
    quieter = _rounded(ledger, values, up=True)
    fine, coarse = (_compose(quieter, step, delta, size) for step in (grid, 2 * grid))
    least = fine * (1 - _SUMS) - max(coarse - fine, 0.0)
    return Verification(max(0.0, least), upper, guarantee)


def _rounded(ledger: Ledger, values: int, *, up: bool) -> Ledger:
    # As many pairs as values: few rates keep all of their noise multipliers, of many each keeps two.
    many = np.unique(ledger.sample_rate).size > max(2, values // 2)
    places, own = (max(2, values // 2), 2) if many else (values, values)

    def rounded(noise: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return round_up(noise, own) if up else round_down(noise, own)

    ledger = ledger.with_rates(lambda rates: (round_down if up else round_up)(rates, places))
    result = Ledger()
    for rate in np.unique(ledger.sample_rate):
        rows = ledger.where(ledger.sample_rate == rate).with_noise(rounded)
        result += rows.with_full(lambda full: np.full(full.size, full.min() if up else full.max()))
    return result.distinct()


def _one(release: Release, grid: float) -> Any:
    """One release; of truncated batches the public coin of `pld.overfull`."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def step(noise: float) -> Any:
        return pld.from_gaussian_mechanism(
            standard_deviation=noise, sampling_prob=release.sample_rate, value_discretization_interval=grid
        )

    alone = step(release.noise_multiplier)
    if not release.overflow:
        return alone
    full = min(1.0, release.overflow / release.sample_rate)
    return step(release.noise_multiplier / 2).compute_mixture(alone, full)


def _compose(ledger: Ledger, grid: float, delta: float, size: int) -> float:
    """Of a group of ``size`` records, each release as a mixture over how many of them were drawn; where records take
    turns, the mean over their groups."""
    steps: dict[tuple[float, ...], Any] = {}
    mean: Any = None
    for g in range(ledger.groups):
        run = ledger.turn(g).distinct() if ledger.is_banded else ledger
        whole = _of_run(run, grid, size, steps)
        mean = whole if mean is None else mean.compute_mixture(whole, g / (g + 1))
    try:
        return float(mean.get_epsilon_for_delta(delta)) if len(ledger) else 0.0
    except OverflowError:
        raise AccountingError(
            "dp-accounting must be able to tell epsilon for a second opinion, got a number too large for it"
        ) from None


def _of_run(ledger: Ledger, grid: float, size: int, steps: dict[tuple[float, ...], Any]) -> Any:
    """The composition of a run; ``steps`` keeps what one release is, by its numbers."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = None
    for release in ledger:
        if size > 1:
            mixture = BinomialMixture(size, release.sample_rate, release.noise_multiplier)
            step = composed(mixture, grid, release.count)
        else:
            key = release.sample_rate, release.noise_multiplier, release.overflow
            if key not in steps:
                steps[key] = _one(release, grid)
            step = steps[key].self_compose(release.count)
        total = step if total is None else total.compose(step)
    return pld.identity(grid) if total is None else total
