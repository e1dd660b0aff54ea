"""`Pld`: epsilon of thousands of different steps, between two certified ends.

Longer than most files: both ends, both directions and both questions (epsilon, delta) go through one search.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import brentq
from scipy.special import erf, ndtri

from decrescendo.accounting.budget import Bound, Budget, Guarantee
from decrescendo.accounting.gaussian import Gaussian, check_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.discretisation import Curves, OneRecord, losses
from decrescendo.accounting.pld.groups import Group
from decrescendo.accounting.pld.interpolation import (
    Mixtures,
    Nodes,
    build_nodes,
    mixtures_above,
    mixtures_below,
)
from decrescendo.accounting.pld.inversion import Inversion, Saddle, choose_grid, saddle
from decrescendo.accounting.pld.overfull import Overfull
from decrescendo.accounting.pld.rates import Cell, cells
from decrescendo.accounting.pld.single import delta_of_one, epsilon_of_one
from decrescendo.accounting.pld.transform import Part
from decrescendo.accounting.pld.turns import Turns
from decrescendo.accounting.pld.waves import DIRECTIONS, Direction
from decrescendo.accounting.protocol import check_poisson
from decrescendo.accounting.release import Release
from decrescendo.base.one_thread import one_blas_thread
from decrescendo.errors import AccountingError, check_integer, check_real


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a bracket costs: nodes of mu a sample rate, sample rates and cells of them, grid (kappa), smoothing.

    ``smoothing``: the relative epsilon that it may cost.
    """

    nodes: int
    rates: int
    kappa: float
    smoothing: float

    def refined(self, excess: float) -> "_Effort":
        """For a bracket ``excess`` > 1 times as wide as it may be: what nodes and cells add falls as their square."""
        finer = min(2.0, max(1.25, 1.15 * math.sqrt(excess)))
        return _Effort(
            math.ceil(self.nodes * finer),
            math.ceil(self.rates * finer),
            self.kappa / 1.6,
            self.smoothing / 2.5,
        )


_PILOT = _Effort(nodes=24, rates=16, kappa=0.08, smoothing=2e-3)
_REFINEMENTS = 3
_SMOOTHING = 1.8e-4
_SMALLEST_WIDTH = 1e-7
_OF_RATES, _CELLS = 1e-2, 12  # of a group
_WIDE = 0.4  # times as many cells, for each factor e of rates, of one record
_BOTH, _APART = 1.25, 0.2  # times as many cells where the noise moves by more than so many factors e, too
_OF_NODES = (0.8, 1.6)  # of the nodes that a cell has where all its steps' mu are as far apart as the run's
_SKIPPED = 5  # one point of a curve in so many has an inversion of its own
_LARGE = 600.0  # an epsilon whose exponential is near the end of the floats
_OF_A_CURVE = 1e-9  # the least delta that a whole curve is sharp at
_OVERFLOWS = 4  # of one sample rate that are told from each other; of more the largest stands for all


