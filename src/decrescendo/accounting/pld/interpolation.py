"""Thousands of different steps as mixtures of a few dozen node mechanisms, with an error of second order.

Write s = 2 Phi(mu/2) - 1 for the total variation of a Gaussian step. By d(delta)/d(mu) = phi(e/mu - mu/2),

    d^2 delta(e) / ds^2  =  phi(e/mu - mu/2) (e^2/mu^3) / phi(mu/2)^2  >=  0    for every e,

so the privacy curve is convex in s (a group's in that of b mu: `groups`). Hence a step between two nodes,
s = (1 - w) s_a + w s_b,

* is dominated by the mechanism that tosses a public coin and runs node a or b (mixture, 0 <= w <= 1);
* dominates (1 + w) delta_0 - w delta_-, extrapolated from two nodes s_- < s_0 <= s, s = s_0 + w (s_0 - s_-), which is
  the curve of a mechanism as long as its masses are not negative (checked).

Subsampling is linear in the curve, so both survive it. The characteristic function of such a step is *linear* in w.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.special import erf, ndtr

from decrescendo.accounting.pld.discretisation import (
    Curves,
    LossGrid,
    Masses,
    masses_above,
    masses_below,
    place_grid,
)

# log(1 + x) is summed up to x^ORDER / ORDER.
ORDER = 8


@dataclass(frozen=True, slots=True)
class Nodes:
    """Places ``mu`` (ascending) of ``curves``, the grid of node mechanisms; curves below are cut ``tail`` deviations
    out."""

    curves: Curves
    loss_grid: LossGrid
    mu: Float[np.ndarray, " k"]
    tail: float


@dataclass(frozen=True, slots=True)
class Mixtures:
    """Groups of steps: member t of group i has masses base_i + w_t difference_i, for |w_t| <= largest_i.

    ``power_sums[i, k]`` is the sum over members of count_t w_t^k, which is all that composition needs of them;
    ``slope_scale`` bounds that of every member; ``members`` is how many terms those sums have; ``group`` and
    ``coefficient`` w are those of each distinct mu, ascending.
    """

    base: Float[np.ndarray, "g n"]
    difference: Float[np.ndarray, "g n"]
    base_infinite: Float[np.ndarray, " g"]
    difference_infinite: Float[np.ndarray, " g"]
    largest: Float[np.ndarray, " g"]
    power_sums: Float[np.ndarray, "g powers"]
    slope_scale: Float[np.ndarray, "g n_less_1"]
    members: Float[np.ndarray, " g"]
    group: Int[np.ndarray, " mus"]
    coefficient: Float[np.ndarray, " mus"]

    @property
    def counts(self) -> Float[np.ndarray, " g"]:
        """Number of steps in each group."""
        return self.power_sums[:, 0]

    def counted(self, count: Int[np.ndarray, " mus"]) -> "Mixtures":
        """The same mixtures with other counts of each distinct mu."""
        sums = _power_sums(self.group, self.coefficient, count, self.largest.size)
        return replace(self, power_sums=sums)


def build_nodes(
    curves: Curves,
    mu: Float[np.ndarray, " n"],
    count: Int[np.ndarray, " n"],
    *,
    nodes: int,
    kappa: float,
    left: float,
    right: float,
) -> Nodes:
    """Nodes for distinct ascending ``mu``: the values themselves if few, else where they bend the bound most.

    ``left`` and ``right``: where tails are cut, in standard deviations, for Q and for P.
    """
    places = mu if mu.size <= nodes else mu[[0, -1]] if _alike(mu) else _spread(mu, count, nodes)
    margin = max(0.1, 5 * kappa)
    ends = curves.ends(float(places[-1]), left + margin, right + margin)
    loss_grid = place_grid(float(places[0]), kappa=kappa, ends=ends)
    return Nodes(curves, loss_grid, places, min(left, right))


def _alike(mu: Float[np.ndarray, " n"]) -> bool:
    """Whether ascending values are so close together that the largest (or smallest) may stand for all."""
    return bool(mu[-1] <= mu[0] * (1 + 1e-6))


def _spread(mu: Float[np.ndarray, " n"], count: Int[np.ndarray, " n"], nodes: int) -> Float[np.ndarray, " k"]:
    """Node places by the second-order cost of a step, exp(mu^2) mu^2 (2 + 4 mu^2) a log mu."""
    cost = count * np.exp(np.minimum(mu**2, 600.0)) * mu**2 * (2 + 4 * mu**2)
    inner = spread_places(np.log(mu), cost, nodes - 1)
    # One more below the smallest, for the extrapolation; the outermost must cover the extreme steps exactly.
    places = np.exp(np.r_[2 * inner[0] - inner[1], inner])
    places[1], places[-1] = mu[0], mu[-1]
    return places


def spread_places(x: Float[np.ndarray, " n"], cost: Float[np.ndarray, " n"], number: int) -> Float[np.ndarray, " k"]:
    """``number`` places from the least to the largest x: their spacing is to the power -1/3 of the cost there."""
    edges = np.linspace(x.min(), x.max(), 513)
    steps, _ = np.histogram(x, bins=edges, weights=cost)
    density = np.cbrt(steps / steps.sum())
    density = density / density.sum() + 0.25 / density.size  # and some everywhere: spacings stay comparable
    cumulative = np.r_[0.0, np.cumsum(density)]
    return np.interp(np.linspace(0, cumulative[-1], number), cumulative, edges)


def mixtures_above(nodes: Nodes, mu: Float[np.ndarray, " n"], count: Int[np.ndarray, " n"]) -> Mixtures:
    """Every step as a mixture of its two neighbouring nodes, written round the middle: |w| <= 1/2."""
    if mu.size > nodes.mu.size and _alike(mu):
        return exactly(masses_above(nodes.loss_grid, mu[-1:], nodes.curves), count, alike=True)
    above = masses_above(nodes.loss_grid, nodes.mu, nodes.curves)
    q, infinite, scale = above.q, above.infinite, above.slope_scale
    if mu.size <= nodes.mu.size and np.array_equal(mu, nodes.mu):
        return exactly(above, count)
    left = np.clip(np.searchsorted(nodes.mu, mu) - 1, 0, nodes.mu.size - 2)
    coefficient = np.clip(_shares(nodes.mu * nodes.curves.bend, mu * nodes.curves.bend, left), 0.0, 1.0) - 0.5
    return Mixtures(
        base=(q[1:] + q[:-1]) / 2,
        difference=q[1:] - q[:-1],
        base_infinite=(infinite[1:] + infinite[:-1]) / 2,
        difference_infinite=infinite[1:] - infinite[:-1],
        largest=np.full(nodes.mu.size - 1, 0.5),
        power_sums=_power_sums(left, coefficient, count, nodes.mu.size - 1),
        slope_scale=np.maximum(scale[1:], scale[:-1]),
        members=np.bincount(left, minlength=nodes.mu.size - 1).astype(np.float64),
        group=left,
        coefficient=coefficient,
    )


def mixtures_below(nodes: Nodes, mu: Float[np.ndarray, " n"], count: Int[np.ndarray, " n"]) -> Mixtures:
    """Every step extrapolated from the two nodes at or below it; from the one below where masses would be negative.

    A group's masses are those of coefficient 0 and of its largest one, mixed: both ends are curves of mechanisms.
    """
    if mu.size > nodes.mu.size and _alike(mu):
        return exactly(masses_below(nodes.loss_grid, mu[:1], nodes.curves, tail=nodes.tail), count, alike=True)
    below = masses_below(nodes.loss_grid, nodes.mu, nodes.curves, tail=nodes.tail)
    if mu.size <= nodes.mu.size and np.array_equal(mu, nodes.mu):
        return exactly(below, count)
    groups = nodes.mu.size - 1
    group = np.clip(np.searchsorted(nodes.mu, mu, side="right") - 2, 0, groups - 1)
    coefficient = np.maximum(_shares(nodes.mu * nodes.curves.bend, mu * nodes.curves.bend, group) - 1.0, 0.0)
    largest = np.full(groups, 1e-6)
    np.maximum.at(largest, group, coefficient)
    base = below.q[1:]
    end = masses_below(
        nodes.loss_grid, nodes.mu[1:], nodes.curves, tail=nodes.tail, minus=nodes.mu[:-1], factor=largest
    )
    valid = end.q.min(axis=1) >= 0
    coefficient, largest = np.where(valid[group], coefficient, 0.0), np.where(valid, largest, 0.0)
    difference = np.where(valid[:, None], (end.q - base) / np.where(valid, largest, 1.0)[:, None], 0.0)
    none = np.zeros(groups)
    members = np.bincount(group, minlength=groups).astype(np.float64)
    # An extrapolated curve's rounding is that of both curves it was made of.
    scale = (1 + 2 * largest)[:, None] * below.slope_scale[1:]
    sums = _power_sums(group, coefficient, count, groups)
    return Mixtures(base, difference, none, none, largest, sums, scale, members, group, coefficient)


def exactly(masses: Masses, count: Int[np.ndarray, " n"], *, alike: bool = False) -> Mixtures:
    """One group a mu, or one for all that are ``alike``: nothing to mix."""
    of = np.zeros(count.size, dtype=np.int64) if alike else np.arange(count.size)
    if alike:
        count = count.sum(keepdims=True)
    none = np.zeros(count.size)
    sums = np.zeros((count.size, ORDER))
    sums[:, 0] = count
    ones = np.ones(count.size)
    zero = np.zeros_like(masses.q)
    return Mixtures(masses.q, zero, masses.infinite, none, none, sums, masses.slope_scale, ones, of, np.zeros(of.size))


def _shares(
    nodes: Float[np.ndarray, " k"], mu: Float[np.ndarray, " n"], left: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """(s - s_left)/(s_right - s_left) with s the total variation 2 Phi(mu/2) - 1."""
    return variation(nodes[left], mu) / variation(nodes[left], nodes[left + 1])


def variation(low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """s(high) - s(low), without cancelling where s is near 0 or near 1."""
    return np.where(high < 1, erf(high / np.sqrt(8)) - erf(low / np.sqrt(8)), 2 * (ndtr(-low / 2) - ndtr(-high / 2)))


def _power_sums(
    group: Int[np.ndarray, " n"],
    coefficient: Float[np.ndarray, " n"],
    count: Int[np.ndarray, " n"],
    groups: int,
) -> Float[np.ndarray, "g powers"]:
    """Sum over the members of each group of count times coefficient^k, k = 0 .. ORDER - 1."""
    terms = count.astype(np.float64)
    sums: list[Float[np.ndarray, " g"]] = []
    for _ in range(ORDER):
        sums.append(np.bincount(group, weights=terms, minlength=groups))
        terms = terms * coefficient
    return np.stack(sums, axis=1)
