"""Many sample rates in one run: the expansion in the rate against plain sums, other libraries and exact integrals."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.accounting.test_pld import composed_elsewhere, two_steps_exactly

from decrescendo.accounting import Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import accountant
from decrescendo.accounting.pld.discretisation import OneRecord, losses
from decrescendo.accounting.pld.interpolation import Mixtures, build_nodes, mixtures_above, mixtures_below
from decrescendo.accounting.pld.inversion import Inversion
from decrescendo.accounting.pld.rates import Cell
from decrescendo.accounting.pld.transform import Part, log_mgfs, transforms
from decrescendo.accounting.pld.waves import DIRECTIONS, Direction
from decrescendo.accounting.release import Release

DELTA = 1e-6


def run_of(rate: np.ndarray, noise: np.ndarray) -> Ledger:
    return Ledger([Release(float(p), float(z)) for p, z in zip(rate, noise, strict=True)])


def in_cells(monkeypatch: pytest.MonkeyPatch, rates: int) -> None:
    """From so many rates on they are put into so many cells; more with every refinement."""
    first = Pld._effort
    monkeypatch.setattr(accountant, "_PILOT", replace(accountant._PILOT, rates=rates))
    monkeypatch.setattr(Pld, "_effort", lambda self: replace(first(self), rates=rates))


def member(mixtures: Mixtures, place: int) -> np.ndarray:
    """The masses of the step whose mu is number ``place``."""
    group = mixtures.group[place]
    return mixtures.base[group] + mixtures.coefficient[place] * mixtures.difference[group]


def cell_of(
    middle: float, low: float, high: float, *, width: float = 0.1, steps: int = 120
) -> tuple[Cell, np.ndarray, np.ndarray]:
    """Steps whose rates are a cell of odds around ``middle``, two a mu; the distinct mu and how often they are used."""
    rng = np.random.default_rng(0)
    mu = np.sort(rng.uniform(low, high, steps // 2))
    place = np.arange(steps // 2).repeat(2)
    odds = middle / (1 - middle) * np.exp(rng.uniform(-width / 2, width / 2, steps))
    count = rng.integers(1, 4, steps)
    totals = np.bincount(place, weights=count).astype(np.int64)
    return Cell(odds / (1 + odds), place, count), mu, totals


def waves_of(loss: np.ndarray, direction: Direction, s: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        waves = np.exp(np.outer(loss, 1 + s)) if direction == "remove" else np.exp(np.outer(-loss, s))
    if direction == "add":
        waves[0] = 0
    return waves


CASES = [(1e-4, 0.3, 0.8, 0.02), (0.01, 0.7, 1.6, 0.02), (0.3, 0.1, 0.3, 0.3), (0.97, 0.05, 0.1, 0.3)]


@pytest.mark.parametrize("side", [mixtures_above, mixtures_below])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("middle", "low", "high", "tilt"), CASES)
def test_a_cells_product_and_gap_are_plain_sums_within_their_own_errors(
    side: Callable[..., Mixtures], direction: Direction, middle: float, low: float, high: float, tilt: float
) -> None:
    """Chords and tangents of every member, one after the other, in the place of sums of x^a w^b."""
    cell, mu, totals = cell_of(middle, low, high)
    nodes = build_nodes(OneRecord(1.0), mu, totals, nodes=12, kappa=0.06, left=7, right=7)
    mixtures = side(nodes, mu, totals)
    spread, centre = cell.spread(nodes.loss_grid, mixtures), losses(nodes.loss_grid, cell.middle)
    part = Part(centre, mixtures, cell.middle, spread, tangent=True)
    scale = middle * high
    # More than are summed one by one: all frequencies are multiples of the second.
    v = np.arange(200) * 0.1 / (scale * math.sqrt(cell.count.sum()))
    c = tilt / scale
    (found,) = transforms([[part]], direction, c, v)
    s = c + 1j * v
    power = 1 + s if direction == "remove" else -s
    at_low, at_high, at_middle = (waves_of(loss, direction, s) for loss in (spread.low, spread.high, centre))
    product, gap = np.zeros(v.size, dtype=np.complex128), np.zeros(v.size, dtype=np.complex128)
    y = np.r_[0.0, np.exp(nodes.loss_grid.e)]
    # Two steps share a mu, and so their sums: all of them at once.
    each = np.array([member(mixtures, i) for i in range(mu.size)])
    sums = [each @ waves.real + 1j * (each @ waves.imag) for waves in (at_low, at_high, at_middle)]
    bent = each * (y - 1) / (1 - cell.middle + cell.middle * y)
    slopes = power * (bent @ at_middle.real + 1j * (bent @ at_middle.imag))
    for p, i, n in zip(cell.rate, cell.place, cell.count, strict=True):
        x = (p - cell.middle) / spread.half_width
        chord = sums[0][i] * (1 - x) / 2 + sums[1][i] * (1 + x) / 2
        tangent = sums[2][i] + (p - cell.middle) * slopes[i]
        product += n * np.log(chord)
        gap += n * (chord - tangent) / chord
    known = np.isfinite(found.relative)
    assert known[:2].all()
    difference = (found.log_value - product)[known]
    off = np.abs(np.exp(difference.real + 1j * np.angle(np.exp(1j * difference.imag))) - 1)
    assert np.all(off <= np.expm1(found.relative[known]) + 1e-11)
    assert np.all(product.real <= found.log_magnitude + 1e-9)
    assert np.all(np.abs(found.gap - gap)[known] <= found.gap_error[known] + 1e-11)
    assert np.all(
        np.abs(np.exp(product) * gap) <= np.exp(found.log_magnitude) * (np.abs(found.gap) + found.gap_error) + 1e-9
    )
    assert log_mgfs([[part]], direction, [c])[0, 0] >= product[0].real - 1e-12
    assert found.relative[1] < 1e-3
    assert gap[0].real > 0


@given(
    seed=st.integers(0, 2**31),
    log_mu=st.floats(-1.5, 0.5),
    log_rate=st.floats(-4, -0.1),
    width=st.floats(0.01, 1.0),
    place=st.floats(-1, 1),
)
def test_every_rate_of_a_cell_is_between_tangent_and_chord(
    seed: int, log_mu: float, log_rate: float, width: float, place: float
) -> None:
    """For any masses, in both directions, at every y."""
    rng = np.random.default_rng(seed)
    high = 10**log_rate
    low = high * math.exp(-width)
    middle, half = (low + high) / 2, (high - low) / 2
    p = middle + half * place
    ratio = np.exp(10**log_mu * rng.normal(size=50))
    q = rng.random(50)
    q /= q.sum()
    at = 1 + np.outer([low, middle, p, high], ratio - 1)
    for y in np.r_[rng.choice(at[2], 5), np.exp(10**log_mu * rng.normal(size=5) * p)]:
        for direction in DIRECTIONS:
            sign = 1.0 if direction == "remove" else -1.0
            payoff = sign * (at - y) if direction == "remove" else 1 - y * at
            low_curve, middle_curve, exact, high_curve = np.maximum(payoff, 0) @ q
            slope = ((payoff[1] > 0) * (ratio - 1) * (1.0 if direction == "remove" else -y)) @ q
            assert exact <= ((1 - place) * low_curve + (1 + place) * high_curve) / 2 + 1e-12
            assert exact >= middle_curve + (p - middle) * slope - 1e-12


@given(log_m=st.floats(-3, -0.3), x=st.floats(-6, 6))
def test_the_bump_bends_down_by_no_more_than_is_taken_off(log_m: float, x: float) -> None:
    """h'' of the bump as a payoff of y, at e = 0 and y = exp(-x m): against finite differences."""
    m = 10**log_m

    def payoff(log_y: float) -> float:
        return math.exp(log_y - log_y / 2 - (log_y / m) ** 2 / 2)

    y, step = -x * m, m * 1e-3
    points = [payoff(y + k * step) for k in (-1, 0, 1)]
    first, second = (points[2] - points[0]) / (2 * step), (points[2] - 2 * points[1] + points[0]) / step**2
    assert second - first >= -(1 / m**2 + 0.25) * points[1] * (1 + 1e-3) - 1e-3


@pytest.mark.slow
def test_a_bound_from_below_without_its_gap_would_be_too_high() -> None:
    """The gap is needed: chords alone are above the steps, by more than a narrow bracket."""
    rate = np.geomspace(0.01, 0.02, 60)
    ledger = run_of(rate, np.ones(60)).distinct()
    wide = accountant._Effort(nodes=16, rates=2, kappa=0.01, smoothing=1e-5)
    near = Pld().bracket(ledger, DELTA)
    steps = accountant._Steps.of(ledger, DELTA, wide, 1)
    bounds = steps.bounds(near[1], DELTA, 1e-5 * near[1], lower=True)
    lower, upper = bounds.epsilons(DELTA, near[1])
    assert lower <= near[0] <= near[1] <= upper
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inversion, "_gap_twice", lambda self: 0.0)
        assert bounds.epsilons(DELTA, near[1])[0] > near[1]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinite_losses_are_counted_at_every_steps_own_rate(direction: Direction) -> None:
    rng = np.random.default_rng(3)
    mu = np.sort(rng.uniform(0.5, 1.0, 40))
    rate, count = rng.uniform(0.01, 0.014, 40), rng.integers(1, 5, 40)
    nodes = build_nodes(OneRecord(1.0), mu, count, nodes=8, kappa=0.06, left=3, right=3)
    mixtures = mixtures_above(nodes, mu, count)
    cell = Cell(rate, np.arange(40), count)
    spread = cell.spread(nodes.loss_grid, mixtures)
    part = Part(losses(nodes.loss_grid, cell.middle), mixtures, cell.middle, spread)
    plain = 0.0
    for i in range(40):
        group, w = mixtures.group[i], mixtures.coefficient[i]
        infinite = mixtures.base_infinite[group] + w * mixtures.difference_infinite[group]
        plain += count[i] * (rate[i] * infinite if direction == "remove" else member(mixtures, i)[0])
    assert part.infinite_mass(direction) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "epsilon"),
    [
        (Release(0.1, 1.0), Release(0.11, 0.8), 0.8),
        (Release(0.02, 2.0), Release(0.017, 3.0), 0.03),
        (Release(0.6, 0.7), Release(0.55, 1.5), 2.0),
    ],
)
def test_two_rates_in_a_cell_against_the_exact_integral(
    first: Release, second: Release, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cells(monkeypatch, 1)
    exact = two_steps_exactly(first, second, epsilon)
    lower, upper = Pld(rtol=1e-4).delta_bracket(Ledger([first, second]), epsilon)
    assert lower <= exact <= upper
    assert upper - lower < 0.3 * exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "noise"),
    [
        pytest.param(np.geomspace(0.02, 0.03, 30), np.linspace(0.9, 1.3, 30), marks=pytest.mark.slow),
        (np.linspace(0.3, 0.7, 16), np.linspace(6.0, 4.0, 16)),
    ],
)
def test_different_rates_against_an_independent_library_step_by_step(rate: np.ndarray, noise: np.ndarray) -> None:
    ledger = run_of(rate, noise)
    finer, coarser = (composed_elsewhere(ledger, grid) for grid in (2e-4, 4e-4))
    for delta in (1e-5, 1e-8):
        lower, upper = Pld().bracket(ledger, delta)
        fine, coarse = finer(delta), coarser(delta)
        converged = fine - (coarse - fine) / 3
        assert lower <= fine
        assert upper >= converged - (coarse - fine)
        assert lower * (1 - 1e-4) <= converged <= upper * (1 + 1e-4)


@pytest.mark.slow
@settings(max_examples=3)
@given(
    seed=st.integers(0, 2**31),
    log_noise=st.floats(-0.5, 1.5),
    log_rate=st.floats(-4, -0.4),
    span=st.floats(0.1, 1.0),
    log_steps=st.floats(1.5, 2.0),
    log_delta=st.floats(-6, -4),
)
def test_cells_and_rates_one_by_one_agree(
    seed: int, log_noise: float, log_rate: float, span: float, log_steps: float, log_delta: float
) -> None:
    """Eight rates: both ways bracket the same number, with ends that are equal up to the nodes of the noise."""
    rng = np.random.default_rng(seed)
    steps, delta = int(10**log_steps), 10**log_delta
    rates = np.minimum(10**log_rate * np.exp(span * rng.random(8)), 0.999)
    noise = 10**log_noise * np.exp(rng.uniform(0, 1) * rng.random(steps))
    ledger = run_of(rng.choice(rates, steps), noise)
    with pytest.MonkeyPatch.context() as patch:
        in_cells(patch, 10**9)
        near = Pld().estimate(ledger, delta)
        if not 1e-3 < near < 60:
            return
        apart = Pld(rtol=1e-2).bracket(ledger, delta)
    with pytest.MonkeyPatch.context() as patch:
        in_cells(patch, 4)
        together = Pld(rtol=1e-2).bracket(ledger, delta)
    assert together[0] <= apart[1]
    assert apart[0] <= together[1]
    # No closer than what both were asked for: brackets of 1 % that share the truth.
    assert together[1] == pytest.approx(apart[1], rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "smallest"),
    [(60, 5e-4), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((300, 2e-3), (200, 1e-5)))],
)
def test_a_few_hundred_small_rates_where_most_steps_cost_next_to_nothing(rates: int, smallest: float) -> None:
    rng = np.random.default_rng(0)
    lower, upper = Pld().bracket(run_of(smallest * np.exp(rng.random(rates)), 0.8 + rng.random(rates)), DELTA)
    assert 0 < upper - lower <= 1e-3 * upper


@pytest.mark.slow
@settings(max_examples=2)
@given(seed=st.integers(0, 2**31), log_rate=st.floats(-4, -1), change=st.floats(1.0, 1.5))
def test_more_noise_or_a_smaller_rate_never_raises_epsilon(seed: int, log_rate: float, change: float) -> None:
    rng = np.random.default_rng(seed)
    rate, noise = 10**log_rate * np.exp(rng.random(20)), 0.8 + rng.random(20)
    upper = Pld().bracket(run_of(rate, noise), DELTA)[1]
    louder = np.where(rng.random(20) < 0.5, change, 1.0)
    for quieter in (run_of(rate, noise * louder), run_of(rate / louder, noise)):
        less = Pld().bracket(quieter, DELTA)
        assert less[0] <= upper
        assert less[1] <= upper * (1 + 1e-3)


@pytest.mark.slow
@settings(max_examples=2)
@given(seed=st.integers(0, 2**31))
def test_splitting_and_order_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate, noise, count = 0.01 * np.exp(rng.random(50)), 0.8 + rng.random(50), rng.integers(1, 5, 50)
    columns = list(zip(rate.tolist(), noise.tolist(), count.tolist(), strict=True))
    whole = Ledger([Release(p, z, n) for p, z, n in columns])
    split = Ledger([Release(p, z) for p, z, n in columns[::-1] for _ in range(n)])
    assert Pld().bracket(whole, DELTA) == Pld().bracket(split, DELTA)


class TestManyRates:
    STEPS = 5_000

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("rate", "noise"),
        [
            pytest.param(
                np.geomspace(0.002, 0.02, 5_000),
                np.linspace(3.0, 1.1, 5_000),
                id="both move",
                marks=pytest.mark.slow,
            ),
            pytest.param(
                np.linspace(0.05, 0.5, 5_000),
                np.linspace(20.0, 40.0, 5_000),
                id="large batches",
                marks=pytest.mark.slow,
            ),
            pytest.param(
                np.geomspace(0.001, 0.003, 5_000),
                np.linspace(0.6, 0.9, 5_000),
                id="little noise",
                marks=pytest.mark.slow,
            ),
            pytest.param(np.geomspace(0.002, 0.02, 5_000), np.full(5_000, 1.3), id="batches only"),
        ],
    )
    def test_five_thousand_rates_are_bracketed_to_a_tenth_of_a_percent(
        self, rate: np.ndarray, noise: np.ndarray
    ) -> None:
        lower, upper = Pld().bracket(run_of(rate, noise), DELTA)
        assert 0 < lower <= upper
        assert upper - lower <= 1e-3 * upper

    @pytest.mark.slow
    def test_rates_that_are_almost_one_cost_as_much_as_that_one(self) -> None:
        rate = 0.01 * (1 + 1e-9 * np.arange(50))
        one = Pld().bracket(Ledger([Release(0.01, 1.0, 50)]), DELTA)
        several = Pld().bracket(run_of(rate, np.ones(50)), DELTA)
        assert several == pytest.approx(one, rel=1e-4)

    def test_five_thousand_rates_are_no_more_parts_than_cells(self) -> None:
        rate = np.geomspace(0.002, 0.02, self.STEPS)
        effort = Pld()._effort()
        steps = accountant._Steps.of(run_of(rate, np.linspace(2, 1, self.STEPS)), DELTA, effort, 1)
        assert 8 < len(steps.groups) <= 1.25 * effort.rates  # the noise moves, too
        total = sum(float(part.mixtures.counts.sum()) for part in steps.above.parts[0])
        assert total == self.STEPS

    @pytest.mark.parametrize(("smallest", "cells"), [(0.02, 50), (0.001, 93), (1e-6, 200)])
    def test_rates_that_are_far_apart_get_more_cells(self, smallest: float, cells: int) -> None:
        rng = np.random.default_rng(0)
        rate = np.r_[smallest, 0.1, np.exp(rng.uniform(math.log(smallest), math.log(0.1), 400))]
        effort = Pld()._effort()
        steps = accountant._Steps.of(run_of(rate, rng.uniform(0.6, 4.0, 402)), DELTA, effort, 1)
        assert 0.6 * cells < len(steps.groups) <= cells

    @pytest.mark.slow
    def test_unlike_pairs_are_as_sharp_as_like_ones(self) -> None:
        """5,000 rates and noises, each drawn by itself."""
        rng = np.random.default_rng(0)
        rate = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), self.STEPS))
        lower, upper = Pld().bracket(run_of(rate, rng.uniform(0.6, 4.0, self.STEPS)), DELTA)
        assert upper - lower <= 1e-3 * upper
        assert lower <= 13.2127  # where an earlier grid's two ends were
        assert upper >= 13.2036

    @pytest.mark.slow
    def test_batches_may_grow_until_everybody_is_in_them(self) -> None:
        rate, noise = np.linspace(0.5, 1.0, 60), np.full(60, 30.0)
        lower, upper = Pld().bracket(run_of(rate, noise), DELTA)
        assert upper - lower <= 1e-3 * upper
        assert Pld().bracket(run_of(rate[:-1], noise[:-1]), DELTA)[0] <= upper
        assert lower <= Pld().bracket(run_of(np.full(60, 1.0), noise), DELTA)[1]