@dataclass(frozen=True, slots=True)
class _Group:
    """All steps of one sample rate, or of one cell of rates: distinct mu, ascending, how often each, their nodes; the
    ledger's rows, and the place of each row's mu."""

    mu: Float[np.ndarray, " n"]
    count: Int[np.ndarray, " n"]
    nodes: Nodes
    nodes_below: Nodes
    rows: Int[np.ndarray, " m"]
    place: Int[np.ndarray, " m"]
    cell: Cell | None = None

    def above(self) -> Part:
        """What dominates the steps."""
        return self._part(self.nodes, mixtures_above(self.nodes, self.mu, self.count))

    def below(self) -> Part:
        """What the steps dominate, and for a cell the gap besides."""
        mixtures = mixtures_below(self.nodes_below, self.mu, self.count)
        return self._part(self.nodes_below, mixtures, tangent=self.cell is not None)

    def _part(self, nodes: Nodes, mixtures: Mixtures, *, tangent: bool = False) -> Part:
        spread = None if self.cell is None else self.cell.spread(nodes.loss_grid, mixtures)
        rate, error = nodes.curves.rate, nodes.curves.error
        return Part(losses(nodes.loss_grid, rate), mixtures, rate, spread, tangent, error)

    def counted(self, part: Part, count: Int[np.ndarray, " rows"]) -> Part:
        """``part`` (`above` or `below`) with other counts of the ledger's rows."""
        own = count[self.rows]
        mixtures = part.mixtures.counted(np.bincount(self.place, weights=own, minlength=self.mu.size).astype(np.int64))
        if self.cell is None or part.spread is None:
            return replace(part, mixtures=mixtures)
        spread = replace(part.spread, moments=replace(self.cell, count=own).moments(mixtures))
        return replace(part, mixtures=mixtures, spread=spread)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A ledger as groups of steps, and what dominates them; ``counts``: where records take turns (`turns`), how often
    each row is in the run of each group of records."""

    groups: tuple[_Group, ...]
    above: Turns
    counts: tuple[Int[np.ndarray, " rows"], ...] = ()

    @classmethod
    def of(cls, ledger: Ledger, delta: float, effort: _Effort, size: int) -> "_Steps":
        """The steps of a distinct ledger, grouped by rate; rates in `cells` where there are many.

        Of a group of several records (``size``) a cell's steps are all taken at its largest rate, and from below at its
        smallest: its curves are not linear in the rate.
        """
        # Cut tails go to infinite losses: a share p of those of P, all of those of Q. Together 1e-5 of delta.
        right, left = (
            float(-ndtri(max(min(1e-5 * delta / mass, 1e-3), 1e-300)))
            for mass in (size * float(ledger.count @ ledger.sample_rate), float(ledger.steps))
        )
        rates = np.unique(ledger.sample_rate)
        span = float(np.log(ledger.noise_multiplier.max() / ledger.noise_multiplier.min()))
        cell: Int[np.ndarray, " n"] | None = None
        if rates.size > effort.rates:
            sampled = ledger.sample_rate < 1  # whoever is always drawn is in no cell
            cell = np.full(len(ledger), -1)
            some = ledger.where(sampled)
            # What cells add to the bracket grows as their width squared; a refinement takes three times as long.
            wide = math.log(some.sample_rate.max() / some.sample_rate.min()) * _WIDE
            more = min(max(1.0, wide), 4.0) * (_BOTH if span > _APART else 1.0)
            number = math.ceil(effort.rates * (more if size == 1 else _CELLS))
            cell[sampled] = cells(some.sample_rate, 1 / some.noise_multiplier, some.count, number)
        groups: list[_Group] = []
        for rows in _split(ledger, cell):
            mu, count, place = 1 / ledger.noise_multiplier[rows][::-1], ledger.count[rows][::-1], None
            several = cell is not None and ledger.sample_rate[rows][0] != ledger.sample_rate[rows][-1]
            numbers = effort.nodes, effort.nodes
            ends = float(ledger.sample_rate[rows].max()), float(ledger.sample_rate[rows].min())
            full = float((ledger.overflow[rows] / ledger.sample_rate[rows]).max())
            alike, source = np.arange(mu.size), np.flatnonzero(rows)[::-1]
            if several or full or ledger.is_banded:
                of_cell = count
                mu, where = np.unique(mu, return_inverse=True)
                alike = where
                count = np.bincount(where, weights=of_cell).astype(np.int64)
                if several and size == 1:
                    place = Cell(ledger.sample_rate[rows][::-1], where, of_cell)
                    ends = place.middle, place.middle
                # An extrapolation is some ten times further off than a mixture.
                if several:
                    share = math.log(mu[-1] / mu[0]) / span if span > 0 else 0.0
                    numbers = tuple(8 + math.ceil(share * part * effort.nodes) for part in _OF_NODES)
            above, below = (
                build_nodes(
                    _curves(end, size, full), mu, count, nodes=number, kappa=effort.kappa, left=left, right=right,
                )
                for number, end in zip(numbers, ends, strict=True)
            )  # fmt: skip
            groups.append(_Group(mu, count, above, below, source, alike, place))
        counts = tuple(np.where(ledger.takes_part(g), ledger.count, 0) for g in range(ledger.groups))
        steps = cls(tuple(groups), Turns.of(()), counts if ledger.is_banded else ())
        return replace(steps, above=steps._turns([group.above() for group in groups]))

    def _turns(self, parts: Sequence[Part]) -> Turns:
        """The run whose groups are ``parts``, or the run of each group of records."""
        if not self.counts:
            return Turns.of(parts)
        each = [
            tuple(group.counted(part, own) for group, part in zip(self.groups, parts, strict=True))
            for own in self.counts
        ]
        return Turns(np.full(len(each), 1 / len(each)), tuple(each))

    def saddles(self, *, delta: float | None = None, epsilon: float | None = None) -> list[Saddle]:
        """Both directions' points at ``delta`` or ``epsilon``: estimates."""
        return [saddle(self.above.cumulants(d), delta=delta, epsilon=epsilon) for d in DIRECTIONS]

    def bounds(self, epsilon: float, delta: float, smoothing: float, *, lower: bool | Direction) -> "_Bounds":
        """Bounds on the privacy curve, sharp near (epsilon, delta); the lower one in the worse direction only, or in
        the one that is asked for."""
        curves: dict[Direction, Inversion] = {}
        for direction in DIRECTIONS:
            grid = choose_grid(self.above, direction, epsilon, delta, smoothing=smoothing)
            curves[direction] = Inversion.of(self.above, direction, grid)
        if lower:
            worse = max(DIRECTIONS, key=lambda d: curves[d].upper(epsilon)) if lower is True else lower
            below = self._turns([group.below() for group in self.groups])
            curves[worse] = curves[worse].with_below(below, worse)
        return _Bounds(tuple(curves.values()))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """delta(epsilon) of a run: the larger of its two directions, each composed on its own."""

    inversions: tuple[Inversion, ...]

    def upper(self, epsilon: float) -> float:
        """The larger upper bound."""
        return max(inversion.upper(epsilon) for inversion in self.inversions)

    def lower(self, epsilon: float) -> float:
        """The larger lower bound."""
        return max(inversion.lower(epsilon) for inversion in self.inversions)

    def epsilons(self, delta: float, near: float) -> tuple[float, float]:
        """(lower, upper): delta(lower) >= delta by `lower` and delta(upper) <= delta by `upper`, each checked."""
        high = _crossing(self.upper, delta, near)
        while 0 < high < math.inf and self.upper(high) > delta:
            high *= 1 + 1e-10
        low = _crossing(self.lower, delta, min(near, high))
        while low > 0 and self.lower(low) < delta:
            low = low * (1 - 1e-10) if low > 1e-12 else 0.0
        return low, high


