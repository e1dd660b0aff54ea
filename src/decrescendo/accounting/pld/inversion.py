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

*Floating point* and the cut at the last frequency are carried as absolute bounds on every term.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float
from scipy.optimize import brentq
from scipy.special import ndtr

from decrescendo.accounting.pld.transform import UNIT, Cumulants, Direction, Part, Transform, log_mgf, transform
from decrescendo.errors import AccountingError

_CUT = 7.5  # frequencies up to _CUT / m
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
    """The point of the curve at ``delta``, or at ``epsilon``."""

    def point(c: float) -> tuple[float, float]:
        log_m, first, second = cumulants.at(c)
        tilted = log_m - math.log(c) - math.log1p(c)
        slope = first - 1 / c - 1 / (1 + c)
        curvature = second + c**-2 + (1 + c) ** -2
        return slope, tilted - c * slope - 0.5 * math.log(2 * math.pi * curvature)

    def gap(log_c: float) -> float:
        slope, log_delta = point(math.exp(log_c))
        value = slope - epsilon if epsilon is not None else math.log(delta or 1.0) - log_delta
        return value if math.isfinite(value) else 1e300

    low, high = 0.0, 0.0
    while gap(low) > 0 and low > -40:
        low -= 1.0
    while gap(high) < 0 and high < 60:
        high += 1.0
    if gap(low) > 0 or gap(high) < 0:
        c = math.exp(low if gap(low) > 0 else high)
    else:
        c = math.exp(float(brentq(gap, low, high, xtol=1e-6)))
    return Saddle(c, *point(c))


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


def choose_grid(
    parts: Sequence[Part], direction: Direction, saddle_c: float, epsilon: float, log_delta: float, *, smoothing: float
) -> Grid:
    """The grid with the fewest frequencies whose smoothing costs about ``smoothing`` in epsilon.

    Any c > 0 is right. At the saddle point terms are smallest, but where single steps can lose much (small noise,
    small rates) the window is wide there; a smaller tilt is then cheaper. Aliases stay below 1e-5 of delta.
    """
    m = math.sqrt(smoothing / (1 + saddle_c))
    tilts = [ratio * saddle_c for ratio in (*_RATIOS, *_BEYOND)]
    # log of the Chernoff bound M(a) exp(-a epsilon) over delta; a = 0 gives the trivial bound 1.
    chernoff = [(0.0, -log_delta)] + [(a, log_mgf(parts, direction, a) - a * epsilon - log_delta) for a in tilts]
    log_alias = math.log(1e-5)
    best: Grid | None = None
    for c, excess in chernoff[1 : len(_RATIOS) + 1]:
        if excess > _LOG_CANCELLATION and c < saddle_c:
            continue
        sides = [[(bound - log_alias) / abs(a - c) for a, bound in chernoff if (a > c) == up and a != c] for up in (True, False)]
        window = max(4 * m, *(min(side) for side in sides))
        count = math.ceil(_CUT / m * window / (2 * math.pi)) + 2
        if best is None or count < best.v.size:
            best = Grid(c, m, 2 * math.pi / window * np.arange(count), window, tuple(tilts))
    if best is None:
        raise AccountingError("no contour gives a finite sum; this is a bug, please report it")
    return best


@dataclass(frozen=True, slots=True)
class Inversion:
    """Bounds on delta(epsilon) in one direction, for epsilon near that of the grid.

    ``above`` and ``below`` are the composed laws of the dominating and of the dominated steps.
    """

    grid: Grid
    above: Transform
    below: Transform
    infinite: float
    log_mgf: float
    chernoff: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, above: Sequence[Part], below: Sequence[Part], direction: Direction, grid: Grid) -> "Inversion":
        """Evaluate both products on the grid."""
        infinite = sum(part.infinite_mass(direction) for part in above)
        chernoff = [(0.0, 0.0)] + [(a, log_mgf(above, direction, a)) for a in grid.tilts]
        return cls(
            grid,
            transform(above, direction, grid.c, grid.v),
            transform(below, direction, grid.c, grid.v),
            infinite,
            log_mgf(above, direction, grid.c),
            chernoff,
        )

    def upper(self, epsilon: float) -> float:
        """delta(epsilon) is at most this."""
        grid = self.grid
        kernel = np.exp(grid.m**2 * (grid.s**2 + grid.s) / 2 - grid.s * epsilon) / (grid.s * (grid.s + 1))
        value, error = self._sum(self.above, kernel, 1 / math.pi)
        tail = math.exp(self.log_mgf + grid.log_smoothing - grid.c * epsilon) * self._cut() / math.pi
        return min(1.0, max(0.0, value + error + tail) + self.infinite * (1 + 1e-9))

    def lower(self, epsilon: float) -> float:
        """delta(epsilon) is at least this."""
        grid = self.grid
        kernel = np.exp(grid.m**2 * (grid.s**2 + grid.s) / 2 - grid.s * epsilon) / (grid.s * (grid.s + 1))
        value, error = self._sum(self.below, kernel, 1 / math.pi)
        bump_kernel = np.exp(grid.m**2 * (grid.s + 0.5) ** 2 / 2 - grid.s * epsilon)
        height = (2 * float(ndtr(grid.m / 2)) - 1) * grid.m / math.sqrt(2 * math.pi)
        bump, bump_error = self._sum(self.below, bump_kernel, 2 * height)
        scale = math.exp(self.log_mgf + grid.log_smoothing + grid.m**2 / 8 - grid.c * epsilon)
        tail = scale * self._cut() * (1 / math.pi + 2 * height * grid.v[-1] ** 2)
        return max(0.0, value - error - bump - bump_error - tail - self._aliases(epsilon))

    def _sum(
        self, law: Transform, kernel: Complex[np.ndarray, " f"], factor: float
    ) -> tuple[float, float]:
        """factor dv Re sum' M_k kernel_k (the first term halved), and a bound on its error."""
        step = factor * (self.grid.v[1] - self.grid.v[0])
        half = np.ones(kernel.size)
        half[0] = 0.5
        size = np.abs(kernel) * half
        lost = np.isinf(law.relative)
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.where(lost, np.exp(law.log_magnitude), np.abs(law.value) * np.expm1(np.where(lost, 0, law.relative)))
        # The kernel's own phase s epsilon is off by a few units of its size.
        rounding = UNIT * (kernel.size + 100 + 8 * np.abs(self.grid.s) * max(1.0, abs(self.grid.window)))
        error = step * float(np.sum(size * (off + np.abs(law.value) * rounding)))
        return step * float(np.sum((law.value * kernel).real * half)), error

    def _cut(self) -> float:
        """Int_V^inf exp(-m^2 v^2/2) / v^2 dv, at most; V one step before the last frequency."""
        last = float(self.grid.v[-1])
        return math.exp(-((self.grid.m * last) ** 2) / 2) / last

    def _aliases(self, epsilon: float) -> float:
        """sum over n != 0 of exp(c n W) delta(epsilon + n W), at most, by Chernoff with the dominating law."""
        total, grid = 0.0, self.grid
        for keep in (lambda a: a > grid.c, lambda a: a < grid.c):
            bounds: list[float] = [math.inf]
            for a, log_m in self.chernoff:
                if keep(a):
                    log_first = log_m + grid.m**2 * (a**2 + a) / 2 - a * epsilon - abs(a - grid.c) * grid.window
                    if log_first < 600:
                        bounds.append(math.exp(log_first) / -math.expm1(-abs(a - grid.c) * grid.window))
            total += min(bounds)
        return total
