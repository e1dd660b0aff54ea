"""What one more bit of mu at one step costs in delta: the marginal costs that a best schedule is found with.

delta(e) = (1/2 pi) Int M(c + iv) exp(-(c + iv) e) / ((c + iv)(c + 1 + iv)) dv, and M = prod_t phi(mu_t), with phi the
transform of a single step. Moving mu_t alone multiplies the integrand by a ratio of two phi, so that

    d delta / d log mu_t  =  Re Int w(v) (d log phi / d log mu)(mu_t, c + iv) dv,

with ONE factor w, that of the whole run, for all steps: they all read their cost from one curve. log phi and its
derivative are kept at nodes of log mu, with cubic Hermite interpolation between them, so that a run of any length
costs one row of coefficients.

Estimates, for steering: discretised, smoothed (`inversion`) and interpolated, within about a thousandth of epsilon.
Nothing here is a bound; what is found is certified by `Pld` afterwards.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Complex, Float
from scipy.special import expm1, log1p, ndtri

from decrescendo.accounting.gaussian import log_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.discretisation import (
    OneRecord,
    losses,
    masses_above,
    masses_change,
    place_grid,
)
from decrescendo.accounting.pld.interpolation import build_nodes, mixtures_above
from decrescendo.accounting.pld.inversion import Grid, choose_grid
from decrescendo.accounting.pld.transform import Part, log_mgfs
from decrescendo.accounting.pld.waves import DIRECTIONS, Direction, Waves

_SPACING = 0.04  # of nodes, in log mu
_KAPPA = 0.05
_SMOOTHING = 1e-3
_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class MarginalCosts:
    """Both directions of one run's (epsilon, delta), for steps whose mu lies in [mu_low, mu_high]."""

    directions: tuple["Direct", ...]

    @classmethod
    def of(cls, start: Ledger, epsilon: float, delta: float, *, mu_low: float, mu_high: float) -> "MarginalCosts":
        """Tables for schedules that spend about (epsilon, delta), as ``start`` does; one sample rate below 1.

        Args:
            start: a run whose epsilon at ``delta`` is within some ten per cent of ``epsilon``.
            mu_low, mu_high: > 0, at most 12: the range of mu_t that can be asked about.
        """
        distinct = start.distinct()
        rate = float(distinct.sample_rate[0])
        mu, count = 1 / distinct.noise_multiplier[::-1], distinct.count[::-1]
        left, right = (
            float(-ndtri(max(min(1e-5 * delta / mass, 1e-3), 1e-300))) for mass in (start.steps, start.steps * rate)
        )
        curves = OneRecord(rate)
        nodes = build_nodes(curves, mu, count, nodes=24, kappa=0.08, left=left, right=right)
        whole = Part(losses(nodes.loss_grid, rate), mixtures_above(nodes, mu, count), rate)
        x = np.linspace(math.log(mu_low), math.log(mu_high), max(4, math.ceil(math.log(mu_high / mu_low) / _SPACING)))
        loss_grid = place_grid(mu_low, kappa=_KAPPA, ends=curves.ends(mu_high, left, right))
        # The tilt c of a grid fits losses up to where the run's own are cut off (what is beyond has less than delta's
        # part of it): farther ones, which grids for larger mu have, would drown them in what is tilted. They count as
        # losses at the cut, which is too little for nodes far above the run, and those are beyond the budget anyway.
        cut = float(whole.losses[np.isfinite(whole.losses)].max())
        step = replace(whole, losses=np.minimum(losses(loss_grid, rate), cut))
        masses, change = masses_above(loss_grid, np.exp(x), curves).q, masses_change(loss_grid, np.exp(x))
        found: list[Direct] = []
        for direction in DIRECTIONS:
            grid = _widened(choose_grid([whole], direction, epsilon, delta, smoothing=_SMOOTHING * epsilon))
            sums, slopes = _sums(step, direction, grid, masses), _sums(step, direction, grid, change)
            # Any branch will do as long as it does not jump between nodes.
            phi = np.where(sums == -1, 1e-15, 1 + sums)
            logs = np.asarray(log1p(np.where(sums == -1, -1 + 1e-15, sums)), dtype=np.complex128)
            logs = logs.real + 1j * np.unwrap(logs.imag, axis=0)
            kernel = np.exp(grid.m**2 * (grid.s**2 + grid.s) / 2 - 1j * grid.v * epsilon) / (grid.s * (grid.s + 1))
            kernel[0] /= 2
            found.append(
                Direct(
                    grid,
                    epsilon,
                    float(log_mgfs([[whole]], direction, [grid.c])[0, 0]) - grid.c * epsilon,
                    x,
                    np.ascontiguousarray(logs),
                    np.ascontiguousarray(slopes / phi),
                    kernel,
                )
            )
        return cls(tuple(found))

    @property
    def log_mu(self) -> Float[np.ndarray, " k"]:
        """The nodes, evenly spaced."""
        return self.directions[0].log_mu

    def log_deltas(self, log_mu: Float[np.ndarray, " steps"]) -> tuple[float, ...]:
        """log delta(epsilon) of both directions of the run whose steps have these mu."""
        return tuple(direction.log_delta(log_mu) for direction in self.directions)

    def slopes(self, log_mu: Float[np.ndarray, " steps"], share: float) -> Float[np.ndarray, " k"]:
        """d log delta / d log mu_t at the nodes, for a step of this run: ``share`` of *remove*, the rest of *add*."""
        first, second = self.directions
        total = np.zeros(self.log_mu.size)
        if share > 0:
            total += share * first.slopes(log_mu)
        if share < 1:
            total += (1 - share) * second.slopes(log_mu)
        return total