def _curves(rate: float, size: int, full: float) -> Curves:
    if full:
        return Overfull(rate, min(1.0, full * (1 + 2.0**-50)))
    return OneRecord(rate) if size == 1 or rate == 1 else Group(size, rate)


def _split(ledger: Ledger, cell: Int[np.ndarray, " n"] | None) -> Iterator[Bool[np.ndarray, " n"]]:
    """Rows of one rate each; or, given cells, of one cell each. Those of truncated batches by their overflow, too,
    where there are few of them."""
    key = ledger.sample_rate if cell is None else cell
    for one in np.unique(key):
        rows = key == one
        kinds = np.unique(ledger.overflow[rows]) if cell is None else np.zeros(1)
        if 1 < kinds.size <= _OVERFLOWS:
            yield from (rows & (ledger.overflow == kind) for kind in kinds)
        else:
            yield rows


def _crossing(curve: Callable[[float], float], delta: float, near: float) -> float:
    """Where a falling curve passes ``delta``, searched from ``near``; 0 if it is below already at 0."""

    @functools.cache
    def gap(epsilon: float) -> float:
        return math.log(max(curve(epsilon), 1e-320)) - math.log(delta)

    low, high = near * 0.99, near * 1.01
    while gap(low) < 0:
        if low == 0:
            return 0.0
        low *= 0.7 if low > 1e-6 * near else 0.0
    while gap(high) > 0:
        high *= 1.3
        if high > 1e6:
            return math.inf
    return float(brentq(gap, low, high, xtol=1e-300, rtol=1e-11))


