"""From M(c + iv) to delta(epsilon), between two bounds.

For any c > 0, delta(e) = E[(1 - exp(e - L))_+] = (1/2 pi) Int M(s) exp(-s e) / (s (s + 1)) dv with s = c + iv.
Three things stand between this and a finite sum; each has a sign or a bound.

*High frequencies.* Let U ~ N(m^2/2, m^2) be the privacy loss of one more Gaussian release, of parameter m. Composing
with it can only raise delta, and multiplies M by exp(m^2 (s^2 + s)/2), which leaves nothing beyond |v| = 8/m. By how
much it raises delta is bounded too: for every loss l, with S(0) = 2 Phi(m/2) - 1,

    E[(1 - exp(e - l - U))_+] - (1 - exp(e - l))_+  <=  S(0) exp((e - l)/2 - (e - l)^2 / (2 m^2)),

because exp(-|x|/2) delta(|x|; m) / phi(x/m) = exp(-m^2/8) (R(|x|/m - m/2) - R(|x|/m + m/2)) falls in |x|. The right
side is a Gaussian bump, so its expectation is one more sum over the same frequencies. Both ends are O(m^2) apart.

*A sum for the integral.* With v = k dv and W = 2 pi/dv, Poisson's formula turns the sum into
sum_n exp(c n W) delta(e + n W): the wanted term and non-negative others, bounded by Chernoff for the lower end.

*Floating point* and the cut at the last frequency are carried as absolute bounds on every term. Curves whose values
are off by a relative x give a delta that is off by at most (1 +- x) to the power of the number of steps.

Longer than most files: its three errors and their bounds are one proof.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Complex, Float
from scipy.optimize import brentq
from scipy.special import erf, expm1

from decrescendo.accounting.gaussian import log_delta
from decrescendo.accounting.pld.discretisation import CURVE_ERROR
from decrescendo.accounting.pld.transform import Cumulants, Transform
from decrescendo.accounting.pld.turns import Run, Turns
from decrescendo.accounting.pld.waves import UNIT, Direction
from decrescendo.errors import AccountingError

_CUT = 7.5  # frequencies up to _CUT / m
_MOST = 1 << 15  # frequencies
_WIDEST = 70.0  # smoothing m, of which exp(m^2/8) is taken
# Tilts at which Chernoff bounds are tried, relative to the saddle point; those up to 1 may become the contour.
_RATIOS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.36, 0.43, 0.5, 0.57, 0.64, 0.72, 0.8, 0.9, 1.0)
_BEYOND = (1.1, 1.25, 1.45, 1.7, 2.0, 2.5, 3.5, 5.0, 9.0)
# The terms of a sum may exceed delta by this factor: what floating point loses stays below 1e-5 of delta.
_LOG_CANCELLATION = math.log(1e4)


@dataclass(frozen=True, slots=True)
class Saddle:
    """A point of the privacy curve by the saddle-point approximation: an estimate, for choosing a grid."""

    c: float
    epsilon: float
    log_delta: float


def saddle(cumulants: Cumulants, *, delta: float | None = None, epsilon: float | None = None) -> Saddle:
    """The point of the curve at ``delta``, or at ``epsilon``; both: at ``epsilon``, or where delta is negligible."""

    @functools.cache
    def point(c: float) -> Saddle:
        log_m, first, second = cumulants.at(c)
        tilted = log_m - math.log(c) - math.log1p(c)
        slope = first - 1 / c - 1 / (1 + c)
        curvature = second + c**-2 + (1 + c) ** -2
        log_delta = tilted - c * slope - 0.5 * math.log(2 * math.pi * curvature) if curvature > 0 else -math.inf
        return Saddle(c, slope, log_delta)

    def gap(log_c: float) -> float:
        found = point(math.exp(log_c))
        value = found.epsilon - epsilon if epsilon is not None else math.log(delta or 1.0) - found.log_delta
        return value if math.isfinite(value) else 1e300

    low, high = 0.0, 0.0
    while gap(low) > 0 and low > -40:
        low -= 1.0
    while gap(high) < 0 and high < 60:
        if epsilon is not None and delta is not None:
            c = math.exp(high)
            if cumulants.at(c)[0] - c * epsilon < math.log(delta) - 14:
                return Saddle(c, epsilon, math.log(delta) - 14)
        high += 1.0
    if gap(low) > 0 or gap(high) < 0:
        return point(math.exp(low if gap(low) > 0 else high))
    return point(math.exp(float(brentq(gap, low, high, xtol=1e-6))))


@dataclass(frozen=True, slots=True)
class Grid:
    """Tilt c, smoothing m, frequencies v = 0, dv, 2 dv, .. of one inversion, and the window W = 2 pi/dv.

    ``tilts``: the real arguments a at which log M(a) is worth knowing for Chernoff bounds.
    """

    c: float
    m: float
    v: Float[np.ndarray, " f"]
    window: float
    tilts: tuple[float, ...]

    @property
    def s(self) -> Complex[np.ndarray, " f"]:
        """c + iv."""
        return self.c + 1j * self.v

    @property
    def log_smoothing(self) -> float:
        """log of the factor M gains at v = 0."""
        return self.m**2 * (self.c**2 + self.c) / 2


def choose_grid(run: Run, direction: Direction, epsilon: float, delta: float, *, smoothing: float) -> Grid:
    """The grid with the fewest frequencies whose smoothing costs about ``smoothing`` in epsilon.

    Any c > 0 is right. At the saddle point terms are smallest, but where single steps can lose much (small noise,
    small rates) the window is wide there; a smaller tilt is then cheaper. Aliases stay below 1e-5 of delta.
    """
    turns = Turns.of(run)
    saddle_c = saddle(turns.cumulants(direction), epsilon=epsilon, delta=delta).c
    log_delta = math.log(delta)
    m = math.sqrt(smoothing / (1 + saddle_c))
    tilts = [ratio * saddle_c for ratio in (*_RATIOS, *_BEYOND)]
    log_m = turns.mean(turns.log_mgfs(direction, tilts)).tolist()
    # log of the Chernoff bound M(a) exp(-a epsilon) over delta; a = 0 gives the trivial bound 1.
    chernoff = [(0.0, -log_delta)] + [(a, log - a * epsilon - log_delta) for a, log in zip(tilts, log_m, strict=True)]
    log_alias = math.log(1e-5)
    affordable = max(_LOG_CANCELLATION, chernoff[len(_RATIOS)][1] + math.log(2))
    found: list[tuple[float, int, float, float, float]] = []  # m, number of frequencies, excess, c, window
    for c, excess in chernoff[1 : len(_RATIOS) + 1]:
        above = min((bound - log_alias) / (a - c) for a, bound in chernoff if a > c)
        below = min((bound - log_alias) / (c - a) for a, bound in chernoff if a < c)
        window = max(4 * m, above, below)
        if not math.isfinite(window):
            continue
        # A grid is never larger than _MOST: more smoothing is always right, only wider.
        smoother = max(m, _CUT * window / (2 * math.pi * _MOST))
        if smoother > _WIDEST:
            continue
        count = math.ceil(_CUT / smoother * window / (2 * math.pi)) + 2
        found.append((smoother, count, excess, c, window))
    if not found:
        raise AccountingError(
            f"a ledger's privacy loss must be one that floating-point numbers hold at delta={delta:g}, got more. Take "
            "more noise or fewer steps"
        )
    # Where delta is far below what the loss grid reaches (all finite losses are below epsilon) nothing is affordable:
    # then what floating point loses least with. It is in the bound as ever.
    cheap = [one for one in found if one[2] <= affordable] or [min(found, key=lambda one: one[2])]
    smoother, count, _, c, window = min(cheap, key=lambda one: one[:2])
    return Grid(c, smoother, 2 * math.pi / window * np.arange(count), window, tuple(tilts))


# Numbers at each frequency, how far each may be off, and its size.
Summands: TypeAlias = tuple[Complex[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, " f"]]


@dataclass(frozen=True, slots=True)
class Law:
    """A composed law on a grid, or the mean of several: their transforms, each with its share of M(c) and its own
    log M(c); log M(c), and (a, log M(a)) for Chernoff bounds."""

    transforms: Sequence[tuple[Transform, float, float]]
    log_mgf: float
    chernoff: Sequence[tuple[float, float]]
    _terms: dict[tuple[bool, float], Summands] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run, direction: Direction, grid: Grid) -> "Law":
        """Evaluate the product of all steps."""
        turns = Turns.of(run)
        own = turns.log_mgfs(direction, (grid.c, *grid.tilts))
        at_c, *logs = turns.mean(own).tolist()
        chernoff = [(0.0, 0.0), *zip(grid.tilts, logs, strict=True)]
        shares = turns.weights * np.exp(own[:, 0] - at_c)
        found = turns.transforms(direction, grid.c, grid.v)
        return cls(list(zip(found, shares.tolist(), own[:, 0].tolist(), strict=True)), at_c, chernoff)

    @property
    def gap_at_0(self) -> float:
        """|gap M|/M(c) at v = 0, at most."""
        return sum(share * float(np.abs(found.gap[0]) + found.gap_error[0]) for found, share, _ in self.transforms)

    def terms(self, *, less_1: bool, gap: float) -> Summands:
        """M/M(c), or (M - 1)/M(c), less ``gap`` times M's gap; how far it may be off, but for rounding; and |it|.

        The same at every epsilon: a search for one asks some ten times.
        """
        key = less_1, gap
        if key not in self._terms:
            self._terms[key] = self._found(less_1=less_1, gap=gap)
        return self._terms[key]

    def _found(self, *, less_1: bool, gap: float) -> Summands:
        each = [
            [share * column for column in _summands(found, log_mgf, less_1=less_1, gap=gap)]
            for found, share, log_mgf in self.transforms
        ]
        value, off, size = (sum(columns[1:], columns[0]) for columns in zip(*each, strict=True))
        return value, off + UNIT * (len(each) - 1) * 16 * size, size


def _summands(found: Transform, log_mgf: float, *, less_1: bool, gap: float) -> Summands:
    """`Law.terms` of one run, by its own M(c)."""
    lost = np.isinf(found.relative)
    logs = np.where(lost, 0.0, found.log_value)
    value = np.exp(logs - log_mgf)
    bound = np.exp(np.minimum(found.log_magnitude - log_mgf, 1.0))
    relative = np.expm1(np.where(lost, 0.0, found.relative))
    widest = gap * (np.abs(found.gap) + found.gap_error)
    off = np.where(lost, bound * (1 + widest), np.abs(value) * relative * (1 + widest))
    off += np.where(lost, 0.0, np.abs(value) * gap * found.gap_error)
    value = np.where(lost, 0.0, value)
    less = gap * found.gap * value
    if less_1:
        value = np.where(lost, -1.0, np.asarray(expm1(logs), dtype=np.complex128)) * math.exp(-log_mgf)
    value = value - less
    return value, off, np.abs(value)


@dataclass(frozen=True, slots=True)
class Inversion:
    """Bounds on delta(epsilon) in one direction, for epsilon near that of the grid.

    ``above`` and ``below`` are the composed laws of the dominating and of the dominated steps; without the latter
    `lower` is 0. ``infinite`` is the mass of the former at infinity, ``error`` the sum of the relative errors of the
    steps' curves.
    """

    grid: Grid
    above: Law
    below: Law | None
    infinite: float
    error: float

    @classmethod
    def of(cls, above: Run, direction: Direction, grid: Grid) -> "Inversion":
        """Evaluate the product of the dominating steps on the grid."""
        turns = Turns.of(above)
        return cls(grid, Law.of(turns, direction, grid), None, turns.infinite(direction), turns.error)

    def with_below(self, below: Run, direction: Direction) -> "Inversion":
        """The same with the law of the dominated steps, for `lower`."""
        return replace(self, below=Law.of(below, direction, self.grid))

    def upper(self, epsilon: float) -> float:
        """delta(epsilon) is at most this."""
        grid, law = self.grid, self.above
        scale = _scale(law, grid, epsilon)
        if not math.isfinite(scale):
            return 1.0
        value, error = self._sum(law, self._payoff(epsilon), 1 / math.pi, epsilon, less_1=_sparse(law))
        tail = math.exp(grid.log_smoothing) * self._cut() / math.pi * _with_1(law)
        composed = scale * (max(0.0, value) + error + tail) + self.infinite * (1 + 1e-9)
        if _sparse(law):
            composed += self._silent(epsilon) * (1 + 4 * CURVE_ERROR)
            composed += self._aliases(epsilon, [(a, 0.0) for a, _ in law.chernoff])
        if self.error > 700:
            return 1.0
        result = composed * math.exp(self.error)
        return min(1.0, result) if math.isfinite(value + result) else 1.0

    def lower(self, epsilon: float) -> float:
        """delta(epsilon) is at least this."""
        if self.below is None:
            return 0.0
        grid, law = self.grid, self.below
        scale = _scale(law, grid, epsilon)
        if not math.isfinite(scale):
            return 0.0
        gap = self._gap_twice()
        value, error = self._sum(law, self._payoff(epsilon), 1 / math.pi, epsilon, less_1=_sparse(law), gap=gap)
        bump_kernel = np.exp(grid.m**2 * (grid.s + 0.5) ** 2 / 2 - 1j * grid.v * epsilon)
        height = float(erf(grid.m / math.sqrt(8))) * grid.m / math.sqrt(2 * math.pi)  # S(0) m / sqrt(2 pi)
        bump, bump_error = self._sum(law, bump_kernel, 2 * height, epsilon)
        last = math.exp(grid.log_smoothing + grid.m**2 / 8) * self._cut() * _with_1(law)
        tail = last * (1 / math.pi + 2 * height * float(grid.v[-1]) ** 2)
        # |gap M| over |s (s + 1)| is largest at v = 0: both are of a curve that is nowhere negative.
        tail += last * gap * law.gap_at_0 * float(grid.v[-1]) ** 2 / (math.pi * grid.c * (grid.c + 1))
        composed = scale * (value - error - bump - bump_error - tail) - self._aliases(epsilon, law.chernoff)
        if _sparse(law):
            # Not far above the bump, perhaps, and far above delta: its own last digits count.
            composed += self._silent(epsilon) * (1 - 4 * CURVE_ERROR)
        result = composed * math.exp(-self.error)
        return max(0.0, result) if math.isfinite(result) else 0.0

    def _gap_twice(self) -> float:
        """How often the gap G of `rates` is taken off: from delta, and from what the bump is less for it.

        The bump as a payoff of y = exp(l), h(y) = y S(0) exp((e - l)/2 - (e - l)^2/(2 m^2)), bends down by at most
        (1/m^2 + 1/4) h/y^2, and the Gaussian that this leaves is the smoothing's own, m sqrt(2 pi) exp(m^2/8) times.
        """
        m = self.grid.m
        smoothed = m * math.sqrt(2 * math.pi) * math.exp(m**2 / 8)
        return 1 + (1 / m**2 + 0.25) * float(erf(m / math.sqrt(8))) * smoothed

    def _silent(self, epsilon: float) -> float:
        """delta(epsilon) of the smoothing alone."""
        return float(np.exp(log_delta(epsilon, self.grid.m)))

    def _payoff(self, epsilon: float) -> Complex[np.ndarray, " f"]:
        grid = self.grid
        return np.exp(grid.m**2 * (grid.s**2 + grid.s) / 2 - 1j * grid.v * epsilon) / (grid.s * (grid.s + 1))

    def _sum(
        self,
        law: Law,
        kernel: Complex[np.ndarray, " f"],
        factor: float,
        epsilon: float,
        *,
        less_1: bool = False,
        gap: float = 0.0,
    ) -> tuple[float, float]:
        """factor dv Re sum' M_k kernel_k / M(c) (the first term halved), and a bound on its error.

        ``less_1``: M - 1 in M's place; ``gap``: less so many times M's gap, besides.
        """
        step = factor * float(self.grid.v[1])
        half = np.ones(kernel.size)
        half[0] = 0.5
        size = np.abs(kernel) * half
        value, off, magnitude = law.terms(less_1=less_1, gap=gap)
        # Phases v epsilon, exponents, and the pairwise sum are off by a few units.
        rounding = UNIT * (100 + 8 * self.grid.v * (epsilon + self.grid.m) + 8 * abs(law.log_mgf))
        error = step * float(np.sum(size * (off + magnitude * rounding)))
        return step * float(np.sum(np.real(value * kernel) * half)), error

    def _cut(self) -> float:
        """Int_V^inf exp(-m^2 v^2/2) / v^2 dv, at most; V the last frequency but one."""
        last = float(self.grid.v[-2])
        return math.exp(-((self.grid.m * last) ** 2) / 2) / last

    def _aliases(self, epsilon: float, chernoff: Sequence[tuple[float, float]]) -> float:
        """sum over n != 0 of exp(c n W) delta(epsilon + n W), at most, from (a, log M(a)) by Chernoff."""
        total, grid = 0.0, self.grid
        for up in (True, False):
            bounds = [math.inf]
            for a, log_m in chernoff:
                if a != grid.c and (a > grid.c) == up:
                    gap = abs(a - grid.c) * grid.window
                    log_first = log_m + grid.m**2 * (a**2 + a) / 2 - a * epsilon - gap
                    if log_first < 600:
                        bounds.append(math.exp(log_first) / -math.expm1(-gap))
            total += min(bounds)
        return total


def _scale(law: Law, grid: Grid, epsilon: float) -> float:
    """M(c) exp(-c epsilon): transforms and kernels are kept relative to it, so that neither overflows."""
    exponent = law.log_mgf - grid.c * epsilon
    return math.exp(exponent) if exponent < 600 and grid.log_smoothing < 600 else math.inf


def _sparse(law: Law) -> bool:
    """Whether almost nothing is lost in almost all outcomes: M is then close to 1, and M - 1 is what is summed.

    The 1 is the law of a mechanism that says nothing; its part of every sum is known in closed form.
    """
    return law.log_mgf < 1


def _with_1(law: Law) -> float:
    """(M(c) + 1)/M(c) for a sparse law, whose terms are those of M - 1; else 1."""
    return 1 + math.exp(-law.log_mgf) if _sparse(law) else 1.0
