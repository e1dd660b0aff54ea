"""Moment-generating functions of composed privacy losses, at complex arguments, with error bounds.

For one direction (*remove*: losses of P against Q under P; *add*: of Q against P under Q) and s = c + iv,

    remove: M(s) = prod_t sum_j q_tj exp((1 + s) l_j),      add: M(s) = prod_t sum_j q_tj exp(-s l_j),

over finite losses l_j; mass at infinite loss is kept apart. Losses of a direction are never mixed with the other's.

Longer than most files: a sum, its series and their errors are one argument.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Complex, Float, Int, Shaped
from scipy.special import log1p  # NumPy's loses small complex arguments

from decrescendo.accounting.pld.discretisation import CURVE_ERROR
from decrescendo.accounting.pld.interpolation import ORDER, Mixtures
from decrescendo.accounting.pld.rates import Spread
from decrescendo.accounting.pld.waves import UNIT, Direction, RealWaves, Waves

_BLOCK = 1 << 19  # numbers held at once in one coefficient
_FAST = 1 << 13  # and in a processor's own memory, where dozens of coefficients are one after the other
_NEGLIGIBLE = 1e-10  # what a series may leave out of the logarithm of a whole group's product


@dataclass(frozen=True, slots=True)
class Part:
    """All steps at one sample rate: their losses at grid points, and their masses (dominating or dominated).

    Or all in one cell of sample rates, ``sample_rate`` in its middle: ``spread`` then says how they differ, and
    ``tangent`` whether the gap between chord and tangent is asked for, by which a bound from below is paid. ``error``:
    relative, of the values of its curves.
    """

    losses: Float[np.ndarray, " n"]
    mixtures: Mixtures
    sample_rate: float
    spread: Spread | None = None
    tangent: bool = False
    error: float = CURVE_ERROR

    def infinite_mass(self, direction: Direction) -> float:
        """Sum over steps of the probability of an infinite loss, an upper bound on that of their composition."""
        mixtures = self.mixtures
        if direction == "remove":
            base, difference = (
                mixtures.base_infinite * self.sample_rate,
                mixtures.difference_infinite * self.sample_rate,
            )
        else:
            # The mass of Q at y = 0 stands for its cut tail. Its loss -log(1 - p) is finite, but far too large to be
            # tilted: it is counted as infinite.
            base, difference = mixtures.base[:, 0], mixtures.difference[:, 0]
        if self.spread is not None:
            middle = self.sample_rate if direction == "remove" else None
            base = mixtures.base_infinite if direction == "remove" else base
            difference = mixtures.difference_infinite if direction == "remove" else difference
            return self.spread.total(base, difference * mixtures.largest, by_rate=middle)
        return float(mixtures.power_sums[:, 0] @ base + mixtures.power_sums[:, 1] @ difference)

    @property
    def moments(self) -> Float[np.ndarray, "g a b"]:
        """Sums over each group's members of count x^a (w/largest)^b."""
        if self.spread is not None:
            return self.spread.moments
        largest = np.where(self.mixtures.largest > 0, self.mixtures.largest, 1.0)[:, None]
        found = np.zeros((largest.size, ORDER, ORDER))
        found[:, 0] = self.mixtures.power_sums / largest ** np.arange(ORDER)
        return found


@dataclass(frozen=True, slots=True)
class Transform:
    """log M(c + iv) on a grid of v (any branch), and how far exp of it may be off.

    ``relative``: |error| <= (exp(relative) - 1) |M|. Where that is infinite only |M| <= exp(log_magnitude) is known.
    ``gap``: the sum of (A - L)/A over steps whose rates are in cells (`rates`), off by at most ``gap_error``; where M
    is not known, |M| times the sum is at most exp(log_magnitude) (|gap| + gap_error).
    """

    log_value: Complex[np.ndarray, " f"]
    log_magnitude: Float[np.ndarray, " f"]
    relative: Float[np.ndarray, " f"]
    gap: Complex[np.ndarray, " f"]
    gap_error: Float[np.ndarray, " f"]

    @classmethod
    def of_nothing(cls, frequencies: int) -> "Transform":
        """Of no steps at all: M = 1."""
        zeros, none = np.zeros(frequencies), np.zeros(frequencies, dtype=np.complex128)
        return cls(none, zeros, zeros, none, zeros)

    def times(self, other: "Transform") -> "Transform":
        """Of both runs, one after the other."""
        return Transform(
            self.log_value + other.log_value,
            self.log_magnitude + other.log_magnitude,
            self.relative + other.relative,
            self.gap + other.gap,
            self.gap_error + other.gap_error,
        )