@dataclass(frozen=True, slots=True)
class Pld:
    """Certified accountant for any sequence of Poisson-subsampled Gaussian releases, which may all be different.

    The exact privacy loss distribution is composed between two discrete bounds, in both neighbour directions, each on
    its own; `bracket` gives both ends of epsilon, `epsilon` the upper one. How it works and why both ends are bounds:
    `discretisation` (one step), `interpolation` (thousands of different steps), `transform` (composition), `inversion`
    (back to delta), `rates` (thousands of sample rates). Cost: less than a second for one sample rate, a
    few seconds for any number of them; hardly depending on the number of steps.

    Args:
        rtol: the bracket is at most ``rtol`` times epsilon wide (1e-7 where that is less); 1e-5 to 0.1.
        group: how many records come and go together, at most: all that one person has (`groups`). Where it is above 1
            and there are many sample rates, ``rtol`` is at least 0.01.

    Guarantee: the true epsilon for adding or removing at most ``group`` records lies in the bracket, and the true delta
    in `delta_bracket`, however small it is. Discretisation, truncated
    tails, aliasing and floating point are all bounded on the safe side; the floating-point bounds assume that library
    functions (erfcx, exp, sin, cos) are accurate to a few units in the last place.

    Edge cases: an empty ledger costs 0; a release without noise costs infinity; delta above the total variation of
    the run gives epsilon 0; noise multipliers below 1/12 are refused (their epsilon is around a hundred).

    Raises:
        AccountingError: the bracket stays wider than ``rtol`` asks for (the message has what was reached).

    >>> run = Ledger.of(np.linspace(1.4, 1.1, 5_000), sample_rate=250 / 60_000)
    >>> lower, upper = Pld().bracket(run, delta=1e-6)
    >>> print(f"{upper:.2f}", (upper - lower) / upper < 1e-3)
    1.26 True
    >>> print(f"{Pld(group=3).epsilon(run, delta=1e-6).value:.2f}")
    4.23
    """

    rtol: float = 1e-3
    group: int = 1

    def __post_init__(self) -> None:
        check_real("rtol", self.rtol, at_least=1e-5, at_most=0.1)
        object.__setattr__(self, "group", check_integer("group", self.group, at_least=1))

    @property
    def name(self) -> str:
        """Name in tables and guarantees."""
        return "Pld" if self.group == 1 else f"Pld(group={self.group})"

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Upper end of epsilon at ``delta``."""
        return Bound(self.bracket(ledger, delta)[1], "upper")

    @one_blas_thread()
    def bracket(self, ledger: Ledger, delta: float) -> tuple[float, float]:
        """(lower, upper): the true epsilon at ``delta`` lies between them. Results are cached."""
        self._check(ledger)
        return self._bracket(ledger, check_delta(delta))

    def _check(self, ledger: Ledger) -> None:
        check_poisson(ledger, self.name, turns=True)
        if ledger.is_banded and self.group > 1:
            raise AccountingError(
                f"people with several examples must have runs whose noise is not correlated, got {ledger}: the "
                "examples of one person would have to be in one group. Take bands=1"
            )

    @functools.lru_cache(maxsize=256)  # noqa: B019 - an accountant is a value
    def _bracket(self, ledger: Ledger, delta: float) -> tuple[float, float]:
        noisy, exposed = _simplified(ledger, self.group)
        if exposed[1]:
            return (math.inf if delta < exposed[0] else self._bracket(noisy, delta)[0]), math.inf
        if _total_variation(noisy, self.group) <= delta:
            return 0.0, 0.0
        if _is_one(noisy, self.group):
            return epsilon_of_one(noisy, delta)
        near = _pilot_epsilon(noisy, delta, self.group)
        effort = self._effort()
        # Rates of a group enter rounded, so that the bracket narrows as slowly as their grid.
        rtol = self.rtol
        if self.group > 1 and np.unique(noisy.sample_rate).size > effort.rates:
            rtol = max(rtol, _OF_RATES)
            effort = replace(self, rtol=rtol)._effort()
        best = (0.0, math.inf)
        for _ in range(_REFINEMENTS + 1):
            steps = _Steps.of(noisy, delta, effort, self.group)
            lower, upper = steps.bounds(near, delta, effort.smoothing * near, lower=True).epsilons(delta, near)
            before = best[1] - best[0]
            best = (max(best[0], lower), min(best[1], upper))
            if best[0] > best[1]:
                raise AccountingError(f"bounds must not cross, got {best}; this is a bug, please report it")
            if best[1] - best[0] <= max(rtol * best[1], _SMALLEST_WIDTH):
                return (least_epsilon(noisy, delta), best[1]) if noisy.is_banded else best
            if best[1] - best[0] > 0.8 * before:  # not for lack of effort: rounding, or a grid at its largest
                break
            near = best[1]
            effort = effort.refined((best[1] - best[0]) / max(rtol * best[1], _SMALLEST_WIDTH))
        raise AccountingError(
            f"the bracket of epsilon must be at most rtol={rtol:g} wide, got [{best[0]:.6g}, {best[1]:.6g}] "
            f"(relative width {(best[1] - best[0]) / best[1]:.2g}). Ask for a larger rtol"
        )

    def protecting(self, budget: Budget) -> "Pld":
        """This accountant for all examples of one of whom ``budget`` protects."""
        return replace(self, group=budget.examples_per_person)

    def certify(self, ledger: Ledger, budget: Budget) -> Guarantee:
        """The upper end at the budget's delta as a guarantee, with the lower end beside it."""
        lower, upper = self.protecting(budget).bracket(ledger, budget.delta)
        return Guarantee(upper, budget.delta, budget.unit, "Pld", "upper", lower, budget.examples_per_person)

    @one_blas_thread()
    def estimate(self, ledger: Ledger, delta: float) -> float:
        """Epsilon within a few percent, some ten times faster: for searches and figures, not for a promise.

        >>> Pld().estimate(Ledger(), 1e-5)
        0.0
        """
        self._check(ledger)
        noisy, exposed = _simplified(ledger, self.group)
        if exposed[1]:
            return math.inf
        if _total_variation(noisy, self.group) <= check_delta(delta):
            return 0.0
        if _is_one(noisy, self.group):
            return epsilon_of_one(noisy, delta)[1]
        return _pilot_epsilon(noisy, delta, self.group)

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Upper end of delta at ``epsilon``."""
        return Bound(self.delta_bracket(ledger, epsilon)[1], "upper")

    @one_blas_thread()
    def delta_bracket(self, ledger: Ledger, epsilon: float) -> tuple[float, float]:
        """(lower, upper): the true delta at ``epsilon`` >= 0 lies between them.

        Only for an empty ledger is the upper end 0. Where delta is far below it, that end of a composition is what
        floating point could have lost: some 1e-21.

        >>> Pld().delta_bracket(Ledger(), 1.0)
        (0.0, 0.0)
        """
        self._check(ledger)
        near = check_real("epsilon", epsilon, at_least=0)
        noisy, exposed = _simplified(ledger, self.group)
        if not len(noisy):
            return exposed
        if _is_one(noisy, self.group):
            return _exposed_too(exposed, *delta_of_one(noisy, near))
        lower, upper = _delta_ends(self, noisy, near, lower=True)
        if lower > upper:
            raise AccountingError(f"bounds must not cross, got {lower, upper}; this is a bug, please report it")
        if noisy.is_banded:
            lower = least_delta(noisy, near)
        return _exposed_too(exposed, lower, upper)

    def _effort(self) -> _Effort:
        scale = math.sqrt(self.rtol / 1e-3)
        return _Effort(
            nodes=math.ceil(96 / scale),
            rates=math.ceil(40 / scale),
            kappa=min(0.018 * scale, 0.1),
            smoothing=_SMOOTHING * scale**2,
        )


def _simplified(ledger: Ledger, group: int) -> tuple[Ledger, tuple[float, float]]:
    """The releases that have noise, and bounds on the probability that one that has none exposes a record.

    Distinct and sorted; those that everybody takes part in become one, by exact composition, and a group in it one
    record of ``group`` times the sensitivity. Where records take turns, for each group of records by itself.
    """
    if ledger.is_banded:
        each = [_simplified(ledger.turn(g), group) for g in range(ledger.groups)]
        runs = [noisy.in_turn(ledger.groups, g) for g, (noisy, _) in enumerate(each)]
        ends = np.mean([exposed for _, exposed in each], axis=0) * [1 - 2.0**-45, 1 + 2.0**-45]
        return functools.reduce(Ledger.__add__, runs).distinct(), (float(ends[0]), min(1.0, float(ends[1])))
    distinct = ledger.distinct()
    bare = distinct.noise_multiplier == 0
    full = distinct.sample_rate == 1
    noisy = distinct.where(~bare & ~full)
    if (full & ~bare).any():
        always = distinct.where(full & ~bare)
        # Whoever is always drawn, into batches that are full, always takes another one's place.
        doubled = np.where(always.overflow > 0, 2.0, 1.0)
        mu = group * Gaussian().mu(always.cut(1, None).with_noise(lambda z: z / doubled))
        noisy += Ledger([Release(1.0, min(1 / mu, sys.float_info.max))])
    return noisy, _exposed(distinct.where(bare), group)


def _exposed(bare: Ledger, group: int) -> tuple[float, float]:
    """(lower, upper) of 1 - prod (1 - p)^(group count): the probability that one without noise has some record."""
    if not len(bare) or (bare.sample_rate == 1).any():
        return (1.0, 1.0) if len(bare) else (0.0, 0.0)
    value = -math.expm1(group * float(bare.count @ np.log1p(-bare.sample_rate)))
    # All terms have one sign: a sum of n is off by n units, relatively, and expm1 makes no relative error larger.
    slack = (len(bare) + 16) * 2.0**-52
    return value * (1 - slack), min(1.0, value * (1 + slack))


def _exposed_too(exposed: tuple[float, float], lower: float, upper: float) -> tuple[float, float]:
    """Bounds on delta when, besides, a record is laid open with probability ``exposed``.

    At most q + (1 - q) delta, by convexity of the curve. Written so because every term is positive: nothing cancels,
    and a sum that is q or delta alone stays above it. (1 - (1 - q)(1 - delta) lost delta below 1e-16.)
    """
    if not exposed[1]:
        return lower, upper
    return max(exposed[0], lower), min(1.0, (exposed[1] + (1 - exposed[1]) * upper) * (1 + 2.0**-50))


def _total_variation(ledger: Ledger, group: int) -> float:
    """An upper bound on delta at epsilon 0: the sum of the steps' total variations, for each record, and at most 1
    where it takes another one's place."""
    with np.errstate(divide="ignore", over="ignore"):
        variation = erf(1 / (math.sqrt(8) * ledger.noise_multiplier))
    each = ledger.sample_rate * variation + ledger.overflow
    return float((1 + 1e-12) * group * np.sum(ledger.count * each)) / ledger.groups


