"""`Pld` against exact integrals, an independent library, itself at other efforts, and its edge cases."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as other
from hypothesis import given, settings
from hypothesis import strategies as st
from often import some
from scipy import integrate
from scipy.special import ndtr

from decrescendo.accounting import Gaussian, GdpClt, Pld, Rdp, epsilon_of
from decrescendo.accounting.budget import Guarantee, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.accountant import _PILOT, _Effort, _Steps
from decrescendo.accounting.pld.single import delta_of_one
from decrescendo.accounting.release import Release
from decrescendo.accounting.verify import verify_epsilon
from decrescendo.errors import AccountingError, InvalidType, InvalidValue

P, DELTA = 250 / 60_000, 1 / 600_000


def composed_elsewhere(ledger: Ledger, grid: float) -> Callable[[float], float]:
    """The epsilon that dp-accounting's discretisation has at a delta."""
    total = None
    for release in ledger:
        step = other.from_gaussian_mechanism(
            release.noise_multiplier, sampling_prob=release.sample_rate, value_discretization_interval=grid
        ).self_compose(release.count)
        total = step if total is None else total.compose(step)
    assert total is not None
    return lambda delta: float(total.get_epsilon_for_delta(delta))


def two_steps_exactly(first: Release, second: Release, epsilon: float) -> float:
    """delta(epsilon) of two steps: the privacy curve of one, integrated over the privacy loss of the other."""

    def loss(x: float) -> float:
        return math.log1p(first.sample_rate * math.expm1((2 * x - 1) / (2 * first.noise_multiplier**2)))

    def remove_curve(e: float) -> float:
        p, mu = second.sample_rate, 1 / second.noise_multiplier
        y = (math.exp(e) - 1 + p) / p
        if y <= 0:
            return -math.expm1(e)
        inner = math.log(y)
        return p * float(ndtr(-inner / mu + mu / 2) - y * ndtr(-inner / mu - mu / 2))

    def add_curve(e: float) -> float:
        return -math.expm1(e) + math.exp(e) * remove_curve(-e)

    z, p = first.noise_multiplier, first.sample_rate

    def density(x: float, mean: float) -> float:
        return math.exp(-((x - mean) ** 2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi))

    reach = np.linspace(-12 * z, 1 + 12 * z, 400)

    def over_first(weight, curve) -> float:
        pieces = itertools.pairwise(reach)
        return sum(integrate.quad(lambda x: weight(x) * curve(x), a, b, epsabs=1e-15)[0] for a, b in pieces)

    remove = over_first(
        lambda x: (1 - p) * density(x, 0) + p * density(x, 1),
        lambda x: remove_curve(epsilon - loss(x)),
    )
    add = over_first(lambda x: density(x, 0), lambda x: add_curve(epsilon + loss(x)))
    return max(remove, add)


@pytest.mark.parametrize(
    ("first", "second", "epsilon"),
    [
        (Release(0.1, 1.0), Release(0.3, 0.8), 0.8),
        pytest.param(Release(0.02, 2.0), Release(0.5, 3.0), 0.5, marks=pytest.mark.slow),
        pytest.param(Release(0.6, 0.7), Release(0.6, 1.5), 2.0, marks=pytest.mark.slow),
    ],
)
def test_two_different_steps_against_the_exact_integral(first: Release, second: Release, epsilon: float) -> None:
    exact = two_steps_exactly(first, second, epsilon)
    lower, upper = Pld(rtol=1e-4).delta_bracket(Ledger([first, second]), epsilon)
    assert lower <= exact <= upper
    assert upper - lower < 2e-3 * exact
    low, high = Pld(rtol=1e-3).bracket(Ledger([first, second]), exact)
    assert low <= epsilon <= high


