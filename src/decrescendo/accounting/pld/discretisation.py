"""Pessimistic and optimistic discretisation: mechanisms just above and just below the Gaussian, on one grid of losses.

Write e for a privacy loss of the un-subsampled Gaussian mechanism with parameter mu, y = exp(e), and
D(y; mu) = delta(log y; mu) - max(0, 1 - y) for the excess of its privacy curve over that of a mechanism that says
nothing. delta is convex in y. Joining its values at grid points (Doroshenko et al. 2022, "connect the dots") gives
a curve above it, hence a mechanism that dominates it.

*Below*: by d(delta)/d(mu) = phi(e/mu - mu/2) and y^2 d^2(delta)/dy^2 = phi(e/mu - mu/2)/mu, the error of joining the
grid points, at most (step of y)^2/8 times the second derivative, is paid for by lowering mu a little: joining the
points of delta(.; mu') stays below delta(.; mu) as soon as, in every cell [a, b] of e,

    (mu - mu') min_{cell, [mu', mu]} phi  >=  (exp(b - a) - 1)^2 / (8 mu') max_cell phi(.; mu').

With points kappa mu apart this needs mu - mu' of about kappa^2 mu / 8: second order, like the error above.

Poisson subsampling at rate p maps y to 1 - p + p y and multiplies the curve by p: it keeps both orders, the grid, and
the masses under Q (see `losses`). So nothing here depends on p, nor on which neighbour is the larger.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from decrescendo.accounting.gaussian import log_delta
from decrescendo.errors import AccountingError

# Beyond this the laws P and Q are so far apart that masses between them drown in rounding (Phi(-mu/2) below 1e-9).
LARGEST_MU = 12.0
_WIDEST = 0.25
_REACH = 9.0  # deviations over which points are evenly spaced, for the smallest mu

# Relative error allowed for one value of a privacy curve (log_delta and exp; measured at most 1e-13 against mpmath).
CURVE_ERROR = 2e-13


@dataclass(frozen=True, slots=True)
class LossGrid:
    """Losses e_1 < ... < e_n of the un-subsampled mechanism; ``zero`` is the index of e = 0, which is among them."""

    e: Float[np.ndarray, " n"]
    zero: int

    @property
    def y_steps(self) -> Float[np.ndarray, " n"]:
        """exp(e_j) - exp(e_{j-1}), with exp(e_0) = 0."""
        return np.r_[np.exp(self.e[0]), np.exp(self.e[:-1]) * np.expm1(np.diff(self.e))]


@runtime_checkable
class Curves(Protocol):
    """The privacy curves of steps before subsampling, by their mu: `OneRecord`'s, or those of a group (`groups`)."""

    @property
    def rate(self) -> float:
        """The probability that the step has anything of whom it is about: Y = 1 - rate + rate y."""
        ...

    @property
    def error(self) -> float:
        """The relative error of `excess`, at most."""
        ...

    @property
    def bend(self) -> float:
        """b: curves are convex in the total variation of a Gaussian step of parameter b mu."""
        ...

    def excess(self, e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """D(exp(e); mu)."""
        ...

    def ends(self, mu: float, left: float, right: float) -> tuple[float, float]:
        """Losses -e and e beyond which there is no more than ``left`` deviations out under Q, ``right`` under P."""
        ...

    def lowered(self, loss_grid: LossGrid, mu: Float[np.ndarray, " k"], tail: float) -> "Lowered":
        """What the module's inequality asks for, where D exceeds its cut about ``tail`` deviations out."""
        ...


@dataclass(frozen=True, slots=True)
class Lowered:
    """The mu' < mu of the module's inequality, the cut D - cut of a curve below, and the cells that were checked."""

    mu: Float[np.ndarray, " k"]
    cut: Float[np.ndarray, " k"]
    checked: Bool[np.ndarray, "k cells"]


def place_grid(mu_low: float, *, kappa: float, ends: tuple[float, float]) -> LossGrid:
    """A grid for every mu from ``mu_low`` on: ``kappa mu`` apart within `_REACH` deviations, relatively so beyond.

    Args:
        mu_low: the smallest of the steps' mu, > 0.
        kappa: distance of grid points over mu.
        ends: the outermost points are just beyond -ends[0] and ends[1]; see `Curves.ends`.
    """
    # Never wider than _WIDEST: the step of y = exp(e) is what counts, and it grows without bound with that of e.
    step = min(kappa * mu_low, _WIDEST)
    limit = max(ends)
    half = np.arange(1, math.ceil(_REACH * mu_low / step) + 1) * step
    growing = min(limit, _WIDEST * _REACH / kappa)
    if half[-1] < growing:
        count = math.ceil(math.log(growing / half[-1]) / math.log1p(kappa / _REACH))
        half = np.r_[half, half[-1] * (1 + kappa / _REACH) ** np.arange(1, count + 1)]
    if half[-1] < limit:
        half = np.r_[half, half[-1] + _WIDEST * np.arange(1, math.ceil((limit - half[-1]) / _WIDEST) + 1)]
    sides = [half[: int(np.searchsorted(half, end)) + 1] for end in ends]
    return LossGrid(np.r_[-sides[0][::-1], 0.0, sides[1]], sides[0].size)


def excess(e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
    """D(exp(e); mu) with small *relative* error in both tails, from D(-e) = exp(-e) D(e) for e > 0."""
    return np.exp(log_delta(np.abs(e)[None, :], mu[:, None]) + np.minimum(e, 0.0)[None, :])


@dataclass(frozen=True, slots=True)
class OneRecord:
    """The curves of Gaussian steps themselves, for a record that is drawn at ``rate``."""

    rate: float
    error: float = CURVE_ERROR
    bend: float = 1.0

    def excess(self, e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """`excess`."""
        return excess(e, mu)

    def ends(self, mu: float, left: float, right: float) -> tuple[float, float]:
        """From the mean loss mu^2/2 under either law."""
        if mu > LARGEST_MU:
            raise AccountingError(
                f"Pld accounts noise multipliers from {1 / LARGEST_MU:.4f} up, got noise_multiplier={1 / mu:.4g}"
                f"{', of all steps at rate 1 together' if self.rate == 1 else ''}. "
                "Such a step alone has an epsilon around a hundred: add noise"
            )
        return mu * (mu / 2 + left), mu * (mu / 2 + right)

    def lowered(self, loss_grid: LossGrid, mu: Float[np.ndarray, " k"], tail: float) -> Lowered:
        """By the corners of each cell: phi falls from its peak."""
        log_cut = log_delta(mu * (mu / 2 + tail), mu)
        found, relevant = _lowered(loss_grid, mu, tail, log_cut)
        return Lowered(found, np.exp(log_cut), relevant)


@dataclass(frozen=True, slots=True)
class Masses:
    """Discrete mechanisms, one a row: masses under Q at y_0 = 0, y_1, .., y_n, and the mass of P at infinity.

    The mass of P at point j is y_j times that of Q; rows under Q sum to 1. ``slope_scale``: the values over the steps
    of y that the slopes were computed from, which says how exact they are.
    """

    q: Float[np.ndarray, "k n_plus_1"]
    infinite: Float[np.ndarray, " k"]
    slope_scale: Float[np.ndarray, "k n"]


def masses_of(loss_grid: LossGrid, values: Float[np.ndarray, "k n"]) -> Masses:
    """The mechanism whose excess is ``values`` on the grid, 0 at y = 0 and linear in y between: its slopes' jumps."""
    steps = loss_grid.y_steps
    slopes = np.diff(values, axis=1, prepend=0.0) / steps
    scale = values / steps
    scale[:, 1:] += values[:, :-1] / steps[1:]
    q = np.diff(slopes, axis=1, append=0.0)
    q[:, loss_grid.zero] += 1.0  # the jump of max(0, 1 - y)
    return Masses(np.concatenate([slopes[:, :1], q], axis=1), values[:, -1], scale)


def masses_above(loss_grid: LossGrid, mu: Float[np.ndarray, " k"], curves: Curves) -> Masses:
    """Mechanisms that dominate those of parameters ``mu``."""
    return masses_of(loss_grid, curves.excess(loss_grid.e, mu))


def masses_change(loss_grid: LossGrid, mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n_plus_1"]:
    """The derivative of the masses under Q of `masses_above` in log mu, by d(delta)/d(mu) = phi(e/mu - mu/2)."""
    m = mu[:, None]
    rise = m / math.sqrt(2 * math.pi) * np.exp(-((loss_grid.e / m - m / 2) ** 2) / 2)
    slopes = np.diff(rise, axis=1, prepend=0.0) / loss_grid.y_steps
    return np.concatenate([slopes[:, :1], np.diff(slopes, axis=1, append=0.0)], axis=1)


def masses_below(
    loss_grid: LossGrid,
    mu: Float[np.ndarray, " k"],
    curves: Curves,
    *,
    tail: float,
    minus: Float[np.ndarray, " k"] | None = None,
    factor: Float[np.ndarray, " k"] | None = None,
) -> Masses:
    """Mechanisms below the curves (1 + factor) D(mu) - factor D(minus), by default below D(mu); none infinite.

    A curve is given up where it falls below its value ``tail`` deviations out: max(0, curve - that value) is still
    convex, and the module's inequality has to hold in fewer cells.

    Args:
        mu: the node whose curve is lowered so that joining its points stays below it.
        curves: whose.
        minus: a smaller mu, whose curve joined at grid points stays above it, which is the safe side here.
        factor: >= 0.
        tail: in standard deviations.
    """
    lowered = curves.lowered(loss_grid, mu, tail)
    values = curves.excess(loss_grid.e, lowered.mu)
    if minus is not None and factor is not None:
        values = (1 + factor)[:, None] * values - factor[:, None] * curves.excess(loss_grid.e, minus)
    values = np.maximum(values - lowered.cut[:, None], 0.0)
    positive = values > 0
    used = positive[:, 1:] | positive[:, :-1]
    if np.any(used & ~lowered.checked) or positive[:, 0].any() or positive[:, -1].any():
        raise AccountingError("the grid of a lower bound does not reach its tails; this is a bug, please report it")
    return masses_of(loss_grid, values)


def _lowered(
    loss_grid: LossGrid, mu: Float[np.ndarray, " k"], tail: float, log_cut: Float[np.ndarray, " k"]
) -> tuple[Float[np.ndarray, " k"], Bool[np.ndarray, "k cells"]]:
    """The mu' < mu of the module's inequality, and the cells in which it was checked: where D may exceed the cut."""
    left, right = loss_grid.e[None, :-1], loss_grid.e[None, 1:]
    growth = np.expm1(right - left) ** 2 / 8
    high = mu[:, None]
    lowered = mu * (1 - 1e-9)
    for _ in range(60):
        low = lowered[:, None]
        x = [left / low - low / 2, right / low - low / 2, left / high - high / 2, right / high - high / 2]
        squares = [corner**2 for corner in x]
        peak = (x[0] < 0) & (x[1] > 0)  # phi is largest inside the cell
        largest = np.where(peak, 0.0, np.minimum(squares[0], squares[1]))
        # D falls on either side of e = 0. Right of it the cut is at x = tail; left of it D is below 1.3 phi(x),
        # except for -mu^2/2 < e, where only D <= exp(e) is known.
        relevant = (left >= 0) & (x[0] < tail + 0.5)
        relevant |= (left < 0) & (-x[1] < tail + 0.5)
        relevant |= (left < 0) & (right > np.maximum(log_cut[:, None], -(high**2) / 2))
        fall = np.where(relevant, (np.maximum.reduce(squares) - largest) / 2, 0.0)
        needed = np.where(relevant, growth / low * np.exp(np.minimum(fall, 600.0)), 0.0).max(axis=1)
        if np.all(mu - lowered >= needed):
            return lowered, relevant
        lowered = np.where(mu - lowered >= needed, lowered, np.maximum(mu - 1.02 * needed, mu / 2))
    raise AccountingError("the grid is too coarse for a lower bound; ask for a smaller rtol")


def losses(loss_grid: LossGrid, sample_rate: float) -> Float[np.ndarray, " n_plus_1"]:
    """Privacy losses log(1 - p + p y_j) of the subsampled mechanisms at y_0 = 0, y_1, ..; -inf at y_0 for p = 1."""
    p = sample_rate
    change = p * np.expm1(loss_grid.e)
    with np.errstate(divide="ignore"):
        floor = np.log1p(-p) if p < 1 else -np.inf
        far = np.logaddexp(floor, math.log(p) + loss_grid.e)
    near = np.log1p(np.maximum(change, -0.5))
    return np.r_[floor, np.where(np.abs(change) < 0.5, near, far)]