@dataclass(frozen=True, slots=True)
class Direct:
    """One direction: log phi and its derivative in log mu, nodes by frequencies, and what multiplies M.

    ``usual`` is log M(c) exp(-c epsilon), a bound of log delta, of the run that the grid was chosen for.
    """

    grid: Grid
    epsilon: float
    usual: float
    log_mu: Float[np.ndarray, " k"]
    log_phi: Complex[np.ndarray, "k f"]
    change: Complex[np.ndarray, "k f"]
    kernel: Complex[np.ndarray, " f"]

    def log_delta(self, log_mu: Float[np.ndarray, " steps"]) -> float:
        """log delta(epsilon); -690 or 0 for runs that spend so little, or so much, that the grid cannot tell."""
        return self._log_delta(self._log_m(log_mu))

    def slopes(self, log_mu: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " k"]:
        """d log delta / d log mu_t at every node."""
        logs = self._log_m(log_mu)
        factor = _relative(logs) * self.kernel
        scale = self._chernoff(logs) - self._log_delta(logs)
        return math.exp(min(scale, 600.0)) * self._step * np.real(self.change @ factor)

    def _chernoff(self, logs: Complex[np.ndarray, " f"]) -> float:
        """log M(c) exp(-c epsilon): the size of every term, a bound of log delta, and rising in every mu."""
        return float(logs[0].real) - self.grid.c * self.epsilon

    def _log_delta(self, logs: Complex[np.ndarray, " f"]) -> float:
        scale = self._chernoff(logs)
        if logs[0].real < 1:
            # M is close to 1: the law of a mechanism that says nothing is known in closed form.
            silent = float(np.exp(log_delta(self.epsilon, self.grid.m)))
            terms = np.asarray(expm1(logs)) * math.exp(-self.grid.c * self.epsilon)
            total, scale = self._step * float(np.sum(np.real(terms * self.kernel))) + silent, 0.0
        else:
            total = self._step * float(np.sum(np.real(_relative(logs) * self.kernel)))
        if total > 0:
            return min(scale + math.log(total), 0.0)
        return 0.0 if self._chernoff(logs) > self.usual else -690.0  # all that is left of the sum is rounding

    @property
    def _step(self) -> float:
        return float(self.grid.v[1]) / math.pi

    def _log_m(self, log_mu: Float[np.ndarray, " steps"]) -> Complex[np.ndarray, " f"]:
        value, slope = _hermite(self.log_mu, log_mu)
        # Real rows times complex tables, as real tables of twice the width: BLAS has no mixed product.
        both = value @ self.log_phi.view(np.float64) + slope @ self.change.view(np.float64)
        return both.view(np.complex128)


def _relative(logs: Complex[np.ndarray, " f"]) -> Complex[np.ndarray, " f"]:
    """M(c + iv)/M(c), which is at most 1: more is an error of interpolation, for runs far from the grid's own."""
    change = logs - logs[0].real
    return np.exp(np.minimum(change.real, 0.0) + 1j * change.imag)


def _widened(grid: Grid) -> Grid:
    """More frequencies, closer together: aliases stay small for runs that lose more than the one the grid is for."""
    window = grid.window * _WINDOWS
    return replace(grid, window=window, v=2 * math.pi / window * np.arange(math.ceil(_WINDOWS * grid.v.size)))


def _hermite(
    nodes: Float[np.ndarray, " k"], x: Float[np.ndarray, " steps"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """How often each node's value, and its slope, are in the sum of a curve over all ``x``."""
    width = (nodes[-1] - nodes[0]) / (nodes.size - 1)
    place = (x - nodes[0]) / width
    left = np.clip(place.astype(np.int64), 0, nodes.size - 2)
    u = np.clip(place - left, 0.0, 1.0)

    def collected(low: Float[np.ndarray, " steps"], high: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " k"]:
        sums = np.bincount(left, weights=low, minlength=nodes.size)
        return sums + np.bincount(left + 1, weights=high, minlength=nodes.size)

    value = collected((1 + 2 * u) * (1 - u) ** 2, u * u * (3 - 2 * u))
    return value, width * collected(u * (1 - u) ** 2, u * u * (u - 1))


def _sums(step: Part, direction: Direction, grid: Grid, masses: Float[np.ndarray, "k n"]) -> Complex[np.ndarray, "k f"]:
    """phi - 1 at every node (or its derivative) and frequency."""
    sign = 1.0 if direction == "remove" else -1.0
    return Waves.of(step.losses, direction, grid.c, sign * grid.v).sums(masses)
