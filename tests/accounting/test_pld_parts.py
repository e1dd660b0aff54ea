"""The inequalities that make `Pld` a bound, each checked on its own against slow or exact evaluations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from decrescendo.accounting.gaussian import delta_of
from decrescendo.accounting.pld.accountant import _Bounds
from decrescendo.accounting.pld.discretisation import (
    LossGrid,
    OneRecord,
    excess,
    losses,
    masses_above,
    masses_below,
    place_grid,
)
from decrescendo.accounting.pld.interpolation import ORDER, build_nodes, mixtures_above, mixtures_below
from decrescendo.accounting.pld.inversion import Inversion, choose_grid
from decrescendo.accounting.pld.transform import Part, _Steps, log_mgfs, transforms
from decrescendo.accounting.pld.waves import DIRECTIONS, Waves
from decrescendo.errors import AccountingError


def curve_of(loss_grid: LossGrid, q: np.ndarray, infinite: float, e: np.ndarray) -> np.ndarray:
    """delta(e) of a discrete mechanism, minus max(0, 1 - exp(e)): a plain sum over its grid."""
    y = np.r_[0.0, np.exp(loss_grid.e)]
    e = np.minimum(e, 500.0)
    # Written round the side on which the sum is small, so that large y do not drown it.
    right = np.maximum(y[None, :] - np.exp(e)[:, None], 0.0) @ q + infinite
    left = np.maximum(np.exp(e)[:, None] - y[None, :], 0.0) @ q
    return np.where(e > 0, right, left)


def between(loss_grid: LossGrid) -> np.ndarray:
    """The grid points, points between them, and points beyond."""
    inner = np.concatenate([loss_grid.e[:-1] + share * np.diff(loss_grid.e) for share in (0.0, 0.13, 0.5, 0.87)])
    return np.sort(np.r_[inner, loss_grid.e[0] - 1, loss_grid.e[-1], loss_grid.e[-1] + 1])


ONE = OneRecord(1.0)
# Sums of masses in the checker itself are only this exact, absolutely.
NOISE = 5e-15


@given(st.floats(-3, 0.77), st.floats(0, 1), st.floats(0.015, 0.1), st.floats(4, 9))
def test_one_step_lies_between_its_two_discrete_mechanisms(
    log_mu: float, spread: float, kappa: float, tail: float
) -> None:
    mu = 10**log_mu * np.array([1.0, 1 + spread])
    loss_grid = place_grid(mu[0], kappa=kappa, ends=ONE.ends(mu[1], tail + 0.6, tail + 0.6))
    above, below = masses_above(loss_grid, mu, ONE), masses_below(loss_grid, mu, ONE, tail=tail)
    e = between(loss_grid)
    for row in range(2):
        exact = excess(e, mu[row : row + 1])[0]
        upper = curve_of(loss_grid, above.q[row], above.infinite[row], e)
        lower = curve_of(loss_grid, below.q[row], 0.0, e)
        assert np.all(upper >= exact - NOISE)
        assert np.all(lower <= exact + NOISE)
        # Tight: where the curve is not tiny, both are within the second-order error.
        large = exact > 1e-2 * exact.max()
        if row == 1 and tail > 6 and mu[row] < 1:
            assert np.max((upper - lower)[large] / exact[large]) < 8 * kappa**2 + 1e-3
    for masses in (above, below):
        assert masses.q.min() >= 0
        np.testing.assert_allclose(masses.q.sum(axis=1), 1.0, atol=1e-13)


def test_lower_masses_are_not_just_upper_masses() -> None:
    # The check above has power: joining grid points without lowering mu lies above the true curve.
    mu = np.array([0.5])
    loss_grid = place_grid(0.5, kappa=0.05, ends=ONE.ends(0.5, 8, 8))
    above = masses_above(loss_grid, mu, ONE)
    e = between(loss_grid)
    assert np.any(curve_of(loss_grid, above.q[0], 0.0, e) > excess(e, mu)[0] * (1 + 1e-5) + NOISE)


@given(st.floats(-4, 1), st.floats(1e-3, 1.5), st.floats(0.01, 0.99), st.floats(-12, 12))
def test_curves_are_convex_in_the_total_variation(log_mu: float, gap: float, share: float, x: float) -> None:
    low, high = 10**log_mu, 10**log_mu * (1 + gap)
    s = share * (ndtr(high / 2) - ndtr(low / 2)) + ndtr(low / 2)
    from scipy.special import ndtri

    middle = 2 * float(ndtri(s))
    if not low < middle < high:
        return
    e = np.array([x * middle])
    mixed = (1 - share) * excess(e, np.array([low])) + share * excess(e, np.array([high]))
    assert mixed[0, 0] >= excess(e, np.array([middle]))[0, 0] * (1 - 1e-9) - 1e-300


@given(st.integers(0, 2**31), st.floats(-2.5, 0.3), st.floats(0.05, 1.5))
def test_every_member_of_a_group_lies_between_its_mixtures(seed: int, log_mu: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    mu = np.sort(10**log_mu * (1 + spread * rng.random(300)))
    count = rng.integers(1, 5, 300)
    nodes = build_nodes(ONE, mu, count, nodes=16, kappa=0.05, left=7.5, right=7.5)
    e = between(nodes.loss_grid)
    group_above = np.clip(np.searchsorted(nodes.mu, mu) - 1, 0, nodes.mu.size - 2)
    group_below = np.clip(np.searchsorted(nodes.mu, mu, side="right") - 2, 0, nodes.mu.size - 2)
    upper_tail = ndtr(-nodes.mu / 2)

    def share(i: int, group: int) -> float:
        return float((upper_tail[group] - ndtr(-mu[i] / 2)) / (upper_tail[group] - upper_tail[group + 1]))

    above, below = mixtures_above(nodes, mu, count), mixtures_below(nodes, mu, count)
    for i in rng.integers(0, 300, 6):
        exact = excess(e, mu[i : i + 1])[0]
        g = group_above[i]
        w = min(max(share(i, g), 0.0), 1.0) - 0.5
        infinite = above.base_infinite[g] + w * above.difference_infinite[g]
        assert np.all(curve_of(nodes.loss_grid, above.base[g] + w * above.difference[g], infinite, e) >= exact - NOISE)
        g = group_below[i]
        w = max(share(i, g) - 1, 0.0) if below.largest[g] > 0 else 0.0
        masses = below.base[g] + w * below.difference[g]
        assert masses.min() > -1e-18
        assert np.all(curve_of(nodes.loss_grid, masses, 0.0, e) <= exact + NOISE)
    assert above.counts.sum() == below.counts.sum() == count.sum()


@given(
    seed=st.integers(0, 2**31),
    log_scale=st.floats(-6, 0),
    log_window=st.floats(-0.5, 1.5),
    frequencies=st.integers(65, 3_000),
    c=st.floats(0.1, 5),
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sums_at_many_frequencies_are_the_plain_ones_within_their_rounding(
    direction: str, seed: int, log_scale: float, log_window: float, frequencies: int, c: float
) -> None:
    """Nearly all losses close to 0, as small rates have them, some far beyond the window; with a factor and without."""
    rng = np.random.default_rng(seed)
    loss = np.sort(np.r_[10**log_scale * rng.normal(size=150), rng.normal(size=50)])
    v = 2 * math.pi / 10**log_window * np.arange(frequencies)
    waves = Waves.of(loss, direction, c, v if direction == "remove" else -v)  # type: ignore[arg-type]
    q, factor, none = rng.random((2, 200)) / 200, rng.normal(size=200), np.zeros((2, 199))
    plain = np.exp(np.outer(waves.loss, waves.power + 1j * waves.v)) * (waves.tilt > 0)[:, None]
    for found, exact, bound in (
        (waves.sums(q), q @ (plain - 1), waves.rounding(q, none)),
        (waves.sums(q, factor), (q * factor) @ plain, waves.rounding(q, none, factor)),
    ):
        # The plain sum's own rounding: phases, and 200 terms.
        own = 2e-16 * (q * np.abs(waves.tilt)) @ (100 + np.abs(np.outer(waves.loss, waves.v)))
        assert np.all(np.abs(found - exact) <= bound + own * (1 + np.abs(factor).max()) + 1e-15)
        assert np.all(bound <= 1e-12 * (1 + np.abs(waves.v).max()) * (1 + waves.tilt.max()))


@given(st.floats(-5, 0), st.floats(-9, 9))
def test_smoothing_raises_the_payoff_by_no_more_than_the_bump(log_m: float, x: float) -> None:
    m = 10**log_m
    e = x * m  # epsilon minus the loss
    smoothed = delta_of(abs(e), m)
    gap = smoothed if e >= 0 else math.exp(e) * smoothed
    bump = (2 * float(ndtr(m / 2)) - 1) * math.exp(e / 2 - (e / m) ** 2 / 2)
    assert 0 <= gap <= bump * (1 + 1e-10)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.7])
def test_transform_is_the_product_of_plain_sums_within_its_own_error(direction: str, rate: float) -> None:
    rng = np.random.default_rng(1)
    mu = np.sort(0.3 + 0.5 * rng.random(200))
    count = rng.integers(1, 4, 200)
    nodes = build_nodes(ONE, mu, count, nodes=12, kappa=0.06, left=7, right=7)
    mixtures = mixtures_above(nodes, mu, count)
    loss = losses(nodes.loss_grid, rate)
    v = np.array([0.0, 0.5, 3.0, 20.0, 200.0]) / (rate * 0.5)
    c = min(0.1 / rate, 20.0)
    (found,) = transforms([[Part(loss, mixtures, rate)]], direction, c, v)  # type: ignore[arg-type]
    s = c + 1j * v
    with np.errstate(over="ignore", divide="ignore"):
        waves = np.exp(np.outer(loss, 1 + s)) if direction == "remove" else np.exp(np.outer(-loss, s))
    if direction == "add":
        waves[0] = 0
    left = np.clip(np.searchsorted(nodes.mu, mu) - 1, 0, nodes.mu.size - 2)
    tails = ndtr(-nodes.mu / 2)
    weight = (tails[left] - ndtr(-mu / 2)) / (tails[left] - tails[left + 1]) - 0.5
    steps = mixtures.base[left] + weight[:, None] * mixtures.difference[left]
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.exp(count @ np.log(steps @ waves))
    known = np.isfinite(found.relative)
    assert known.sum() >= 3
    error = np.abs(np.exp(found.log_value) - direct)[known]
    assert np.all(error <= np.abs(direct[known]) * (np.expm1(found.relative[known]) + 1e-11))
    with np.errstate(over="ignore"):
        assert np.all(np.abs(direct) <= np.exp(found.log_magnitude) * (1 + 1e-9))
    assert log_mgfs([[Part(loss, mixtures, rate)]], direction, [c])[0, 0] >= math.log(abs(direct[0])) - 1e-12  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "mu", "steps"), [(0.3, 0.4, 3), (0.02, 1.2, 2), (0.9, 0.2, 5)])
def test_inversion_brackets_the_plain_convolution(direction: str, rate: float, mu: float, steps: int) -> None:
    """A coarse mechanism, convolved by brute force: the bracket is of *its* curve, so no grid points are lost."""
    place, counts = np.array([mu]), np.array([steps])
    nodes = build_nodes(ONE, place, counts, nodes=4, kappa=0.45, left=7, right=7)
    mixtures = mixtures_above(nodes, place, counts)
    loss_grid = nodes.loss_grid
    loss = losses(loss_grid, rate)
    part = Part(loss, mixtures, rate)
    masses = mixtures.base[0] * np.exp(loss) if direction == "remove" else mixtures.base[0].copy()
    if direction == "add":
        masses[0] = 0
    sign = 1 if direction == "remove" else -1
    total_loss, total_mass = np.zeros(1), np.ones(1)
    for _ in range(steps):
        total_loss = np.add.outer(total_loss, sign * loss).ravel()
        total_mass = np.multiply.outer(total_mass, masses).ravel()
        order = np.argsort(total_loss)  # merge equal-ish losses: keeps the brute force small, exact to 1e-12
        total_loss, total_mass = total_loss[order], total_mass[order]
        keys = np.round(total_loss, 12)
        starts = np.flatnonzero(np.r_[True, np.diff(keys) != 0])
        total_loss, total_mass = total_loss[starts], np.add.reduceat(total_mass, starts)
        keep = total_mass > 1e-16
        total_loss, total_mass = total_loss[keep], total_mass[keep]
        if total_loss.size > 200_000:
            pytest.skip("brute force too large")
    infinite = part.infinite_mass(direction)  # type: ignore[arg-type]
    for epsilon in (0.05, 0.3, 1.0):
        exact = float(total_mass @ np.maximum(-np.expm1(epsilon - total_loss), 0.0)) + infinite
        if exact < 1e-9:
            continue
        grid = choose_grid([part], direction, epsilon, exact, smoothing=1e-5 * epsilon)  # type: ignore[arg-type]
        inversion = Inversion.of([part], direction, grid).with_below([part], direction)  # type: ignore[arg-type]
        upper, lower = inversion.upper(epsilon), inversion.lower(epsilon)
        assert lower - infinite <= exact + 1e-12
        assert exact <= upper + 1e-12
        assert upper - lower <= 0.02 * exact + 2 * infinite + 1e-12


def test_noise_below_the_range_is_refused() -> None:
    with pytest.raises(AccountingError, match=r"noise multipliers from 0\.0833 up"):
        ONE.ends(30.0, 7, 7)


def test_a_transform_that_vanishes_at_a_frequency_leaves_a_finite_bound() -> None:
    """There 1 + base is 0, and 0 times an infinite ratio made the whole sum not a number; on one kind of processor."""
    here = np.array([-0.1 + 0.2j, -1.0 + 0j, -0.3 + 0j])  # at the second 1 + base is 0 to the last bit
    steps = _Steps(
        base=np.array([here, np.full(3, -0.3)]), terms={(0, 1): np.full((2, 3), 0.25 + 0j)},
        error=np.full((2, 3), 1e-12), gap={}, gap_error=np.zeros((2, 3)),
        moments=np.ones((1, 2, ORDER, ORDER)), members=np.ones(2),
    )  # fmt: skip
    (found,) = steps.products()
    assert np.isinf(found.relative).tolist() == [False, True, False]
    assert np.isfinite(found.gap_error).all()
    # |1 + base| + |terms| of each of the two groups.
    sizes = np.abs(1 + steps.base) + 0.25
    assert found.log_magnitude == pytest.approx(np.log(sizes).sum(axis=0), abs=1e-9)


def test_an_upper_end_that_never_comes_down_is_infinite_at_once() -> None:
    """It was searched for without end."""

    class Flat:
        def upper(self, epsilon: float) -> float:
            return 1.0

        def lower(self, epsilon: float) -> float:
            return 0.0

    bounds = _Bounds((Flat(), Flat()))
    assert bounds.epsilons(1e-6, 1.0) == (0.0, math.inf)
