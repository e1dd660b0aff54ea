"""`Pld`: epsilon of thousands of different steps, between two certified ends."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.pld.inversion import Grid, Inversion, Saddle, choose_grid, saddle
from decrescendo.accounting.pld.sandwich import losses
from decrescendo.accounting.pld.segments import build_nodes, mixtures_above, mixtures_below
from decrescendo.accounting.pld.transform import DIRECTIONS, Cumulants, Direction, Part
from decrescendo.budget import Bound
from decrescendo.errors import AccountingError, check_instance, check_real
from decrescendo.ledger import Ledger


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a bracket costs: nodes a sample rate, dots (kappa), and the relative epsilon that smoothing may cost."""

    nodes: int
    kappa: float
    smoothing: float

    def refined(self) -> "_Effort":
        return _Effort(self.nodes * 2, self.kappa / 1.6, self.smoothing / 2.5)


_PILOT = _Effort(nodes=24, kappa=0.08, smoothing=2e-3)
_REFINEMENTS = 3
_SMALLEST_WIDTH = 1e-7


@dataclass(frozen=True, slots=True)
class _Steps:
    """A ledger as dominating and dominated mechanisms, one part a sample rate."""

    above: tuple[Part, ...]
    below: tuple[Part, ...]

    @classmethod
    def of(cls, ledger: Ledger, delta: float, effort: _Effort) -> "_Steps":
        mass = float(ledger.count @ ledger.sample_rate)
        tail = float(-ndtri(max(min(1e-5 * delta / mass, 1e-3), 1e-300)))
        above: list[Part] = []
        below: list[Part] = []
        for rate in np.unique(ledger.sample_rate):
            rows = ledger.sample_rate == rate
            mu, count = 1 / ledger.noise_multiplier[rows][::-1], ledger.count[rows][::-1]
            nodes = build_nodes(mu, count, nodes=effort.nodes, kappa=effort.kappa, tail=tail)
            loss = losses(nodes.dots, float(rate))
            above.append(Part(loss, mixtures_above(nodes, mu, count), float(rate)))
            below.append(Part(loss, mixtures_below(nodes, mu, count), float(rate)))
        return cls(tuple(above), tuple(below))

    def saddle(self, *, delta: float | None = None, epsilon: float | None = None) -> tuple[Direction, Saddle]:
        """The worse direction and its point at ``delta`` or at ``epsilon``."""
        points = {d: saddle(Cumulants(self.above, d), delta=delta, epsilon=epsilon) for d in DIRECTIONS}
        badness = {d: point.epsilon if epsilon is None else point.log_delta for d, point in points.items()}
        worst = max(DIRECTIONS, key=lambda direction: badness[direction])
        return worst, points[worst]

    def invert(self, grid: Grid) -> "_Bounds":
        return _Bounds(tuple(Inversion.of(self.above, self.below, direction, grid) for direction in DIRECTIONS))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """delta(epsilon) of a run: the larger of its two directions, each composed on its own."""

    inversions: tuple[Inversion, ...]

    def upper(self, epsilon: float) -> float:
        return max(inversion.upper(epsilon) for inversion in self.inversions)

    def lower(self, epsilon: float) -> float:
        return max(inversion.lower(epsilon) for inversion in self.inversions)

    def epsilons(self, delta: float, near: float) -> tuple[float, float]:
        """(lower, upper): delta(lower) >= delta by `lower` and delta(upper) <= delta by `upper`, each checked."""
        high = _crossing(self.upper, delta, near)
        while high > 0 and self.upper(high) > delta:
            high *= 1 + 1e-10
        low = _crossing(self.lower, delta, min(near, high))
        while low > 0 and self.lower(low) < delta:
            low = low * (1 - 1e-10) if low > 1e-12 else 0.0
        return low, high


def _crossing(curve: Callable[[float], float], delta: float, near: float) -> float:
    """Where a falling curve passes ``delta``, searched from ``near``; 0 if it is below already at 0."""

    def gap(epsilon: float) -> float:
        return math.log(max(curve(epsilon), 1e-320)) - math.log(delta)

    low, high = near * 0.99, near * 1.01
    while gap(low) < 0:
        if low < 1e-14:
            return 0.0
        low *= 0.7 if low > 1e-6 * near else 0.0
    while gap(high) > 0:
        high *= 1.3
        if high > 1e6:
            return math.inf
    return float(brentq(gap, low, high, xtol=1e-300, rtol=1e-11))


