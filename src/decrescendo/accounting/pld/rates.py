"""Thousands of different sample rates as mixtures of a few, with an error of second order.

A mechanism with likelihood ratio r has, sampled at rate p, the ratio Y(p) = 1 + p (r - 1), so that its privacy curves
E_Q[(Y(p) - y)_+] and E_Q[(1 - y Y(p))_+] are convex in p for every y. For rates p = p0 + H x, |x| <= 1, of a *cell*:

* The step is dominated by the mechanism that tosses a public coin and samples at p0 - H or at p0 + H (the chord).
* Its curve is at least the tangent's, curve(p0) + (p - p0) d curve/dp, whose transform is M(p0) + (p - p0) dM/dp.

A tangent is no mechanism's curve. With A_t the chord, B_t the step and L_t the tangent, L_t <= B_t <= A_t, steps are
exchanged one after the other:

    curve of prod B_t  >=  curve of prod A_t - G,      G = sum_t (curve of (A_t - L_t) prod_{u != t} A_u)  >=  0.

The transform of the right side is prod_t A_t (1 - sum_t (A_t - L_t)/A_t): `transform` has that sum as the *gap*. The
transforms of a cell's steps are of first degree in x, and in the coefficient w between two nodes of mu
(`interpolation`), so that all that is needed of thousands of steps are sums of x^a w^b.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.pld.discretisation import LossGrid, losses
from decrescendo.accounting.pld.interpolation import ORDER, Mixtures, spread_places


def cells(
    rate: Float[np.ndarray, " n"], mu: Float[np.ndarray, " n"], count: Int[np.ndarray, " n"], number: int
) -> Int[np.ndarray, " n"]:
    """A cell's number for each rate in (0, 1), ascending with it: narrow ones where they bend the bound most.

    >>> cells(np.array([0.01, 0.0101, 0.1]), np.ones(3), np.ones(3, dtype=np.int64), 4).tolist()
    [0, 0, 3]
    """
    place = np.log(rate) - np.log1p(-rate)
    # The second derivative of a step's part in the variance of the loss, in ``place``.
    share = rate * (1 - rate)
    cost = count * (share / share.max()) ** 2 * np.expm1(np.minimum(mu**2, 600.0)) + 1e-300
    return np.searchsorted(spread_places(place, cost, number + 1)[1:-1], place, side="right")


@dataclass(frozen=True, slots=True)
class Spread:
    """The rates of a cell, and what composition needs to know of its steps.

    ``low``, ``high``: losses at p0 - H and p0 + H; ``typical``: at the root mean square of the rates, to steer with;
    ``turn``: H dY/dp / Y at p0; ``moments[g, a, b]``: the sum over the members of group g of count x^a
    (w/largest_g)^b.
    """

    half_width: float
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    typical: Float[np.ndarray, " n"]
    turn: Float[np.ndarray, " n"]
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
        low, p0, high = float(self.rate.min()), self.middle, float(self.rate.max())
        half, sums = (high - low) / 2, self.moments(mixtures)
        root = float(np.sqrt(np.average(self.rate**2, weights=self.count)))
        y = np.r_[0.0, np.exp(loss_grid.e)]
        turn = half * np.r_[-1.0, np.expm1(loss_grid.e)] / (1 - p0 + p0 * y)
        ends = losses(loss_grid, low), losses(loss_grid, high)
        return Spread(half, *ends, losses(loss_grid, root), turn, sums)

    def moments(self, mixtures: Mixtures) -> Float[np.ndarray, "g a b"]:
        """`Spread.moments`."""
        half = (float(self.rate.max()) - float(self.rate.min())) / 2
        x = (self.rate - self.middle) / half
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
        return sums