# With two deltas over 40 constant schedules over the ranges promised; dp-accounting's grid is fine enough for 2e-4 of
# epsilon.
CONSTANT = [
    (5e-4, 0.7, 5_000), (1e-4, 0.6, 20_000), (1e-3, 0.5, 1_000), (1e-3, 0.8, 100_000), (1e-3, 2.0, 1_000_000),
    (P, 0.7, 1_000), (P, 1.205, 4_800), (P, 2.872, 4_800), (P, 10.0, 48_000), (0.01, 0.6, 300), (0.01, 1.0, 1_000),
    (0.01, 5.0, 10_000), (0.05, 1.0, 200), (0.05, 3.0, 2_000), (0.1, 0.8, 40), (0.1, 4.0, 500), (0.1, 30.0, 20_000),
    (0.5, 3.0, 30), (0.5, 20.0, 1_000), (0.5, 300.0, 100_000), (0.9, 5.0, 20), (0.9, 100.0, 3_000),
]  # fmt: skip
DELTAS = (1e-5, 1e-9)


# Those whose transforms are long elsewhere.
LONG = {(1e-4, 0.6, 20_000), (1e-3, 0.5, 1_000), (1e-3, 0.8, 100_000), (5e-4, 0.7, 5_000), (0.01, 0.6, 300)}


@pytest.mark.parametrize(
    ("rate", "noise", "steps"),
    [
        *some([case for case in CONSTANT if case not in LONG], 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG),
    ],
)
def test_constant_schedules_against_an_independent_library(rate: float, noise: float, steps: int) -> None:
    ledger = Ledger([Release(rate, noise, steps)])
    brackets = {delta: Pld().bracket(ledger, delta) for delta in DELTAS}
    least = min(upper for _, upper in brackets.values())
    grid = min(1e-4, least / 8_000, max(0.05 * rate / noise, 2e-5))
    finer, coarser = composed_elsewhere(ledger, grid), composed_elsewhere(ledger, 2 * grid)
    for delta, (lower, upper) in brackets.items():
        fine, coarse = finer(delta), coarser(delta)
        # Their rounding is upwards and of second order in the grid: what it converges to, and a fair error of that.
        converged, uncertain = fine - (coarse - fine) / 3, abs(coarse - fine)
        # Their Fourier transforms are off by up to 1e-16 a step in delta, by another amount on another processor: of a
        # million steps at 1e-9 that is 3.1 thousandths of epsilon, the most of these cases.
        rounding = finer(delta * (1 - min(0.5, 1e-16 * steps / delta))) - fine
        assert lower <= fine + rounding
        assert upper >= converged - uncertain - rounding
        assert upper <= converged * (1 + 1e-3) + uncertain + rounding
        assert uncertain < 1e-3 * converged + rounding
        assert rounding < 3.5e-3 * converged


@pytest.mark.parametrize(
    "ledger",
    [
        pytest.param(Ledger.of(np.geomspace(1.4, 0.8, 20), 0.02), id="falling noise", marks=pytest.mark.slow),
        pytest.param(Ledger.of(np.linspace(0.7, 3.0, 15), 0.1), id="rising noise", marks=pytest.mark.slow),
        pytest.param(
            Ledger([Release(0.01, 0.9, 30), Release(0.2, 4.0, 10), Release(1.0, 12.0, 5)]),
            id="three sample rates",
        ),
    ],
)
def test_different_steps_against_an_independent_library_step_by_step(ledger: Ledger) -> None:
    finer, coarser = (composed_elsewhere(ledger, grid) for grid in (2e-4, 4e-4))
    for delta in (1e-5, 1e-8):
        lower, upper = Pld().bracket(ledger, delta)
        fine, coarse = finer(delta), coarser(delta)
        converged = fine - (coarse - fine) / 3
        assert lower <= fine
        assert upper >= converged - (coarse - fine)
        assert lower * (1 - 1e-4) <= converged <= upper * (1 + 1e-4)


def at_effort(ledger: Ledger, delta: float, effort: _Effort, near: float) -> tuple[float, float]:
    bounds = _Steps.of(ledger.distinct(), delta, effort, 1).bounds(near, delta, effort.smoothing * near, lower=True)
    return bounds.epsilons(delta, near)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    seed=st.integers(0, 2**31),
    log_noise=st.floats(-0.5, 2.0),
    log_rate=st.floats(-5, -0.1),
    log_steps=st.floats(0.5, 3.0),
    log_delta=st.floats(-13, -3),
)
def test_brackets_at_different_efforts_overlap(
    seed: int, log_noise: float, log_rate: float, log_steps: float, log_delta: float
) -> None:
    """A bound that is not one shows itself: a coarse upper end below a fine lower end, or the reverse."""
    rng = np.random.default_rng(seed)
    noise = 10**log_noise * np.exp(rng.uniform(0, 1) * rng.random(int(10**log_steps)))
    ledger, delta = Ledger.of(noise, 10**log_rate), 10**log_delta
    near = Pld().estimate(ledger, delta)
    if not 1e-4 < near < 60:
        return
    coarse = at_effort(ledger, delta, _PILOT, near)
    fine = at_effort(ledger, delta, _Effort(nodes=128, rates=64, kappa=0.02, smoothing=1e-4), near)
    assert coarse[0] <= coarse[1]
    assert fine[0] <= fine[1]
    assert coarse[0] <= fine[1] * (1 + 1e-12)
    assert fine[0] <= coarse[1] * (1 + 1e-12)