def transforms(
    turns: Sequence[Sequence[Part]], direction: Direction, c: float, v: Float[np.ndarray, " f"]
) -> list[Transform]:
    """M(c + iv) of each run: the product of all steps of all its parts, each with its own masses. Parts at the same
    place of each run have the same masses, and counts of their own."""
    found = [Transform.of_nothing(v.size)] * len(turns)
    for alike in zip(*turns, strict=True):
        for steps in _steps(alike, direction, c, v):
            found = [run.times(product) for run, product in zip(found, steps.products(), strict=True)]
    return [replace(run, relative=np.where(run.relative < 0.5, run.relative, np.inf)) for run in found]


def log_mgfs(
    turns: Sequence[Sequence[Part]], direction: Direction, c: Float[np.ndarray, " k"] | Sequence[float]
) -> Float[np.ndarray, "t k"]:
    """Upper bounds on log M(c) of each run, c real; infinite where floating point cannot tell. Parts as in
    `transforms`.

    M > 0 there, so that by concavity the logarithms of a group's members add up to at most count log(their mean).
    """
    tilts = np.asarray(c, dtype=np.float64)
    power = 1 + tilts if direction == "remove" else -tilts
    total = np.zeros((len(turns), tilts.size))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for alike in zip(*turns, strict=True):
            part, rows = alike[0], _occupied(alike)
            moments = np.stack([one.moments[rows] for one in alike])
            counts = moments[:, :, 0, 0][:, :, None]
            some = np.maximum(counts, 1.0)
            base, difference = _masses(part.mixtures, rows)
            ends = [part.losses] if part.spread is None else [part.spread.low, part.spread.high]
            mean, error = np.zeros((*counts.shape[:2], tilts.size)), np.zeros((rows.size, tilts.size))
            for losses, side in zip(ends, (-1.0, 1.0), strict=False):
                waves = RealWaves.of(losses, direction, power)
                # Members are (1 -+ x)/2 of either end.
                share = [
                    (moments[:, :, 0, b] + side * moments[:, :, 1, b])[:, :, None] / (len(ends) * some) for b in (0, 1)
                ]
                mean += share[0] * waves.sums(base) + share[1] * waves.sums(difference)
                rounding = waves.rounding(np.abs(base) + np.abs(difference), part.mixtures.slope_scale[rows])
                error = np.maximum(error, rounding * (1 + part.mixtures.members[rows][:, None] / losses.size))
            logs = counts * np.log1p(mean + error)
            total += np.sum(logs, axis=1) + UNIT * (rows.size + 64) * np.sum(np.abs(logs), axis=1)
    return np.where(np.isfinite(total), total, np.inf)


def _occupied(alike: Sequence[Part]) -> Int[np.ndarray, " rows"]:
    """The groups of steps that have members in some run."""
    return np.flatnonzero(np.any([part.mixtures.counts > 0 for part in alike], axis=0))