@dataclass(frozen=True, slots=True)
class Pld:
    """Certified accountant for any sequence of Poisson-subsampled Gaussian releases, all of them different if need be.

    The exact privacy loss distribution is composed between two discrete bounds, in both neighbour directions, each on
    its own; `bracket` gives both ends of epsilon, `epsilon` the upper one. How it works and why both ends are bounds:
    `sandwich` (one step), `segments` (thousands of different steps), `transform` (composition), `inversion` (back to
    delta). Cost: about a quarter of a second a sample rate, hardly depending on the number of steps.

    Args:
        rtol: the bracket is at most ``rtol`` times epsilon wide (1e-7 where that is less); 1e-5 to 0.1.

    Guarantee: the true epsilon for adding or removing one record lies in the bracket. Discretisation, truncated
    tails, aliasing and floating point are all bounded on the safe side; the floating-point bounds assume that library
    functions (erfcx, exp, sin, cos) are accurate to a few units in the last place.

    Edge cases: an empty ledger costs 0; a release without noise costs infinity; delta above the total variation of
    the run gives epsilon 0; noise multipliers below 0.04 are refused (their epsilon is in the hundreds).

    Raises:
        AccountingError: the bracket stays wider than ``rtol`` asks for (the message has what was reached).

    >>> run = Ledger.of(np.linspace(1.4, 1.1, 5_000), sample_rate=250 / 60_000)
    >>> lower, upper = Pld().bracket(run, delta=1e-6)
    >>> print(f"{upper:.2f}", (upper - lower) / upper < 1e-3)
    1.19 True
    """

    rtol: float = 1e-3

    def __post_init__(self) -> None:
        check_real("rtol", self.rtol, at_least=1e-5, at_most=0.1)

    @property
    def name(self) -> str:
        """Name in tables and guarantees."""
        return "Pld"

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Upper end of epsilon at ``delta``."""
        return Bound(self.bracket(ledger, delta)[1], "upper")

    def bracket(self, ledger: Ledger, delta: float) -> tuple[float, float]:
        """(lower, upper): the true epsilon at ``delta`` lies between them."""
        check_instance("ledger", ledger, Ledger)
        check_delta(delta)
        noisy, exposed = _without_noiseless(ledger)
        if exposed:
            return (math.inf if delta < exposed else self.bracket(noisy, delta)[0]), math.inf
        if not len(noisy):
            return 0.0, 0.0
        near = _pilot_epsilon(noisy, delta)
        effort = self._effort()
        best = (0.0, math.inf)
        for _ in range(_REFINEMENTS + 1):
            steps = _Steps.of(noisy, delta, effort)
            direction, _ = steps.saddle(delta=delta)
            point = saddle(Cumulants(steps.above, direction), epsilon=near)
            grid = choose_grid(
                steps.above, direction, point.c, near, math.log(delta), smoothing=effort.smoothing * max(near, 1e-3 / point.c)
            )
            lower, upper = steps.invert(grid).epsilons(delta, near)
            best = (max(best[0], lower), min(best[1], upper))
            if best[1] - best[0] <= max(self.rtol * best[1], _SMALLEST_WIDTH):
                return best
            near = best[1]
            effort = effort.refined()
        raise AccountingError(
            f"the bracket of epsilon must be at most rtol={self.rtol:g} wide, got [{best[0]:.6g}, {best[1]:.6g}] "
            f"(relative width {(best[1] - best[0]) / best[1]:.2g}). Ask for a larger rtol"
        )

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Upper end of delta at ``epsilon``."""
        return Bound(self.delta_bracket(ledger, epsilon)[1], "upper")

    def delta_bracket(self, ledger: Ledger, epsilon: float) -> tuple[float, float]:
        """(lower, upper): the true delta at ``epsilon`` >= 0 lies between them.

        >>> Pld().delta_bracket(Ledger(), 1.0)
        (0.0, 0.0)
        """
        check_instance("ledger", ledger, Ledger)
        near = check_real("epsilon", epsilon, at_least=0)
        noisy, exposed = _without_noiseless(ledger)
        if not len(noisy):
            return exposed, exposed
        guess = 1e-9
        for effort in (_PILOT, self._effort()):
            steps = _Steps.of(noisy, guess, effort)
            direction, point = steps.saddle(epsilon=near)
            scale = max(near, 0.1 / point.c)
            log_delta = min(point.log_delta, 0.0) if effort is _PILOT else math.log(guess)
            grid = choose_grid(
                steps.above, direction, point.c, near, log_delta, smoothing=effort.smoothing * scale
            )
            bounds = steps.invert(grid)
            lower, upper = bounds.lower(near), bounds.upper(near)
            guess = max(upper, 1e-300)
        # Noise-free releases expose a sampled record outright, whatever the others do.
        return 1 - (1 - exposed) * (1 - lower), 1 - (1 - exposed) * (1 - upper)

    def _effort(self) -> _Effort:
        scale = math.sqrt(self.rtol / 1e-3)
        return _Effort(nodes=math.ceil(96 / scale), kappa=min(0.022 * scale, 0.1), smoothing=2e-4 * scale**2)


def _without_noiseless(ledger: Ledger) -> tuple[Ledger, float]:
    """The releases that have noise, distinct and sorted, and the probability that another one exposes a record."""
    distinct = ledger.distinct()
    bare = distinct.noise_multiplier == 0
    exposed = -math.expm1(float(np.sum(distinct.count[bare] * np.log1p(-np.minimum(distinct.sample_rate[bare], 1 - 1e-16)))))
    return distinct.where(~bare), exposed if bare.any() else 0.0


def _pilot_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon within a few percent: the upper end of a coarse bracket."""
    steps = _Steps.of(ledger, delta, _PILOT)
    direction, point = steps.saddle(delta=delta)
    epsilon = max(point.epsilon, 1e-3 / point.c)
    point = saddle(Cumulants(steps.above, direction), epsilon=epsilon)
    for _ in range(3):
        grid = choose_grid(
            steps.above, direction, point.c, epsilon, math.log(delta), smoothing=_PILOT.smoothing * epsilon
        )
        found = _crossing(steps.invert(grid).upper, delta, epsilon)
        if found < 1e-3 / point.c or abs(found / epsilon - 1) < 0.1:
            return max(found, 1e-3 / point.c)
        epsilon = found
        point = saddle(Cumulants(steps.above, direction), epsilon=epsilon)
    return epsilon