def _is_one(noisy: Ledger, group: int) -> bool:
    """Whether it is one release of one record, which has a closed form."""
    return noisy.steps == 1 and group == 1 and not noisy.is_banded


@functools.lru_cache(maxsize=4)  # what a search has settled on is certified next
def _pilot_epsilon(ledger: Ledger, delta: float, group: int) -> float:
    """Epsilon within a few percent: the upper end of a coarse bracket; never below a thousandth of its scale."""
    return _near(_Steps.of(ledger, delta, _PILOT, group), delta)


def _near(steps: _Steps, delta: float) -> float:
    points = steps.saddles(delta=delta)
    smallest = 1e-3 / min(point.c for point in points)
    epsilon = max(smallest, *(point.epsilon for point in points))
    for _ in range(8):
        found = _crossing(steps.bounds(epsilon, delta, _PILOT.smoothing * epsilon, lower=False).upper, delta, epsilon)
        if found <= smallest or abs(found / epsilon - 1) < 0.1:
            return max(found, smallest)
        epsilon = found
    return epsilon


@one_blas_thread()
def upper_epsilon(parts: Sequence[Part], delta: float) -> float:
    """Epsilon at ``delta`` of the composition of ``parts``, at most."""
    steps = _Steps((), Turns.of(parts))
    near = _near(steps, delta)
    if not math.isfinite(near):
        return math.inf
    return steps.bounds(near, delta, _SMOOTHING * near, lower=False).epsilons(delta, near)[1]


