"""Facts: section 5 of Hong et al. is chosen on made-up data alone, stage by stage, and resumed; its page says what the
numbers say. Nothing is trained here."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from often import some
from scipy import stats

from decrescendo_papers.experiments import hong
from decrescendo_papers.experiments.estimate import Exponential, Influence
from decrescendo_papers.experiments.execute import Outcome
from decrescendo_papers.experiments.hong import (
    CASES,
    CHOOSING_SEEDS,
    DYNAMIC,
    METHODS,
    SEEDS,
    STEPS,
    UNIFORM,
    Case,
    reproduce_hong,
    unfinished,
)
from decrescendo_papers.experiments.influence import Measured
from decrescendo_papers.experiments.influences import Study
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.hong_cases import (
    ACCURACY,
    LOSS,
    compared,
    corrected_p,
    refuted,
    sized,
    trend,
)
from decrescendo_papers.experiments.pages.hong_page import hong_page
from decrescendo_papers.experiments.pages.hong_verdict import how_far
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec

RATE, NOWHERE = 0.02, Path("nowhere")
SPLIT = Case("mnist35-pca", 1000)  # where the methods choose different numbers of steps
Gain = Callable[[Spec], float]


def measured(study: Study, seed: int) -> Measured:
    random = np.random.default_rng([seed, study.spec.steps])
    noise = 1 + 0.01 * random.standard_normal(len(study.at))
    slopes = np.exp(RATE * (np.array(study.at) - study.spec.steps)) * noise
    return Measured(seed, study.at, 0.5, tuple(slopes.tolist()))


def scored(gain: Gain) -> Callable[[Spec], Result]:
    """Losses with the best number of steps at 100, but for the exponential of one case at 150; gains as given."""

    def compute(spec: Spec) -> Result:
        random = np.random.default_rng([spec.seed, spec.rows])
        loss = 1.0 + 0.1 * random.standard_normal() + 0.001 * np.random.default_rng(spec.seed + 99).standard_normal()
        dynamic = spec.method == DYNAMIC
        if spec.stand_in:
            here_split = (spec.task, spec.rows, spec.model) == (SPLIT.task, SPLIT.size, SPLIT.model)
            loss += abs(spec.steps - (150 if dynamic and here_split else 100)) / 100
        elif dynamic:
            own = np.random.default_rng([spec.seed, spec.rows, 5])
            loss -= gain(spec) * (1 + 0.1 * own.standard_normal())
        accuracy = 0.9 - 0.1 * loss
        return Result(spec, {"test_accuracy": accuracy, "train_loss": loss}, certified=(3.45, 3.46))

    return compute


@dataclass
class Bench:
    """Influences and results in memory, in place of measuring, training and files."""

    influence: dict[Study, dict[int, Measured]] = field(default_factory=dict[Study, dict[int, Measured]])
    results: dict[Spec, Result] = field(default_factory=dict[Spec, Result])
    performed: list[Spec] = field(default_factory=list[Spec])

    def study(self, studies: Sequence[Study], seeds: Sequence[int], *_: object, **__: object) -> None:
        for study in studies:
            known = self.influence.setdefault(study, {})
            known |= {seed: measured(study, seed) for seed in seeds if seed not in known}

    def reproduce(self, gain: Gain, die_after: int | None = None) -> Sources:
        compute, left = scored(gain), die_after

        def run(specs: Sequence[Spec]) -> Outcome:
            nonlocal left
            for spec in self.missing(specs):
                if left == 0:
                    raise KeyboardInterrupt
                left = None if left is None else left - 1
                self.performed.append(spec)
                self.results[spec] = compute(spec)
            return Outcome(0, 0)

        reproduce_hong(NOWHERE, NOWHERE, seeds=SEEDS, run=run)
        return Sources(Archive(self.results.values()), NOWHERE, NOWHERE, NOWHERE)

    def missing(self, specs: Iterable[Spec], folder: Path = Path()) -> list[Spec]:
        return [spec for spec in dict.fromkeys(specs) if spec not in self.results]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(hong.influences, "study_influence", made.study)
    monkeypatch.setattr(hong.influences, "found", lambda folder, study: made.influence.get(study, {}))
    monkeypatch.setattr(hong.results, "find", lambda folder, spec: made.results.get(spec))
    monkeypatch.setattr(hong, "missing", made.missing)
    return made


def test_steps_and_schedules_come_from_made_up_data_and_both_methods_meet_at_both_numbers(
    bench: Bench,
) -> None:
    sources = bench.reproduce(lambda spec: 0.1)
    performed = bench.performed.copy()
    made_up = [bool(spec.stand_in) for spec in performed]
    assert made_up == sorted(made_up, reverse=True)  # all choices before the first private run
    assert sum(made_up) == len(CASES) * len(STEPS) * len(METHODS) * CHOOSING_SEEDS
    private = [spec for spec in performed if not spec.stand_in and spec.method != NOT_PRIVATE]
    assert len(private) == (len(CASES) + 1) * len(METHODS) * SEEDS
    for spec in private:
        assert spec.batch == spec.rows
        assert (spec.epsilon, spec.delta, spec.accountant) == (4.0, 1e-8, "zcdp")
        if spec.method == DYNAMIC:
            assert spec.rho_mu == pytest.approx(math.exp(RATE * spec.steps / 4), rel=0.02)
    (split,) = [one for one in compared(sources) if one.case == SPLIT]
    assert (split.chosen.steps(UNIFORM), split.chosen.steps(DYNAMIC)) == (100, 150)
    assert {key for key, of in split.results.items() if len(of) == SEEDS} == {
        (method, steps) for method in METHODS for steps in (100, 150)
    }
    bench.reproduce(lambda spec: 0.1)
    assert bench.performed == performed


@pytest.mark.slow
def test_killed_it_goes_on_and_says_what_is_missing(bench: Bench) -> None:
    absent, todo = unfinished(NOWHERE, NOWHERE, SEEDS)
    assert len({(study, seed) for study, seed in absent}) == len(absent) == 8 * 2 * 5 + (8 + 2) * 20
    assert todo == [hong.plain_spec(case).seeded(i) for case in CASES for i in range(SEEDS)]
    for die_after in (7, 300):
        with pytest.raises(KeyboardInterrupt):
            bench.reproduce(lambda spec: 0.1, die_after)
    bench.reproduce(lambda spec: 0.1)
    assert len(bench.performed) == len(set(bench.performed))
    assert unfinished(NOWHERE, NOWHERE, SEEDS) == ([], [])


def bullets(page: str) -> dict[str, str]:
    lines = page.split("## What was done")[0].splitlines()
    return {line.split("**")[1]: line for line in lines if line.startswith("- **")}


def test_the_page_says_where_the_claim_holds(bench: Bench) -> None:
    """Better everywhere but on ten digits, where it is worse; the gain doubles with N on 3 and 5."""

    def gain(spec: Spec) -> float:
        return spec.rows / 1000 if spec.task == "mnist35-pca" else -0.2

    sources = bench.reproduce(gain)
    page = hong_page(sources)
    said = bullets(page)
    winner = said["Exponential noise beats uniform noise"]
    assert "holds in some cases and is reversed in others" in winner
    assert "Significantly better in 5 of 8 cases" in winner
    assert "significantly worse in 3 (mnist-pca/250, mnist-pca/500, mnist-pca/1000)" in winner
    assert "grows in training loss" in said["Over N, 3 and 5"]
    assert "does not move significantly in training loss" in said["Over N, 10 digits"]
    assert "does not move significantly" in said["More curved losses"]
    assert "24 of 24 cases and numbers of steps" in said["Influence is about an exponential of t"]
    assert "below zero" not in said["Influence is about an exponential of t"]
    assert "Unfinished" not in page
    assert "nan" not in page
    # One row, from scratch.
    (one,) = [one for one in compared(sources) if one.case == Case("mnist35-pca", 500)]
    values = {
        method: [one.results[method, 100][seed].metrics["train_loss"] for seed in range(SEEDS)] for method in METHODS
    }
    better = np.array(values[UNIFORM]) - np.array(values[DYNAMIC])
    p = stats.ttest_rel(values[UNIFORM], values[DYNAMIC]).pvalue
    gained = f"{better.mean():+.4f} ± {stats.sem(better):.4f}"
    rows = [line for line in page.splitlines() if "mnist35-pca/500 " in line and gained in line]
    assert len(rows) == 2  # with the chosen numbers of steps and with the same number are the same here
    assert p < 1e-4
    assert all("< 0.0001" in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(3), 1))
def test_no_word_of_the_page_hangs_on_the_last_digit(bench: Bench, seed: int) -> None:
    """Another processor adds in another order: losses, accuracies and influences differ by a few units."""

    def gain(spec: Spec) -> float:
        return spec.rows / 1000 if spec.task == "mnist35-pca" else -0.2

    dice = np.random.default_rng(seed)

    def moved(value: float) -> float:
        return value * (1 + int(dice.integers(-3, 4)) * 2.0**-52)

    page = hong_page(bench.reproduce(gain))
    bench.results = {
        spec: replace(result, metrics={name: moved(value) for name, value in result.metrics.items()})
        for spec, result in bench.results.items()
    }
    bench.influence = {
        study: {at: replace(one, slopes=tuple(map(moved, one.slopes))) for at, one in found.items()}
        for study, found in bench.influence.items()
    }
    assert hong_page(Sources(Archive(bench.results.values()), NOWHERE, NOWHERE, NOWHERE)) == page


EXACT = Exponential(2.0, 0.1, (0.0, 0.2), 10)
PLACES = np.array([1, 4, 7, 10])


def off_by(distance: float) -> Influence:
    """Four seeds whose mean is on the curve but at the third step, there ``distance`` standard errors from it."""
    away = np.array([-1.5, -0.5, 0.5, 1.5])
    slopes = EXACT.at(PLACES) + away[:, None]
    slopes[:, 2] += distance * float(stats.sem(away))
    return Influence(10, PLACES, slopes)


@pytest.mark.parametrize("distance", [-8.0, -3.0, 1e-3, 0.5, 3.0, 8.0])
def test_a_curve_is_refuted_by_its_furthest_step(distance: float) -> None:
    slow = min(
        float(stats.ttest_1samp(of, value).pvalue)
        for of, value in zip(off_by(distance).slopes.T, EXACT.at(PLACES), strict=True)
    )
    assert refuted(off_by(distance), EXACT) == pytest.approx(min(1.0, 4 * slow))


def test_a_curve_on_its_points_is_not_refuted_nor_one_of_one_seed() -> None:
    assert refuted(off_by(0.0), EXACT) == 1.0
    equal = Influence(10, PLACES, np.tile(EXACT.at(PLACES), (3, 1)) * (1 + 1e-15))
    assert refuted(equal, EXACT) == 1.0  # no spread, and off the curve by rounding only
    assert refuted(Influence(10, PLACES, equal.slopes + 0.1), EXACT) == 0.0  # no spread, and off it
    assert refuted(Influence(10, PLACES, off_by(8.0).slopes[:1]), EXACT) is None


@pytest.mark.slow
def test_alarms_of_the_curve_are_no_more_than_the_level() -> None:
    dice = np.random.default_rng(0)
    alarms = [
        (refuted(Influence(10, PLACES, EXACT.at(PLACES) + dice.normal(size=(5, 4))), EXACT) or 0.0) < 0.05
        for _ in range(400)
    ]
    assert np.mean(alarms) <= 0.08  # 0.05, and three standard errors of 400


@pytest.mark.parametrize(
    ("off", "cases", "words"),
    [(0, 3, "not refuted here"), (1, 3, "refuted in some cases"), (3, 3, "refuted everywhere here")],
)
def test_how_far_a_shape_is_refuted(off: int, cases: int, words: str) -> None:
    assert how_far(off, cases) == words


@pytest.mark.slow
def test_no_difference_is_not_called_one(bench: Bench) -> None:
    said = bullets(hong_page(bench.reproduce(lambda spec: 0.0)))
    assert "cannot be seen here" in said["Exponential noise beats uniform noise"]


def test_one_sided_differences_are_called_by_their_name(bench: Bench) -> None:
    said = bullets(hong_page(bench.reproduce(lambda spec: -0.3)))
    assert "is reversed here" in said["Exponential noise beats uniform noise"]
    assert "significantly worse in 9" in said["The shape alone"]


@pytest.mark.slow
def test_the_trend_is_the_slope_for_each_doubling(bench: Bench) -> None:
    cases = compared(bench.reproduce(lambda spec: spec.rows / 1000))
    of = sized(cases, "mnist35-pca")
    assert [one.case.size for one in of] == [250, 500, 1000]
    for metric in (LOSS, ACCURACY):
        pair = trend(of, [float(np.log2(one.case.size)) for one in of], metric)
        gains = np.array([one.gain(metric).differences for one in of])
        np.testing.assert_allclose(pair.differences, (gains[2] - gains[0]) / 2, rtol=1e-6)
        assert pair.mean > 0
        assert corrected_p([pair, pair]) == [2 * (pair.p_value or 0)] * 2


def test_too_few_seeds_of_an_influence_choose_nothing_and_more_change_nothing(bench: Bench) -> None:
    case = CASES[0]
    studies = [case.study(steps) for steps in STEPS]
    bench.study(studies, range(CHOOSING_SEEDS - 1))
    assert hong.fits_of(case, NOWHERE) is None
    bench.study(studies, range(CHOOSING_SEEDS))
    fits = hong.fits_of(case, NOWHERE)
    assert fits is not None
    bench.study(studies, range(SEEDS))
    assert hong.fits_of(case, NOWHERE) == fits
