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
from decrescendo.accounting.ledger import Ledger, Release
from decrescendo.accounting.pld import accountant
from decrescendo.accounting.pld.discretisation import losses
from decrescendo.accounting.pld.interpolation import Mixtures, build_nodes, mixtures_above, mixtures_below
from decrescendo.accounting.pld.rates import WIDTH, Cell, cells, expanded, log_bound
from decrescendo.accounting.pld.transform import DIRECTIONS, Direction, Part

DELTA = 1e-6


def run_of(rate: np.ndarray, noise: np.ndarray) -> Ledger:
    return Ledger([Release(float(p), float(z)) for p, z in zip(rate, noise, strict=True)])


def in_cells(monkeypatch: pytest.MonkeyPatch, *, always: bool) -> None:
    """Put any two rates into a cell, or none."""
    monkeypatch.setattr(accountant, "_FEW_RATES", 1 if always else 10**9)
    monkeypatch.setattr(accountant, "_ALONE", 1)


def member(mixtures: Mixtures, place: int) -> np.ndarray:
    """The masses of the step whose mu is number ``place``."""
    group = mixtures.group[place]
    return mixtures.base[group] + mixtures.coefficient[place] * mixtures.difference[group]


@pytest.mark.parametrize("side", [mixtures_above, mixtures_below])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("middle", "low", "high", "tilt"),
    [(1e-4, 0.3, 0.8, 0.02), (0.01, 0.7, 1.6, 0.02), (0.3, 0.1, 0.3, 0.3), (0.97, 0.05, 0.1, 0.3)],
)
def test_the_expansion_is_the_product_of_plain_sums_within_its_own_error(
    side: Callable[..., Mixtures], direction: Direction, middle: float, low: float, high: float, tilt: float
) -> None:
    rng = np.random.default_rng(0)
    mu = np.sort(rng.uniform(low, high, 60))
    place = np.arange(60).repeat(2)
    odds = middle / (1 - middle) * np.exp(rng.uniform(-WIDTH / 2, WIDTH / 2, 120))
    rate, count = odds / (1 + odds), rng.integers(1, 4, 120)
    totals = np.bincount(place, weights=count).astype(np.int64)
    nodes = build_nodes(mu, totals, nodes=12, kappa=0.06, left=7, right=7)
    mixtures = side(nodes, mu, totals)
    cell = Cell(rate, place, count)
    spread, centre = cell.spread(nodes.loss_grid, mixtures), losses(nodes.loss_grid, cell.middle)
    scale = middle * high
    v = np.array([0.0, 0.3, 3.0, 10.0, 30.0, 100.0]) / (scale * math.sqrt(count.sum()))
    tightest = math.inf
    for c in (0.3 * tilt / scale, tilt / scale):
        value, magnitude, relative = expanded(
            centre, mixtures, spread, direction, c, v if direction == "remove" else -v
        )
        direct = np.zeros(v.size, dtype=np.complex128)
        s = c + 1j * v
        for p, i, n in zip(rate, place, count, strict=True):
            loss = losses(nodes.loss_grid, p)
            with np.errstate(over="ignore"):
                waves = np.exp(np.outer(loss, 1 + s)) if direction == "remove" else np.exp(np.outer(-loss, s))
            if direction == "add":
                waves[0] = 0
            direct += n * np.log(member(mixtures, i) @ waves)
        known = np.isfinite(relative)
        assert known[:2].all()
        gap = (value - direct)[known]
        off = np.abs(np.exp(gap.real + 1j * np.angle(np.exp(1j * gap.imag))) - 1)
        assert np.all(off <= np.expm1(relative[known]) + 1e-11)
        assert np.all(direct.real <= magnitude + 1e-9)
        assert log_bound(centre, mixtures, spread, direction, c) >= direct[0].real - 1e-12
        tightest = min(tightest, float(relative[1]))
    assert tightest < 1e-3