@one_blas_thread()
def upper_delta(parts: Sequence[Part], epsilon: float) -> float:
    """Delta at ``epsilon`` of the composition of ``parts``, at most."""
    steps = _Steps((), Turns.of(parts))
    points = steps.saddles(epsilon=epsilon)
    guess = min(0.5, math.exp(max(-600.0, *(point.log_delta for point in points))))
    scale = max(epsilon, 0.1 / min(point.c for point in points))
    return max(steps.bounds(epsilon, guess, _SMOOTHING * scale, lower=False).upper(epsilon), 1e-300)


@one_blas_thread()
@functools.lru_cache(maxsize=256)
def truncated_epsilon(accountant: Pld, ledger: Ledger, delta: float) -> float:
    """Epsilon at ``delta`` of truncated batches (`overfull`), at most. Kept, as brackets are."""
    noisy, exposed = _simplified(ledger, 1)
    if exposed[1]:
        return math.inf
    if _total_variation(noisy, 1) <= delta:
        return 0.0
    near = _pilot_epsilon(noisy, delta, 1)
    effort = accountant._effort()
    steps = _Steps.of(noisy, delta, effort, 1)
    return steps.bounds(near, delta, effort.smoothing * near, lower=False).epsilons(delta, near)[1]


@one_blas_thread()
def truncated_estimate(ledger: Ledger, delta: float) -> float:
    """Epsilon at ``delta`` of truncated batches within a few percent, to search with."""
    noisy, exposed = _simplified(ledger, 1)
    if exposed[1]:
        return math.inf
    return 0.0 if _total_variation(noisy, 1) <= delta else _pilot_epsilon(noisy, delta, 1)