def _masses(
    mixtures: Mixtures, rows: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows n"], Float[np.ndarray, "rows n"]]:
    """Of some groups: the base, and the difference at the largest coefficient."""
    return mixtures.base[rows], mixtures.largest[rows][:, None] * mixtures.difference[rows]


def _steps(alike: Sequence[Part], direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> Iterator["_Steps"]:
    signed = v if direction == "remove" else -v
    occupied = _occupied(alike)
    rows = max(1, _BLOCK // v.size)
    for start in range(0, occupied.size, rows):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            steps = _Steps.of(alike, occupied[start : start + rows], direction, c, signed)
        few = max(1, _FAST // v.size)
        for first in range(0, steps.members.size, few):
            yield steps.some(slice(first, first + few))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Groups of steps of one part. One step's transform is 1 + base + sum of x^a w^b terms[a, b], w over its largest.

    Kept without the 1, which rounding would be relative to. ``error``: of the sum, at all |x|, |w| <= 1; ``gap`` and
    ``gap_error``: the same of chord less tangent. ``moments``: of each of several runs.
    """

    base: Complex[np.ndarray, "g f"]
    terms: dict[tuple[int, int], Complex[np.ndarray, "g f"]]
    error: Float[np.ndarray, "g f"]
    gap: dict[tuple[int, int], Complex[np.ndarray, "g f"]]
    gap_error: Float[np.ndarray, "g f"]
    moments: Float[np.ndarray, "t g a b"]
    members: Float[np.ndarray, " g"]

    @classmethod
    def of(
        cls,
        alike: Sequence[Part],
        rows: Int[np.ndarray, " rows"],
        direction: Direction,
        c: float,
        v: Float[np.ndarray, " f"],
    ) -> "_Steps":
        part = alike[0]
        mixtures, spread = part.mixtures, part.spread
        base, difference = _masses(mixtures, rows)
        mixed = bool(difference.any())
        masses = np.concatenate([base, difference]) if mixed else base
        sizes, scale = np.abs(base) + np.abs(difference), mixtures.slope_scale[rows]

        def at(losses: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            waves = Waves.of(losses, direction, c, v)
            return np.split(waves.sums(masses), 1 + mixed), waves.rounding(sizes, scale)

        gap: dict[tuple[int, int], Complex[np.ndarray, "g f"]] = {}
        if spread is None:
            found, error = at(part.losses)
            terms = {(0, 1): found[1]} if mixed else {}
            chord, gap_error = found[0], np.zeros_like(error)
        else:
            (low, low_error), (high, high_error) = at(spread.low), at(spread.high)
            error, gap_error = np.maximum(low_error, high_error), np.zeros_like(low_error)
            chord = (low[0] + high[0]) / 2
            terms = {(1, 0): (high[0] - low[0]) / 2}
            if mixed:
                terms |= {(0, 1): (low[1] + high[1]) / 2, (1, 1): (high[1] - low[1]) / 2}
            if part.tangent:
                middle, middle_error = at(part.losses)
                waves = Waves.of(part.losses, direction, c, v)
                power = waves.power + 1j * v
                turn = np.split(power * waves.sums(masses, spread.turn), 1 + mixed)
                gap_error = error + middle_error + np.abs(power) * waves.rounding(sizes, scale, spread.turn)
                ends = {(0, 0): chord} | terms
                for b, (value, slope) in enumerate(zip(middle, turn, strict=True)):
                    gap |= {(0, b): ends[0, b] - value, (1, b): ends[1, b] - slope}
        moments = np.stack([one.moments[rows] for one in alike])
        return cls(chord, terms, error, gap, gap_error, moments, mixtures.members[rows])

    def some(self, rows: slice) -> "_Steps":
        """Those of some groups."""
        return _Steps(
            self.base[rows],
            {key: value[rows] for key, value in self.terms.items()},
            self.error[rows],
            {key: value[rows] for key, value in self.gap.items()},
            self.gap_error[rows],
            self.moments[:, rows],
            self.members[rows],
        )

    def products(self) -> list[Transform]:
        """Of all steps of all groups, for each run."""
        counts = self.moments[:, :, 0, 0]
        largest = counts.max(axis=0)[:, None]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            size = np.abs(1 + self.base)
            series, left, reach = self._logarithm(largest)
            known = (reach < 0.5) & (self.error < 0.1 * size)
            lost = left + 3 * (self.error + UNIT * np.abs(self.base)) / size
            sums = 4 * UNIT * np.minimum(reach, 1.0)
            # (Not size times reach: where 1 + base is 0 that is 0 times infinity.)
            most = size + sum(np.abs(value) for value in self.terms.values()) + self.error
            widest = self.gap_error + (sum(np.abs(value) for value in self.gap.values()) if self.gap else 0.0)
            # 1/A of a member is 1/(1 + base) up to reach, and A itself up to its error.
            off = widest * (2 * reach + 3 * self.error / size + 64 * UNIT) + 2 * self.gap_error
            members = counts * (self.members + 4 * ORDER**2)
            unknown = (counts > 0).astype(np.float64) @ ~known > 0
            each = (
                _summed([(self.moments[:, :, a, b], value) for (a, b), value in series.items()], known),
                _summed([(counts, np.log(most))]),
                np.where(unknown, np.inf, _summed([(counts, lost), (members, sums)], known)),
                _summed(
                    [(self.moments[:, :, a, b], value / (1 + self.base)) for (a, b), value in self.gap.items()]
                    or [(counts, np.zeros_like(self.base))],
                    known,
                ),
                _summed([(counts, np.where(known, off / size, widest / most))]),
            )
        return [Transform(*columns) for columns in zip(*each, strict=True)]

    def _logarithm(
        self, counts: Float[np.ndarray, "g 1"]
    ) -> tuple[dict[tuple[int, int], Complex[np.ndarray, "g f"]], Float[np.ndarray, "g f"], Float[np.ndarray, "g f"]]:
        """The terms of log of a member, by powers of x and w; what is left out of the series for it; |Z| at most.

        Z = (1 + base + ..)/(1 + base) - 1 by degrees in x and w; the rest of log(1 + Z) is at most that of -log(1 - Z)
        with moduli in Z.
        """
        first = {(0, 0): np.asarray(log1p(self.base), dtype=np.complex128)}
        z = {key: value / (1 + self.base) for key, value in self.terms.items()}
        none = np.zeros(self.base.shape)
        bound = [none, none, none]
        for (a, b), value in z.items():
            bound[a + b] = bound[a + b] + np.abs(value)
        reach = bound[1] + bound[2]
        if not z:
            return first, none, reach
        series: dict[tuple[int, int], Complex[np.ndarray, "g f"]] = {}
        majorant: list[Float[np.ndarray, "g f"]] = [none]
        left = whole = -np.log1p(-reach)
        for n in range(1, ORDER):
            rest = sum((n - m) * bound[m] * majorant[n - m] for m in (1, 2) if m < n)
            majorant.append((bound[n] if n < 3 else none) + rest / n)
            for a in range(n + 1):
                b = n - a
                if (a and (1, 0) not in z) or (b and (0, 1) not in z):
                    continue
                # n L_n = n Z_n - sum_m Z_m (n - m) L_(n - m): Euler's x d/dx + w d/dw of (1 + Z) exp(-L) = 1.
                value = n * z[a, b] if (a, b) in z else np.zeros_like(self.base)
                for (i, j), factor in z.items():
                    if i <= a and j <= b and i + j < n:
                        value = value - (n - i - j) * factor * series[a - i, b - j]
                series[a, b] = value / n
            left = np.maximum(whole - np.sum(majorant, axis=0), 0.0)
            if np.nanmax(np.where(reach < 0.5, counts * left, 0.0)) < _NEGLIGIBLE:
                break
        return first | series, left, reach


def _summed(
    terms: Sequence[tuple[Float[np.ndarray, "t g"], Shaped[np.ndarray, "g f"]]],
    known: Bool[np.ndarray, "g f"] | None = None,
) -> Shaped[np.ndarray, "t f"]:
    """For each run the sum over groups of weight times value, where ``known``."""
    if len(terms[0][0]) > 1:
        each = [weights @ (value if known is None else np.where(known, value, 0.0)) for weights, value in terms]
        return np.sum(each, axis=0)
    total = terms[0][0].T * terms[0][1]
    for weights, value in terms[1:]:
        total += value * weights.T
    return (total if known is None else np.where(known, total, 0.0)).sum(axis=0)[None]


@dataclass(frozen=True, slots=True)
class Cumulants:
    """log M(c) and its first two derivatives in c, for steering only: every group is taken at its mean mixture."""

    parts: Sequence[Part]
    direction: Direction
    # Of each part: how many steps each mean mixture stands for, its masses, and the losses that have them.
    means: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for part in self.parts:
            mixtures = part.mixtures
            occupied = mixtures.counts > 0
            counts = mixtures.counts[occupied]
            mean = mixtures.power_sums[occupied, 1] / counts
            masses = mixtures.base[occupied] + mean[:, None] * mixtures.difference[occupied]
            found.append((counts, masses, part.losses if part.spread is None else part.spread.typical))
        object.__setattr__(self, "means", found)

    def at(self, c: float) -> tuple[float, float, float]:
        """(log M, (log M)', (log M)'') at real c."""
        sign = 1.0 if self.direction == "remove" else -1.0
        totals = np.zeros(3)
        for counts, masses, losses in self.means:
            waves = Waves.of(losses, self.direction, c, np.zeros(1))
            loss = sign * waves.loss
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # far beyond the saddle: turned back
                m0 = masses @ waves.tilt_less_1
                m1, m2 = (
                    (masses @ (waves.tilt * loss)) / (1 + m0),
                    (masses @ (waves.tilt * loss**2)) / (1 + m0),
                )
                totals += [counts @ np.log1p(m0), counts @ m1, counts @ (m2 - m1**2)]
        return float(totals[0]), float(totals[1]), float(totals[2])