@pytest.mark.parametrize("z", [0.3, 1.0, 20.0, 1_000.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-15])
def test_full_batches_are_gaussian_dp(z: float, delta: float) -> None:
    ledger = Ledger([Release(1.0, z, 3)])
    exact = Gaussian().epsilon(ledger, delta).value
    lower, upper = Pld().bracket(ledger, delta)
    assert lower <= exact <= upper
    assert upper - lower <= 1e-10 * exact


def test_the_general_path_agrees_with_the_closed_form_of_one_step() -> None:
    # The same step twice at half strength is no closed form; one step through the general machinery is.
    step = Ledger([Release(0.03, 0.8)])
    near = Pld().bracket(step, 1e-6)[1]
    lower, upper = at_effort(step, 1e-6, _Effort(nodes=8, rates=8, kappa=0.01, smoothing=5e-5), near)
    assert lower <= near <= upper
    assert upper - lower < 1e-3 * near
    assert delta_of_one(step, near)[1] == pytest.approx(1e-6, rel=1e-6)


class TestEdges:
    def test_empty(self) -> None:
        assert Pld().bracket(Ledger(), 1e-5) == (0.0, 0.0)

    def test_no_noise_is_infinite_at_both_ends(self) -> None:
        assert Pld().bracket(Ledger([Release(0.5, 0.0)]), 1e-5) == (math.inf, math.inf)

    def test_no_noise_for_somebody_rarely_present_can_hide_in_delta(self) -> None:
        lower, upper = Pld().bracket(Ledger([Release(1e-6, 0.0)]), 1e-3)
        assert lower == 0
        assert upper == math.inf
        assert Pld().delta(Ledger([Release(1e-6, 0.0)]), 1.0).value == pytest.approx(1e-6)

    @pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e-3])
    def test_delta_above_the_total_variation_costs_nothing(self, rate: float) -> None:
        assert Pld().bracket(Ledger([Release(rate, 1.0, 3)]), 10 * rate) == (0.0, 0.0)

    @pytest.mark.parametrize(
        ("rate", "noise", "steps", "delta"),
        [
            (1e-6, 0.3, 1_000_000, 1e-9), (1e-6, 0.5, 1_000_000, 1e-12), (1.0, 1_000.0, 1_000_000, 1e-15),
            (0.5, 1_000.0, 1, 1e-15), (0.5, 1_000.0, 2, 1e-15), (1e-3, 0.3, 1, 1e-6), (0.3, 0.3, 10, 1e-10),
            (0.02, 0.5, 5_000, 1e-15), (P, 1.0, 1_000_000, 1e-6), (0.999, 50.0, 100, 1e-4), (1e-4, 1.0, 50, 1e-8),
        ],
    )  # fmt: skip
    def test_corners_of_the_range_are_bracketed(self, rate: float, noise: float, steps: int, delta: float) -> None:
        lower, upper = Pld().bracket(Ledger([Release(rate, noise, steps)]), delta)
        assert 0 < lower <= upper
        assert upper - lower <= 1e-3 * upper

    @pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 50.0])
    def test_epsilons_from_a_hundredth_to_fifty(self, epsilon: float) -> None:
        mu = float(
            np.exp(np.interp(np.log(epsilon), np.log([0.01, 0.1, 1, 10, 50]), np.log([0.003, 0.024, 0.2, 1.6, 5.4])))
        )
        ledger = Ledger.of(np.linspace(1.2, 1.0, 200) * 0.1 * math.sqrt(200) / mu, 0.1)
        lower, upper = Pld().bracket(ledger, 1e-6)
        assert 0.2 * epsilon < lower <= upper < 8 * epsilon
        assert upper - lower <= 1e-3 * upper

    @pytest.mark.slow
    def test_a_million_steps_of_a_smooth_curve(self) -> None:
        lower, upper = Pld().bracket(Ledger.of(np.linspace(1.4, 1.1, 1_000_000), 1e-4), 1e-7)
        assert upper - lower <= 1e-3 * upper
        assert 0.4 < upper < 0.45

    def test_clip_norms_do_not_enter_and_order_does_not_matter(self) -> None:
        noise = np.linspace(2.0, 1.0, 500)
        assert Pld().bracket(Ledger.of(noise, 0.01), 1e-6) == Pld().bracket(Ledger.of(noise[::-1], 0.01), 1e-6)

    @pytest.mark.slow
    def test_more_accuracy_narrows(self) -> None:
        ledger = Ledger.of(np.geomspace(2.2, 0.9, 100), P)
        wide, narrow = Pld(rtol=1e-2).bracket(ledger, DELTA), Pld(rtol=5e-4).bracket(ledger, DELTA)
        assert narrow[1] - narrow[0] <= 5e-4 * narrow[1]
        assert wide[0] <= narrow[1]
        assert narrow[0] <= wide[1]

    def test_a_bracket_that_stays_too_wide_is_refused_with_what_was_reached(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A tenth of a participation in a million steps at delta 1e-12: floating point leaves about 0.5 %.
        monkeypatch.setattr("decrescendo.accounting.pld.accountant._REFINEMENTS", 0)
        ledger = Ledger([Release(1e-7, 0.5, 1_000_000)])
        with pytest.raises(AccountingError, match=r"rtol=0.001 wide, got \[0.2\d+, 0.\d+\]"):
            Pld().bracket(ledger, 1e-12)

    def test_what_cannot_be_had_is_said(self) -> None:
        with pytest.raises(AccountingError, match=r"noise multipliers from 0\.0833 up"):
            Pld().epsilon(Ledger([Release(0.5, 0.01, 2)]), 1e-5)

    @pytest.mark.parametrize("rtol", [0.0, -1.0, 1.0, math.nan])
    def test_rtol_outside_its_range(self, rtol: float) -> None:
        with pytest.raises(InvalidValue, match="rtol must be"):
            Pld(rtol=rtol)

    def test_a_list_is_not_a_ledger(self) -> None:
        with pytest.raises((InvalidType, TypeError)):
            Pld().epsilon([1.0, 2.0], 1e-5)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("delta", some([1e-9, 1e-5], 1))
def test_the_order_of_accountants(delta: float) -> None:
    ledger = Ledger.of(np.linspace(1.3, 0.9, 300), 0.02)
    lower, upper = Pld().bracket(ledger, delta)
    assert GdpClt().epsilon(ledger, delta).value < lower
    assert Rdp().epsilon(ledger, delta).value > upper
    # Without sampling the same noise costs more.
    assert upper < epsilon_of(delta, float(np.sqrt(np.sum(ledger.noise_multiplier**-2.0))))


def test_estimates_are_within_a_few_percent() -> None:
    for ledger in (Ledger.of(np.geomspace(2.2, 0.9, 5_000), P), Ledger([Release(0.1, 4.0, 500)])):
        lower, upper = Pld().bracket(ledger, DELTA)
        assert 0.97 * lower < Pld().estimate(ledger, DELTA) < 1.03 * upper


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.6), (0.1, 1.0), (1.0, 4.0)])
def test_a_second_opinion_on_one_release_is_no_higher_than_the_truth(rate: float, noise: float) -> None:
    """One release has no grid's error to hide the rounding of dp-accounting's sums: honest plans of one step were said
    to contradict themselves (2.4e-11 of epsilon)."""
    ledger = Ledger.of([noise], rate)
    found = Pld().epsilon(ledger, 1e-5)
    opinion = verify_epsilon(ledger, Guarantee(found.value, 1e-5, Unit.EXAMPLE, "Pld", "upper"))
    assert opinion.consistent
    assert opinion.lower > found.value * (1 - 1e-3)
