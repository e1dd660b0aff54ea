"""Facts: no verdict, choice or sentence hangs on the last digit of a sum; real differences are still told apart."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decrescendo.cli.demo import DYNAMIC as DEMO_DYNAMIC
from decrescendo.cli.demo import _compare
from decrescendo.report import Paired, paired
from decrescendo_papers.experiments.alike import SAME, above, alike, first_of_least, first_of_most
from decrescendo_papers.experiments.comparisons import pooled
from decrescendo_papers.experiments.estimate import Exponential
from decrescendo_papers.experiments.figures import EPSILON, FIGURE3, TASK, grid_spec
from decrescendo_papers.experiments.hong import CASES, DYNAMIC, STEPS, UNIFORM, Chosen, Loss
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.grid_section import grid_words
from decrescendo_papers.experiments.recipes import Trial
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.search import _best
from decrescendo_papers.experiments.table import base_spec

# Three sums of the same three numbers, in three orders.
THIRD = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.2 + 0.3 + 0.1)
UP, DOWN = max(THIRD), min(THIRD)


def test_the_examples_differ_in_their_last_digit() -> None:
    assert UP > DOWN
    assert alike(UP, DOWN)
    assert not above(UP, DOWN)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(0, 2**32))
def test_the_order_of_a_sum_makes_no_other_number(terms: list[float], seed: int) -> None:
    shuffled = random.Random(seed).sample(terms, len(terms))
    size = sum(map(abs, terms))
    assert alike(sum(terms), sum(shuffled), size=size)
    assert alike(sum(terms) - sum(shuffled), 0.0, size=size)


@given(st.floats(1e-3, 1e6), st.floats(1e-6, 1.0))
def test_what_differs_in_the_sixth_digit_is_told_apart(number: float, share: float) -> None:
    assert above(number * (1 + share), number)
    assert not above(number, number * (1 + share))
    assert not above(number, number)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_the_first_of_equals_is_taken_however_they_are_rounded(values: list[int], data: st.DataObject) -> None:
    def rounded(value: int) -> float:
        return (value + 1) * (1 + data.draw(st.integers(-9, 9)) * 2.0**-52)

    seen = [rounded(value) for value in values]
    places = range(len(values))
    assert first_of_most(places, seen.__getitem__) == values.index(max(values))
    assert first_of_least(places, seen.__getitem__) == values.index(min(values))


# --- seed by seed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signs", [(1, 1, 1), (1, 1, 2), (-1, 0, 1), (-1, -1, -2)])
def test_differences_of_rounding_are_none(signs: tuple[int, ...]) -> None:
    """The slope of gains that do not move came out as some 1e-17, and was significant where all had one sign."""
    found = Paired(tuple(sign * 2.0**-53 for sign in signs), size=1.0)
    assert (found.mean, found.error, found.verdict, found.p_value) == (0.0, 0.0, "tie", None)
    assert f"{found.mean:+.4f}" == "+0.0000"


def test_differences_that_are_equal_up_to_rounding_have_no_test_and_a_verdict() -> None:
    found = Paired((UP, DOWN, UP), size=1.0)
    assert (found.error, found.verdict, found.p_value) == (0.0, "better", None)
    assert Paired((-UP, -DOWN, -UP), size=1.0).verdict == "worse"


def test_a_mean_of_exactly_two_errors_is_a_tie_whatever_its_last_digit() -> None:
    # Of two seeds it is one as soon as one difference is three times the other.
    for one in (0.1, 0.3, 0.7, 1.1, 2.3):
        for other in (3 * one, math.nextafter(3 * one, 0), math.nextafter(3 * one, 9)):
            assert Paired((one, other)).verdict == "tie"
        assert Paired((one, 2.99 * one)).verdict == "better"


def test_real_differences_are_still_decided() -> None:
    one = {seed: 90.0 + seed for seed in range(5)}
    other = {seed: 90.0 + seed - 0.01 * (1 + seed % 2) for seed in range(5)}  # one or two examples of 10,000
    found = paired(one, other)
    assert found.verdict == "better"
    assert found.p_value is not None
    assert found.p_value < 0.01
    assert pooled([one, one], [other, other]).p_value == pytest.approx(found.p_value)


def test_the_demo_s_equal_runs_are_a_tie() -> None:
    scores = {DEMO_DYNAMIC: [UP, DOWN, 0.5], "other": [DOWN, UP, 0.5]}
    assert _compare(scores, DEMO_DYNAMIC, "other").endswith("a tie")
    assert "+0.0 points" in _compare(scores, DEMO_DYNAMIC, "other")


# --- choices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [(UP, DOWN, UP), (DOWN, UP, DOWN), (UP, UP, DOWN)])
def test_of_equal_losses_the_smallest_number_of_steps_is_chosen(losses: tuple[float, ...]) -> None:
    """What is chosen is trained: another last digit of a mean would be other runs."""
    found = {
        (method, steps): Loss(loss, 0.0)
        for method in (UNIFORM, DYNAMIC)
        for steps, loss in zip(STEPS, losses, strict=True)
    }
    assert Chosen(CASES[0], {}, found).steps(UNIFORM) == min(STEPS)
    found[UNIFORM, STEPS[1]] = Loss(0.5, 0.0)
    assert Chosen(CASES[0], {}, found).steps(UNIFORM) == STEPS[1]


@pytest.mark.parametrize("scores", [(0.3, UP, DOWN), (0.3, DOWN, UP)])
def test_of_equal_trials_the_first_is_the_best(scores: tuple[float, ...]) -> None:
    trials = [Trial(number, {}, (score,)) for number, score in enumerate(scores)]
    best = _best([*trials, Trial(3, {}, (), why="failed")])
    assert best is not None
    assert best.number == 1
    assert _best([]) is None


@pytest.mark.parametrize("shuffle", [lambda found: found, lambda found: found[::-1]], ids=["as is", "reversed"])
def test_the_grid_s_words_do_not_hang_on_the_order_of_seeds(
    shuffle: Callable[[list[float]], list[float]],
) -> None:
    vanilla = base_spec(TASK, epsilon=EPSILON, accountant="clt", settings={"method": "constant"})
    scores = [0.912, 0.9133, 0.907]
    found = [
        Result(spec.seeded(seed), {"test_accuracy": score})
        for spec, of in (
            (vanilla, scores),
            (grid_spec(0.2, 0.4), shuffle(scores)),
            (grid_spec(0.4, 0.2), scores),
        )
        for seed, score in enumerate(of)
    ]
    words = grid_words(FIGURE3, Sources(Archive(found), Path("none"), Path("none"), Path("none")))
    assert "0 of 2 points are above vanilla DP-SGD" in words
    assert (
        "best mean is 91.08 ± 0.33 at 1/rho_mu = 0.2, 1/rho_c = 0.4, the worst 91.08 ± 0.33 at 1/rho_mu = 0.2" in words
    )


@pytest.mark.parametrize("rate", [2.0**-60, 0.0, -(2.0**-60)])
def test_a_flat_influence_asks_for_constant_noise_in_the_same_words(rate: float) -> None:
    found = Exponential(1.0, rate, (rate, rate), 100).describe()
    assert "the best noise for it falls by the factor 1 over the run" in found
    assert "rises" in Exponential(1.0, -1e-6, (-2e-6, 0.0), 100).describe()
    assert SAME < 1e-6
