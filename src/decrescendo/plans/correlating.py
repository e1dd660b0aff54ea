"""Searches the strategy of correlated noise with the least cost in a workload: bands and column norms together.

A strategy is S = L D: columns of L have norm 1, D = diag(mu). Its cost F(L, mu) is exact (`workload.System`), and so is
its gradient. What may be spent is steered by the CLT's estimate: the sum over steps of p^2 (exp(mu^2) - 1) is that of
the budget at mu times exp(shift); log F - 2 shift is then minimised (by L-BFGS). Both L and log mu are piecewise linear
in time, with knots that are closer together at the ends. A poor search costs utility, never privacy: `calibrate` scales
and certifies whatever is found.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq, minimize

from decrescendo.accounting import mu_of
from decrescendo.accounting.budget import Budget
from decrescendo.plans.workload import System, Workload

_KNOTS = 17
_ROUNDS = 40  # of L-BFGS, for runs of a thousand steps; longer ones take fewer, for time
_LARGEST_MU = 8.0


@dataclass(frozen=True, slots=True)
class Task:
    """The input of a search for a strategy: workload, budget, and the sample rates with one band, B_t / N."""

    budget: Budget
    workload: Workload
    scale: Float[np.ndarray, " steps"]
    rates: Float[np.ndarray, " steps"]

    @property
    def steps(self) -> int:
        """T."""
        return self.rates.size

    def fits(self, bands: int) -> bool:
        """Whether groups of records are large enough for the batches, and runs long enough for the groups."""
        return bands * float(self.rates.max()) <= 1 and bands <= self.steps

    @property
    def system(self) -> System:
        """The workload for noise of sensitivity 1."""
        return System.of(self.workload, self.scale)


def equal_columns(task: Task, bands: int) -> Float[np.ndarray, "bands steps"]:
    """The square root of the all-ones matrix cut to ``bands``, columns of norm 1: a good start where nothing moves.

    >>> from decrescendo.accounting.budget import Budget
    >>> task = Task(Budget(1.0, 1e-5), Workload(1.0), np.ones(3), np.full(3, 0.1))
    >>> (equal_columns(task, 2) ** 2).sum(axis=0).round(9)
    array([1., 1., 1.])
    """
    root = np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, bands)])
    return _unit(np.tile(root[:, None], task.steps))[0]


def best_strategy(task: Task, bands: int) -> Float[np.ndarray, "bands steps"]:
    """The strategy, up to a factor, of the least cost that the search finds."""
    system, knots = task.system, _Knots.of(task.steps, bands)
    spent = _by_clt(task, bands)

    def objective(theta: Float[np.ndarray, " parameters"]) -> tuple[float, Float[np.ndarray, " parameters"]]:
        shape, log_mu = knots.read(theta)
        unit, norms = _unit(shape)
        cost, slopes, own = _cost(system, unit, log_mu)
        shift, price = spent(log_mu)
        by_mu = own / cost + 2 * price
        # Through the division of columns by their norms.
        by_unit = slopes / cost
        by_shape = (by_unit - unit * np.sum(by_unit * unit, axis=0)) / norms
        return math.log(cost) - 2 * shift, knots.gather(by_shape, by_mu)

    rounds = max(8, math.ceil(_ROUNDS * min(1.0, 1_000 / task.steps)))
    # (Never above the start: each step of the search goes down, or none is taken.)
    options = {"maxiter": rounds, "maxcor": 20}
    found = minimize(objective, knots.start(), jac=True, method="L-BFGS-B", options=options)
    shape, log_mu = knots.read(found.x)
    return _unit(shape)[0] * np.exp(log_mu + spent(log_mu)[0])


@dataclass(frozen=True, slots=True)
class _Knots:
    """The parameters of a strategy: log mu, and each band below the diagonal, at knots; linear between them."""

    between: Float[np.ndarray, "knots steps"]
    bands: int

    @classmethod
    def of(cls, steps: int, bands: int) -> "_Knots":
        places = np.unique(np.round((1 - np.cos(np.linspace(0, np.pi, _KNOTS))) / 2 * (steps - 1)))
        between = np.array([np.interp(np.arange(steps), places, row) for row in np.eye(places.size)])
        return cls(between, bands)

    def start(self) -> Float[np.ndarray, " parameters"]:
        knots = len(self.between)
        root = np.cumprod(1 - 0.5 / np.arange(1, self.bands))
        return np.r_[np.zeros(knots), np.repeat(root, knots)]

    def read(
        self, theta: Float[np.ndarray, " parameters"]
    ) -> tuple[Float[np.ndarray, "bands steps"], Float[np.ndarray, " steps"]]:
        """The bands (the diagonal is 1) and log mu that the parameters ``theta`` describe."""
        log_mu, *rows = theta.reshape(self.bands, -1) @ self.between
        return np.array([np.ones(log_mu.size), *rows]), log_mu

    def gather(
        self, by_shape: Float[np.ndarray, "bands steps"], by_mu: Float[np.ndarray, " steps"]
    ) -> Float[np.ndarray, " parameters"]:
        """The derivatives in the parameters, from those in the bands and in log mu."""
        return (np.r_[by_mu[None], by_shape[1:]] @ self.between.T).ravel()


def _unit(
    shape: Float[np.ndarray, "bands steps"],
) -> tuple[Float[np.ndarray, "bands steps"], Float[np.ndarray, " s"]]:
    """The columns scaled to norm 1, without entries beyond the last step; and their norms."""
    bands, steps = shape.shape
    inside = np.where(np.arange(steps) + np.arange(bands)[:, None] < steps, shape, 0.0)
    norms = np.linalg.norm(inside, axis=0)
    return inside / norms, norms


def _cost(
    system: System, unit: Float[np.ndarray, "bands steps"], log_mu: Float[np.ndarray, " steps"]
) -> tuple[float, Float[np.ndarray, "bands steps"], Float[np.ndarray, " steps"]]:
    """The cost of columns of norm 1 times mu; its derivatives in them, and in log mu."""
    bands, steps = unit.shape
    columns = unit * np.exp(log_mu)
    diagonal = columns[0]
    weights = np.zeros((steps, bands - 1))
    for k in range(1, bands):
        weights[k:, k - 1] = columns[k, :-k] / diagonal[k:]
    cost, by_past, by_fresh = system.gradient(weights, 1 / diagonal)
    # w_{t,k} = S[t, t-k] / S[t, t], and what is fresh has the variance S[t, t]^-2.
    by_column = np.zeros_like(columns)
    by_column[0] = -2 * by_fresh / diagonal**3 - np.sum(by_past * weights, axis=1) / diagonal
    for k in range(1, bands):
        by_column[k, :-k] = by_past[k:, k - 1] / diagonal[k:]
    return cost, by_column * np.exp(log_mu), np.sum(by_column * columns, axis=0)


def _by_clt(
    task: Task, bands: int
) -> Callable[[Float[np.ndarray, " steps"]], tuple[float, Float[np.ndarray, " steps"]]]:
    """For log mu, the shift at which a group's run has the CLT's price of the budget, and minus its derivatives."""
    squares = (bands * task.rates) ** 2
    total = bands * mu_of(task.budget.epsilon, task.budget.delta) ** 2

    def price(log_mu: Float[np.ndarray, " steps"]) -> tuple[float, Float[np.ndarray, " steps"]]:
        def gap(shift: float) -> float:
            x = np.exp(2 * np.minimum(log_mu + shift, math.log(_LARGEST_MU)))
            return math.log(float(squares @ np.expm1(x)) / total)

        low = high = -float(np.max(log_mu))
        while gap(low) > 0:
            low -= 1.0
        while gap(high) < 0 and high < low + 60:
            high += 1.0
        shift = float(brentq(gap, low, high, xtol=1e-12)) if gap(high) > 0 else high
        x = np.exp(2 * (log_mu + shift))
        each = squares * x * np.exp(np.minimum(x, 600.0))
        return shift, each / each.sum()

    return price
