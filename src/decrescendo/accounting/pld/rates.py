"""Thousands of different sample rates at the cost of a few: the transform of a step, expanded in its rate.

A point of the un-subsampled mechanism at y = exp(e) loses l = log Y(p) with Y(p) = 1 - p + p y at sample rate p, and
its masses do not depend on p (`discretisation`). Rates are put into *cells* p = p0 + H x, |x| <= 1. With
t = H (y - 1)/Y(p0),

    Y(p)^a = Y(p0)^a (1 + t x)^a = Y(p0)^a sum_k binom(a, k) t^k x^k,        |t| <= tanh(width/2) < 1,

so that the transform of every step of a cell is a polynomial in x and in its coefficient w between two nodes of mu
(`interpolation`), whose coefficients are sums over the points of ONE rate. Nothing is given up for it: every step stays
between its own two discrete mechanisms at its own rate, and what the series leaves out is bounded, by Taylor's
remainder in integral form, |1 + t x|^(Re a - N) being largest at one end of its range:

    |R_N| <= |binom(a, N)| |t|^N Y(p0)^(Re a) max(1, (1 - |t|)^(Re a - N), (1 + |t|)^(Re a - N)).

The logarithm of 1 + Z(x, w) is summed by powers of x and w up to total degree N - 1, from sums over steps of
x^a w^b. The rest of that series is at most the rest of -log(1 - Z^), with the moduli of Z's coefficients in Z^.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from scipy.special import log1p  # NumPy's loses small complex arguments

from decrescendo.accounting.pld.discretisation import LossGrid, losses
from decrescendo.accounting.pld.interpolation import ORDER, Mixtures
from decrescendo.accounting.pld.waves import UNIT, Direction, Waves

# Of a cell, in log(p/(1 - p)); a tenth of a percent of epsilon needs no narrower ones at order 8.
WIDTH = 0.4
_CHUNK = 1 << 13  # numbers held at once in one coefficient


def cells(rate: Float[np.ndarray, " n"], width: float = WIDTH) -> Int[np.ndarray, " n"]:
    """A number for each rate in (0, 1), ascending with it; those that share one are at most ``width`` apart.

    >>> cells(np.array([0.01, 0.011, 0.1])).tolist()
    [0, 0, 5]
    """
    place = np.log(rate) - np.log1p(-rate)
    low, span = float(place.min()), float(np.ptp(place))
    count = max(1, int(np.ceil(span / width)))
    edges = low + span / count * np.arange(1, count)
    return np.searchsorted(edges, place, side="right")


@dataclass(frozen=True, slots=True)
class Spread:
    """The rates of a cell: p0 + half_width x for x in [-1, 1], and what composition needs to know of its steps.

    ``shift`` is t at the points of the grid, ``highest`` the losses at the largest rate, ``typical`` those at the root
    mean square of the rates, to steer with; ``moments[g, a, b]`` is the sum over the members of group g of
    count x^a (w/largest_g)^b.
    """

    half_width: float
    shift: Float[np.ndarray, " n"]
    highest: Float[np.ndarray, " n"]
    typical: Float[np.ndarray, " n"]
    moments: Float[np.ndarray, "g a b"]

    def total(
        self,
        base: Float[np.ndarray, " g"],
        difference: Float[np.ndarray, " g"],
        *,
        by_rate: float | None = None,
    ) -> float:
        """The sum over all steps of base + difference w/largest, times their rates p0 + half_width x if given p0."""
        sums = self.moments[:, 0]
        if by_rate is not None:
            sums = by_rate * sums + self.half_width * self.moments[:, 1]
        return float(sums[:, 0] @ base + sums[:, 1] @ difference)


@dataclass(frozen=True, slots=True)
class Cell:
    """The rates of the steps of one cell, their mu as places in the group's distinct ones, and how often each step."""

    rate: Float[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    count: Int[np.ndarray, " n"]

    @property
    def middle(self) -> float:
        """p0."""
        return float(self.rate.min() + self.rate.max()) / 2

    def spread(self, loss_grid: LossGrid, mixtures: Mixtures) -> Spread:
        """What composition needs of the cell's steps, with the group and coefficient that ``mixtures`` gave each mu."""
        p0 = self.middle
        half = max(float(self.rate.max()) - p0, p0 - float(self.rate.min()))
        x = (self.rate - p0) / half
        group = mixtures.group[self.place]
        largest = np.where(mixtures.largest > 0, mixtures.largest, 1.0)
        coefficient = (mixtures.coefficient / largest[mixtures.group])[self.place]
        sums = np.zeros((mixtures.largest.size, ORDER, ORDER))
        outer = self.count.astype(np.float64)
        for a in range(ORDER):
            terms = outer.copy()
            for b in range(ORDER - a):
                sums[:, a, b] = np.bincount(group, weights=terms, minlength=sums.shape[0])
                if not mixtures.largest.any():
                    break
                terms *= coefficient
            outer = outer * x
        y = np.r_[0.0, np.exp(loss_grid.e)]
        rise = np.r_[-1.0, np.expm1(loss_grid.e)]
        root = float(np.sqrt(np.average(self.rate**2, weights=self.count)))
        return Spread(
            half,
            half * rise / (1 - p0 + p0 * y),
            losses(loss_grid, p0 + half),
            losses(loss_grid, root),
            sums,
        )


@dataclass(frozen=True, slots=True)
class _Expansion:
    """X(x, w) = M - 1 of every group's steps: coefficients by degree in x, plain and times w/largest, and its error."""

    plain: Complex[np.ndarray, "k g f"]
    mixed: Complex[np.ndarray, "k g f"] | None
    error: Float[np.ndarray, "g f"]

    @classmethod
    def of(
        cls, waves: Waves, mixtures: Mixtures, spread: Spread, occupied: Bool[np.ndarray, " all_groups"]
    ) -> "_Expansion":
        """Of the groups that have members."""
        base = mixtures.base[occupied]
        largest = mixtures.largest[occupied][:, None]
        difference = largest * mixtures.difference[occupied] if largest.any() else base[:0]
        rows = np.concatenate([base, difference])
        sizes = np.abs(base) + (np.abs(difference) if difference.size else 0.0)
        shift, size = spread.shift, np.abs(spread.shift)
        exponent = waves.power + 1j * waves.v
        leading, ends, stretch = _remainder(shift, waves.power, waves.v)
        # A point whose phase turns too far over the cell is left out, at this frequency: what it may add is an error.
        kept = np.outer(ends, leading) < stretch[:, None]
        table = waves.where(kept)
        farthest = np.where(kept, size[:, None], 0.0).max(axis=0)  # |t| of the kept points
        binomial, products = np.ones(waves.v.size, dtype=np.complex128), np.zeros(waves.v.size)
        terms = [table.sums(rows)]
        for k in range(1, ORDER):
            binomial = binomial * (exponent - (k - 1)) / k
            terms.append(binomial * table.moments(rows, shift**k))
            products += np.abs(binomial) * farthest ** (k - 1)
        lost = UNIT * (waves.loss.size + 64 + 8 * ORDER)
        error = lost * np.outer(sizes @ (waves.tilt * size), products)
        error += sizes @ (waves.tilt[:, None] * np.where(kept, np.outer(ends, leading), stretch[:, None]))
        # The masses' own rounding telescopes (`Waves.rounding`): over steps of the losses at the largest rate, which
        # are the longest, with the largest tilts of the cell.
        scale = mixtures.slope_scale[occupied]
        error += waves.rounding(sizes, scale)
        error += waves.stretched(stretch, spread.highest).rounding(sizes, scale)
        plain = np.stack([term[: base.shape[0]] for term in terms])
        mixed = np.stack([term[base.shape[0] :] for term in terms]) if difference.size else None
        return cls(plain, mixed, error)


def log_bound(
    at_losses: Float[np.ndarray, " n"], mixtures: Mixtures, spread: Spread, direction: Direction, c: float
) -> float:
    """An upper bound on log M(c), c real, of the product of a cell's steps; not finite where there is none.

    M > 0 there, so that by concavity the logarithms of a group's members add up to at most count log(their mean).
    """
    occupied = mixtures.counts > 0
    moments = spread.moments[occupied]
    counts = moments[:, 0, 0]
    base, largest = mixtures.base[occupied], mixtures.largest[occupied][:, None]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        waves = Waves.of(at_losses, direction, c, np.zeros(1))
        shift = spread.shift
        leading, ends, stretch = _remainder(shift, waves.power, waves.v)
        kept = ends * leading[0] < stretch
        columns = [np.where(kept, waves.tilt_less_1, -1.0)]
        binomial = 1.0
        for k in range(1, ORDER):
            binomial *= (waves.power - (k - 1)) / k
            columns.append(np.where(kept, waves.tilt * binomial * shift**k, 0.0))
        left_out = waves.tilt * np.where(kept, ends * leading[0], stretch)
        size = np.abs(columns).sum(axis=0) + np.abs(waves.tilt_less_1) * stretch + waves.tilt * np.abs(shift)
        table = np.stack([*columns, left_out, size], axis=1)
        mean = np.sum((base @ table)[:, :ORDER] * moments[:, :, 0], axis=1) / counts
        sizes = np.abs(base)
        if largest.any():
            difference = largest * mixtures.difference[occupied]
            mean += np.sum((difference @ table)[:, :ORDER] * moments[:, :, 1], axis=1) / counts
            sizes = sizes + np.abs(difference)
            left_out += np.abs(columns[-1])  # a degree that the moments leave out
        error = sizes @ (left_out + UNIT * (waves.loss.size + 128) * size)
        error += UNIT * mixtures.members[occupied] * (sizes @ np.abs(columns).sum(axis=0))
        far = waves.stretched(stretch, spread.highest)
        rise = (far.tilt[1:] + far.tilt[:-1]) * np.abs(np.diff(far.loss))
        error += 16 * UNIT * abs(waves.power) * (mixtures.slope_scale[occupied] @ rise)
        logs = counts * np.log1p(mean + error)
        return float(np.sum(logs) + UNIT * (logs.size + 64) * np.sum(np.abs(logs)))


def _remainder(
    shift: Float[np.ndarray, " n"], power: float, v: Float[np.ndarray, " f"]
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """|binom(a, N)| by frequency and the rest of |R_N| by point, without its tilt; the largest |1 + t x|^(Re a)."""
    size, leading = np.abs(shift), np.ones(v.size)
    for k in range(ORDER):
        leading = leading * np.abs(power + 1j * v - k) / (k + 1)
    below = power - ORDER
    ends = size**ORDER * np.maximum(1.0, np.maximum((1 - size) ** below, (1 + size) ** below))
    return leading, ends, (1 - size) ** -abs(power)


def expanded(
    at_losses: Float[np.ndarray, " n"],
    mixtures: Mixtures,
    spread: Spread,
    direction: Direction,
    c: float,
    v: Float[np.ndarray, " f"],
) -> tuple[Complex[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, " f"]]:
    """(log M, log of a bound on |M|, relative error) of the product of a cell's steps; ``v`` signed as in `Waves`.

    The error is infinite where the series says nothing; the bound holds there too.
    """
    occupied = mixtures.counts > 0
    moments, members = spread.moments[occupied], mixtures.members[occupied]
    log_value = np.zeros(v.size, dtype=np.complex128)
    log_magnitude, relative = np.zeros(v.size), np.zeros(v.size)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = _Expansion.of(Waves.of(at_losses, direction, c, v), mixtures, spread, occupied)
        rows = max(1, _CHUNK // v.size)
        for start in range(0, members.size, rows):
            part = slice(start, start + rows)
            value, magnitude, error = _logarithm(
                found.plain[:, part],
                None if found.mixed is None else found.mixed[:, part],
                found.error[part],
                moments[part],
                members[part],
            )
            log_value += value
            log_magnitude += magnitude
            relative += error
    # |M(c + iv)| <= M(c).
    return log_value, np.fmin(log_magnitude, log_bound(at_losses, mixtures, spread, direction, c)), relative


def _logarithm(
    plain: Complex[np.ndarray, "k g f"],
    mixed: Complex[np.ndarray, "k g f"] | None,
    error: Float[np.ndarray, "g f"],
    moments: Float[np.ndarray, "g a b"],
    members: Float[np.ndarray, " g"],
) -> tuple[Complex[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, " f"]]:
    """Sums over groups and their members of log(1 + X): value, log of a bound, relative error."""
    counts = moments[:, 0, 0][:, None]
    base = plain[0]
    size = np.abs(1 + base)
    # Z = (X - X_00)/(1 + X_00), by (degree in x, degree in w).
    z = {(k, 0): plain[k] / (1 + base) for k in range(1, ORDER)}
    if mixed is not None:
        z.update({(k, 1): mixed[k] / (1 + base) for k in range(ORDER)})
    bound = [np.zeros(size.shape) for _ in range(ORDER + 1)]
    for (a, b), value in z.items():
        bound[a + b] = bound[a + b] + np.abs(value)
    reach = np.sum(bound, axis=0)
    series: dict[tuple[int, int], Complex[np.ndarray, "g f"]] = {}
    total = counts * np.asarray(log1p(base), dtype=np.complex128)
    majorant: list[Float[np.ndarray, "g f"]] = [np.zeros(size.shape)]
    for n in range(1, ORDER):
        rest = [(n - m) * bound[m] * majorant[n - m] for m in range(1, n)]
        majorant.append(bound[n] + np.sum(rest, axis=0) / n if rest else bound[n])
        for b in range(n + 1 if mixed is not None else 1):
            a = n - b
            # n L_n = n Z_n - sum_m Z_m (n - m) L_(n - m): Euler's x d/dx + w d/dw of (1 + Z) exp(-L) = 1.
            value = n * z[a, b] if (a, b) in z else np.zeros_like(base)
            for i in range(a + 1):
                for j in range(min(b, 1) + 1):
                    if 0 < i + j < n and (i, j) in z:
                        value = value - (n - i - j) * z[i, j] * series[a - i, b - j]
            series[a, b] = value / n
            total += series[a, b] * moments[:, a, b][:, None]
    left = np.maximum(-np.log1p(-reach) - np.sum(majorant, axis=0), 0.0)
    loss = counts * (left + 3 * (error + UNIT * np.abs(base)) / size)
    loss += 4 * counts * UNIT * (members[:, None] + 4 * ORDER**2) * np.minimum(reach, 1.0)
    known = (reach < 0.5) & (error < 0.1 * size)
    magnitude = counts * np.log(size * (1 + reach) + error)
    return (
        np.where(known, total, 0.0).sum(axis=0),
        magnitude.sum(axis=0),
        np.where(known, loss, np.inf).sum(axis=0),
    )