def test_the_bound_of_the_error_is_needed() -> None:
    # The check above has power: without its higher degrees the series is off by more than rounding.
    rate = np.array([0.008, 0.012])
    mu, count = np.array([1.0]), np.array([200])
    nodes = build_nodes(mu, count, nodes=4, kappa=0.06, left=7, right=7)
    mixtures = mixtures_above(nodes, mu, count)
    cell = Cell(rate, np.array([0, 0]), np.array([100, 100]))
    spread, centre = cell.spread(nodes.loss_grid, mixtures), losses(nodes.loss_grid, cell.middle)
    v = np.array([5.0])
    value, _, relative = expanded(centre, mixtures, spread, "remove", 5.0, v)
    cut = spread.moments.copy()
    cut[:, 2:] = 0
    shorter = expanded(centre, mixtures, replace(spread, moments=cut), "remove", 5.0, v)[0]
    assert abs(shorter - value)[0] > relative[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinite_losses_are_counted_at_every_steps_own_rate(direction: Direction) -> None:
    rng = np.random.default_rng(3)
    mu = np.sort(rng.uniform(0.5, 1.0, 40))
    rate, count = rng.uniform(0.01, 0.014, 40), rng.integers(1, 5, 40)
    nodes = build_nodes(mu, count, nodes=8, kappa=0.06, left=3, right=3)
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
    in_cells(monkeypatch, always=True)
    exact = two_steps_exactly(first, second, epsilon)
    lower, upper = Pld(rtol=1e-4).delta_bracket(Ledger([first, second]), epsilon)
    assert lower <= exact <= upper
    assert upper - lower < 0.3 * exact


@pytest.mark.parametrize(
    ("rate", "noise"),
    [
        (np.geomspace(0.02, 0.03, 30), np.linspace(0.9, 1.3, 30)),
        (np.linspace(0.3, 0.7, 16), np.linspace(6.0, 4.0, 16)),
    ],
)
def test_different_rates_against_an_independent_library_step_by_step(
    rate: np.ndarray, noise: np.ndarray
) -> None:
    ledger = run_of(rate, noise)
    finer, coarser = (composed_elsewhere(ledger, grid) for grid in (2e-4, 4e-4))
    for delta in (1e-5, 1e-8):
        lower, upper = Pld().bracket(ledger, delta)
        fine, coarse = finer(delta), coarser(delta)
        converged = fine - (coarse - fine) / 3
        assert lower <= fine
        assert upper >= converged - (coarse - fine)
        assert lower * (1 - 1e-4) <= converged <= upper * (1 + 1e-4)


# Where steps cost little, cells are too wide for a narrow bracket: refused, or one rate after the other.
@settings(max_examples=3)
@given(
    seed=st.integers(0, 2**31),
    log_noise=st.floats(-0.2, 0.5),
    log_rate=st.floats(-1.5, -0.6),
    span=st.floats(0.1, 1.0),
    log_steps=st.floats(1.5, 2.0),
    log_delta=st.floats(-6, -4),
)
def test_cells_and_rates_one_by_one_agree(
    seed: int, log_noise: float, log_rate: float, span: float, log_steps: float, log_delta: float
) -> None:
    """Five rates: both ways bracket the same number, with ends that are equal up to the nodes of the noise."""
    rng = np.random.default_rng(seed)
    steps, delta = int(10**log_steps), 10**log_delta
    rates = np.minimum(10**log_rate * np.exp(span * rng.random(5)), 0.999)
    noise = 10**log_noise * np.exp(rng.uniform(0, 1) * rng.random(steps))
    ledger = run_of(rng.choice(rates, steps), noise)
    with pytest.MonkeyPatch.context() as patch:
        in_cells(patch, always=False)
        near = Pld().estimate(ledger, delta)
        if not 1e-3 < near < 60:
            return
        apart = Pld(rtol=1e-2).bracket(ledger, delta)
    with pytest.MonkeyPatch.context() as patch:
        in_cells(patch, always=True)
        together = Pld(rtol=1e-2).bracket(ledger, delta)
    assert together[0] <= apart[1]
    assert apart[0] <= together[1]
    assert together[1] == pytest.approx(apart[1], rel=1e-2)


def test_rates_so_small_that_most_steps_cost_next_to_nothing() -> None:
    """A search that began with wide cells did not end here."""
    rng = np.random.default_rng(0)
    rate, noise = 10**-3.5 * np.exp(rng.random(14)), 0.8 + rng.random(14)
    lower, upper = Pld(rtol=1e-2).bracket(run_of(rate, noise), DELTA)
    assert 0 < upper - lower <= 1e-2 * upper


# Small rates need narrow cells, and take minutes.
@settings(max_examples=3)
@given(seed=st.integers(0, 2**31), log_rate=st.floats(-2, -1), change=st.floats(1.0, 1.5))
def test_more_noise_or_a_smaller_rate_never_raises_epsilon(seed: int, log_rate: float, change: float) -> None:
    rng = np.random.default_rng(seed)
    rate, noise = 10**log_rate * np.exp(rng.random(100)), 0.8 + rng.random(100)
    upper = Pld().bracket(run_of(rate, noise), DELTA)[1]
    louder = np.where(rng.random(100) < 0.5, change, 1.0)
    for quieter in (run_of(rate, noise * louder), run_of(rate / louder, noise)):
        less = Pld().bracket(quieter, DELTA)
        assert less[0] <= upper
        assert less[1] <= upper * (1 + 1e-3)


@settings(max_examples=2)
@given(seed=st.integers(0, 2**31))
def test_splitting_and_order_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate, noise, count = 0.01 * np.exp(rng.random(40)), 0.8 + rng.random(40), rng.integers(1, 5, 40)
    columns = list(zip(rate.tolist(), noise.tolist(), count.tolist(), strict=True))
    whole = Ledger([Release(p, z, n) for p, z, n in columns])
    split = Ledger([Release(p, z) for p, z, n in columns[::-1] for _ in range(n)])
    assert Pld().bracket(whole, DELTA) == Pld().bracket(split, DELTA)


class TestManyRates:
    STEPS = 5_000

    @pytest.mark.parametrize(
        ("rate", "noise"),
        [
            pytest.param(np.geomspace(0.002, 0.02, 5_000), np.linspace(3.0, 1.1, 5_000), id="both move"),
            pytest.param(np.linspace(0.05, 0.5, 5_000), np.linspace(20.0, 40.0, 5_000), id="large batches"),
            pytest.param(np.geomspace(0.001, 0.003, 5_000), np.linspace(0.6, 0.9, 5_000), id="little noise"),
            pytest.param(np.geomspace(0.002, 0.02, 5_000), np.full(5_000, 1.3), id="batches only"),
        ],
    )
    def test_five_thousand_rates_are_bracketed_to_a_tenth_of_a_percent(
        self, rate: np.ndarray, noise: np.ndarray
    ) -> None:
        lower, upper = Pld().bracket(run_of(rate, noise), DELTA)
        assert 0 < lower <= upper
        assert upper - lower <= 1e-3 * upper

    def test_rates_that_are_almost_one_cost_as_much_as_that_one(self) -> None:
        rate = 0.01 * (1 + 1e-9 * np.arange(50))
        one = Pld().bracket(Ledger([Release(0.01, 1.0, 50)]), DELTA)
        several = Pld().bracket(run_of(rate, np.ones(50)), DELTA)
        assert several == pytest.approx(one, rel=1e-4)

    def test_five_thousand_rates_need_no_more_parts_than_a_few_cells(self) -> None:
        rate = np.geomspace(0.002, 0.02, self.STEPS)
        assert np.unique(cells(rate)).size == math.ceil(np.ptp(np.log(rate / (1 - rate))) / WIDTH)
        steps = accountant._Steps.of(run_of(rate, np.linspace(2, 1, self.STEPS)), DELTA, Pld()._effort())
        assert len(steps.groups) <= 6
        total = sum(float(part.mixtures.counts.sum()) for part in steps.above)
        assert total == self.STEPS

    def test_batches_may_grow_until_everybody_is_in_them(self) -> None:
        rate, noise = np.linspace(0.5, 1.0, 60), np.full(60, 30.0)
        lower, upper = Pld().bracket(run_of(rate, noise), DELTA)
        assert upper - lower <= 1e-3 * upper
        assert Pld().bracket(run_of(rate[:-1], noise[:-1]), DELTA)[0] <= upper
        assert lower <= Pld().bracket(run_of(np.full(60, 1.0), noise), DELTA)[1]