@one_blas_thread()
def truncated_delta(accountant: Pld, ledger: Ledger, epsilon: float) -> float:
    """Delta at ``epsilon`` of truncated batches, at most."""
    noisy, exposed = _simplified(ledger, 1)
    if not len(noisy):
        return exposed[1]
    return _exposed_too(exposed, *_delta_ends(accountant, noisy, epsilon, lower=False))[1]


def _delta_ends(accountant: Pld, ledger: Ledger, epsilon: float, *, lower: bool) -> tuple[float, float]:
    """(lower, upper) of delta at ``epsilon``: first roughly, then where the first upper end says; lower 0 unless asked
    for."""
    low, high = 0.0, 1e-9
    for effort in (_PILOT, accountant._effort()):
        steps = _Steps.of(ledger, high, effort, accountant.group)
        points = steps.saddles(epsilon=epsilon)
        if effort is _PILOT:
            high = min(0.5, math.exp(max(-600.0, *(point.log_delta for point in points))))
        scale = max(epsilon, 0.1 / min(point.c for point in points))
        both = lower and effort is not _PILOT
        bounds = steps.bounds(epsilon, high, effort.smoothing * scale, lower=both)
        low, high = bounds.lower(epsilon) if both else 0.0, max(bounds.upper(epsilon), 1e-300)
    return low, high


def least_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon at ``delta`` where records take turns, at least; see `turns` for the attack."""
    whole = delta * ledger.groups
    if whole >= 1 or not len(ledger):
        return 0.0
    steps, near = _of_worst_turn(ledger, whole, None)
    lower = steps.bounds(near, whole, _PILOT.smoothing * near, lower="remove").lower
    found = _crossing(lower, whole, near)
    while found > 0 and lower(found) < whole:
        found = found * (1 - 1e-9) if found > 1e-12 else 0.0
    if found > _LARGE:  # the same but for exp(-found)
        return (found - math.log(ledger.groups)) * (1 - 1e-12)
    return math.log1p(math.expm1(found) / ledger.groups) * (1 - 1e-12)


def least_delta(ledger: Ledger, epsilon: float) -> float:
    """Delta at ``epsilon`` where records take turns, at least."""
    if epsilon > _LARGE:
        own = (epsilon + math.log(ledger.groups)) * (1 + 1e-12)
    else:
        own = math.log1p(ledger.groups * math.expm1(epsilon)) * (1 + 1e-12)
    steps, near = _of_worst_turn(ledger, None, own)
    lower = steps.bounds(own, near, _PILOT.smoothing * max(own, 1e-3), lower="remove").lower(own)
    return lower / ledger.groups * (1 - 1e-12)


def _of_worst_turn(ledger: Ledger, delta: float | None, epsilon: float | None) -> tuple[_Steps, float]:
    """The run of the group of records that spends most, and the epsilon or delta that goes with the other."""
    with np.errstate(over="ignore"):
        cost = ledger.count * ledger.sample_rate**2 * np.expm1(np.minimum(ledger.noise_multiplier**-2.0, 600.0))
    worst = max(range(ledger.groups), key=lambda g: float(cost[ledger.takes_part(g)].sum()))
    run = ledger.turn(worst)
    if delta is not None:
        return (steps := _Steps.of(run, delta, _PILOT, 1)), _near(steps, delta)
    steps = _Steps.of(run, 1e-9, _PILOT, 1)
    return steps, min(0.5, math.exp(max(-600.0, *(p.log_delta for p in steps.saddles(epsilon=epsilon)))))


@one_blas_thread()
def upper_deltas(accountant: Pld, ledger: Ledger, epsilons: Sequence[float]) -> list[float]:
    """Delta at each of ``epsilons``, at most: one after the other of the same discrete mechanisms, for whole curves of
    batches that are truncated or not. What is below some 1e-12 is not told from it."""
    noisy, exposed = _simplified(ledger, accountant.group)
    if not len(noisy):
        return [exposed[1]] * len(epsilons)
    if _is_one(noisy, accountant.group) and not noisy.is_cut:
        return [_exposed_too(exposed, *delta_of_one(noisy, epsilon))[1] for epsilon in epsilons]
    effort = accountant._effort()
    rough, fine = (_Steps.of(noisy, _OF_A_CURVE, one, accountant.group) for one in (_PILOT, effort))
    best = np.ones(len(epsilons))
    for epsilon in epsilons[::_SKIPPED]:  # what is sharp at one point is a bound at all, and sharp beside it
        points = rough.saddles(epsilon=epsilon)
        near = min(0.5, math.exp(max(math.log(_OF_A_CURVE), *(point.log_delta for point in points))))
        scale = max(epsilon, 0.1 / min(point.c for point in points))
        bounds = fine.bounds(epsilon, near, effort.smoothing * scale, lower=False)
        best = np.minimum(best, [bounds.upper(one) for one in epsilons])
    return [_exposed_too(exposed, 0.0, max(upper, 1e-300))[1] for upper in best.tolist()]
