"""Facts: a branch is, to the last bit, the training it stands for; on a quadratic the influence is the closed form; the
exponential that fits it is found with an honest interval; what is finished is kept."""

import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from rich.console import Console
from scipy import stats
from torch import nn

from decrescendo.accounting import Zcdp
from decrescendo.accounting.budget import Budget
from decrescendo.base.rng import Seeds, Streams
from decrescendo.clipping import Engine
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.optim import MomentumBC, apply
from decrescendo.optim.noise import privatise
from decrescendo.plans import curves
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import train
from decrescendo_papers.experiments import influence_plan as influence_plan_module
from decrescendo_papers.experiments import influences
from decrescendo_papers.experiments.estimate import Influence, fit_exponential
from decrescendo_papers.experiments.influence import Course, Measured, measure, spread
from decrescendo_papers.experiments.influence_plan import Allocation, influence_plan
from decrescendo_papers.experiments.influences import Study, course_of
from decrescendo_papers.experiments.table import base_spec

ROWS = 12


def make_plan(steps: int, batch: float = ROWS, clip: float = 1.0) -> Plan:
    return calibrate(
        Budget(4.0, 1e-5), PoissonSampling(ROWS, batch), steps=steps, privacy=curves.growing_mu(2.0),
        clip=curves.constant(clip), accountant=Zcdp(),
    )  # fmt: skip


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Dropout draws from the stream "model": that too must be the same in a branch.
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))


def final_loss(model: nn.Module) -> float:
    with torch.no_grad():
        model.eval()
        try:
            return float(loss(model, examples()).double().mean())
        finally:
            model.train()


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)


def course(batch: float = ROWS, optimizer: str = "momentum-bc") -> Course:
    kinds = {
        "momentum-bc": lambda model: MomentumBC(model.parameters(), lr=0.5, momentum=0.7),
        "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
        "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
    }
    return Course(network, loss, examples(), make_plan(9, batch), kinds[optimizer], final_loss, falling)


def from_scratch(given: Course, seed: int, step: int, factor: float) -> float:
    """The slow obvious way: all steps again, with the noise of one of them times ``factor``."""
    streams, plan = Streams(seed), given.plan
    model = given.build(seed)
    optimizer = given.optimizer(model)
    scheduler = falling(optimizer)
    masks = Seeds(streams.numpy("model"))
    engine, noise = Engine(model, given.loss, seeds=masks), streams.keyed("noise")
    inputs, targets = examples()
    batches = plan.sampling.batches(plan.steps, streams.numpy("sampling"))
    for t, chosen in enumerate(batches, start=1):
        rows = torch.from_numpy(chosen)
        batch = (inputs[rows], targets[rows]) if len(chosen) else None
        clipped = engine.clipped_sum(batch, float(plan.clip_norm[t - 1]))
        z = float(plan.noise_multiplier[t - 1])
        if t == step and factor <= 0:
            noisy = privatise(clipped, z * (abs(factor) or 1.0), plan.sampling, noise)
            clean = privatise(clipped, 0.0, plan.sampling, noise)
            turned = {n: 2 * g - noisy.gradients[n] if factor else g for n, g in clean.gradients.items()}
            noisy = dataclasses.replace(noisy, gradients=turned)
        else:
            noisy = privatise(clipped, z * factor if t == step else z, plan.sampling, noise)
        apply(noisy, model, optimizer)
        scheduler.step()
    return given.score(model)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", some(["momentum-bc", "adam", "sgd"], 1))
@pytest.mark.parametrize("batch", [pytest.param(ROWS, marks=pytest.mark.slow), 2.0])
def test_branches_are_trainings_from_the_start_to_the_last_bit(batch: float, optimizer: str) -> None:
    """Moving plan, falling rate, dropout, the global generator anywhere; with batches of 2 of 12 some are empty."""
    given = course(batch, optimizer)
    at, low, high, seed = (1, 4, 9), 0.25, 2.25, 3
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = measure(given, at, seed=seed, low=low, high=high)
    assert torch.equal(torch.get_rng_state(), before)

    def retrained(step: int, factor: float) -> float:
        torch.rand(step)
        return from_scratch(given, seed, step, factor)

    assert found.base == retrained(1, 1.0)
    for step, slope in zip(at, found.slopes, strict=True):
        ends = [(retrained(step, a) + retrained(step, -a)) / 2 for a in (math.sqrt(high), math.sqrt(low))]
        assert slope == (ends[0] - ends[1]) / ((high - low) * float(given.plan.noise_multiplier[step - 1]) ** 2)


@pytest.mark.slow
def test_without_noise_at_a_step_the_later_noise_is_the_same() -> None:
    given = dataclasses.replace(course(), build=lambda seed: without_dropout(network(seed)))
    (slope,) = measure(given, [4], seed=1).slopes
    ends = [from_scratch(given, 1, 4, factor) for factor in (math.sqrt(2), -math.sqrt(2), 0.0)]
    assert slope == ((ends[0] + ends[1]) / 2 - ends[2]) / (2 * float(given.plan.noise_multiplier[3]) ** 2)


def without_dropout(model: nn.Module) -> nn.Module:
    return nn.Sequential(*(part for part in model if not isinstance(part, nn.Dropout)))


def test_the_planned_training_is_that_of_the_trainer() -> None:
    given = dataclasses.replace(course(), scheduler=None)
    model = given.build(2)
    torch.manual_seed(7)
    train(model, loss, examples(), given.plan, given.optimizer(model), seed=2)
    torch.manual_seed(7)
    assert measure(given, [1], seed=2).base == given.score(model)


@pytest.mark.parametrize(
    ("at", "low", "high", "words"),
    [
        ([], 0, 2, "at must be steps of 1 .. 9"),
        ([3, 2], 0, 2, "ascending"),
        ([10], 0, 2, "1 .. 9"),
        ([1], 2, 2, "high"),
        ([1], -1, 2, "low"),
    ],
)
def test_what_cannot_be_measured_is_refused(at: Sequence[int], low: float, high: float, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        measure(course(), at, seed=0, low=low, high=high)


def test_data_of_another_size_and_steps_without_noise_are_refused() -> None:
    given = course()
    with pytest.raises(InvalidValue, match="must have the plan's 12 rows, got 11"):
        dataclasses.replace(given, data=tuple(part[:-1] for part in examples()))
    silent = given.plan.noise_multiplier.copy()
    silent[2] = 0.0
    bare = Plan(Budget(4.0, 1e-5), given.plan.sampling, Schedule(silent, given.plan.clip_norm), given.plan.guarantee)
    with pytest.raises(InvalidValue, match="noise where it is to be changed"):
        measure(dataclasses.replace(given, plan=bare), [3], seed=0)


# A quadratic, m |w - x|^2 / 2 with all x at zero, clipping out of reach: everything is known in closed form.
SIZE, COUNT, STEPS, CURVATURE, RATE, CLIP = 2000, 10, 16, 0.8, 0.25, 1.0


def pull(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return CURVATURE * (model.weight - batch).square().sum(dim=1) / 2


def quadratic(momentum: float) -> Course:
    plan = calibrate(
        Budget(400.0, 1e-5), PoissonSampling(COUNT, COUNT), steps=STEPS, privacy=curves.growing_mu(1.5),
        clip=curves.sensitivity_decay(CLIP, rho_c=1.3), accountant=Zcdp(),
    )  # fmt: skip

    def start(seed: int) -> nn.Module:
        model = nn.Linear(SIZE, 1, bias=False).double()
        nn.init.constant_(model.weight, 0.001)
        return model

    return Course(
        start, pull, torch.zeros(COUNT, SIZE, dtype=torch.float64), plan,
        lambda model: MomentumBC(model.parameters(), lr=RATE, momentum=momentum),
        lambda model: float(pull(model, torch.zeros(1, SIZE, dtype=torch.float64)).detach()),
    )  # fmt: skip


def closed_form(plan: Plan, momentum: float, curvature: float = CURVATURE) -> np.ndarray:
    """Coefficient of z_t^2 in E m |w|^2 / 2: m/2 d (C_t / N)^2 r_t^2, r_t what of a kick at t is left."""
    left = np.zeros(plan.steps)
    for kicked in range(1, plan.steps + 1):
        w = v = 0.0
        for t in range(1, plan.steps + 1):
            v = momentum * v + (1 - momentum) * (curvature * w + (t == kicked))
            w -= RATE * v / (1 - momentum**t)
        left[kicked - 1] = w
    if momentum == 0:
        np.testing.assert_allclose(left, -RATE * (1 - RATE * curvature) ** (plan.steps - np.arange(1, plan.steps + 1)))
    return curvature / 2 * SIZE * (plan.clip_norm / COUNT) ** 2 * left**2


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.6])  # 0: the next test too
def test_on_a_quadratic_the_influence_is_the_closed_form(momentum: float) -> None:
    """A z-test at each step; a curvature 10 % off, or noise 3 % off, would be seen."""
    given = quadratic(momentum)
    at = (1, 6, 11, 14, 16)
    found = Influence.of(STEPS, [measure(given, at, seed=seed) for seed in range(8)])
    exact = closed_form(given.plan, momentum)[np.array(at) - 1]
    np.testing.assert_array_less(np.abs(found.mean - exact), 5 * found.error)
    # All steps together: each seed's mean ratio to the truth. They share their kicks' lengths with nobody.
    ratios = (found.slopes / exact).mean(axis=1)
    reach = 4 * ratios.std(ddof=1) / math.sqrt(len(ratios))
    assert abs(ratios.mean() - 1) < reach
    assert reach < 1.03**2 - 1
    other = closed_form(given.plan, momentum, 1.1 * CURVATURE)[np.array(at) - 1]
    assert np.any(np.abs(found.mean - other) > 5 * found.error)


@pytest.mark.slow
def test_the_rate_of_a_quadratic_is_in_its_interval_and_others_are_not() -> None:
    given = quadratic(0.0)
    found = Influence.of(STEPS, [measure(given, (1, 5, 9, 12, 14, 16), seed=seed) for seed in range(6)])
    fit = fit_exponential(found)
    # The clip norm falls by 1.3 over the run, and q_t has its square.
    rate = -2 * math.log(1 - RATE * CURVATURE) - 2 * math.log(1.3) / STEPS
    assert fit.interval[0] < rate < fit.interval[1]
    assert not fit.interval[0] < 1.15 * rate < fit.interval[1]
    assert fit.rho_mu() == pytest.approx(math.exp(fit.rate * STEPS / 4))


@given(rate=st.floats(-0.2, 0.3), last=st.floats(1e-9, 1e3), steps=st.integers(5, 150), points=st.integers(3, 8))
def test_an_exact_exponential_is_found(rate: float, last: float, steps: int, points: int) -> None:
    at = spread(steps, points)
    if len(at) < 3:
        return
    slopes = last * np.exp(rate * (np.array(at) - steps))
    fit = fit_exponential(Influence.of(steps, [Measured(0, at, 0.0, tuple(slopes))]))
    assert fit.rate == pytest.approx(rate, rel=1e-3, abs=1e-5)
    assert fit.last == pytest.approx(last, rel=1e-3)
    assert math.isnan(fit.interval[0])
    # Lemma 4.3: any other noise at the same sum of 1/z^2 does worse for this influence.
    q, best = fit.at(np.arange(1, steps + 1)), curves.evaluate("privacy", fit.privacy(), steps)
    value = float(np.sum(best**2) * np.sum(q / best**2))
    assert value <= steps * q.sum() * (1 + 1e-9)
    assert value == pytest.approx(np.sqrt(q).sum() ** 2, rel=1e-6)
    assert fit.gain() == pytest.approx(value / (steps * q.sum()), rel=1e-6)


@pytest.mark.slow
def test_the_interval_of_the_rate_covers_it() -> None:
    """Two hundred made-up studies of five seeds, whose steps share a part of their error."""
    generator, at = np.random.default_rng(0), (1, 37, 65, 84, 96, 100)
    truth = np.exp(0.03 * (np.array(at) - 100.0))
    hits = wrong = 0
    for _ in range(200):
        shared, own = generator.standard_normal((5, 1)), generator.standard_normal((5, 6))
        noisy = truth * (1 + 0.1 * shared) + 0.03 * own
        seeds = [Measured(i, at, 0.0, tuple(row)) for i, row in enumerate(noisy)]
        low, high = fit_exponential(Influence.of(100, seeds)).interval
        hits += low < 0.03 < high
        wrong += low < 0.04 < high
    assert 180 <= hits <= 199
    assert wrong < 20  # and is not so long that it covers everything


@pytest.mark.parametrize("slopes", [(-1.0, -2.0, -3.0), (0.0, 0.0, 0.0)])
def test_influences_that_no_exponential_fits_are_refused(slopes: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match="influences must"):
        fit_exponential(Influence.of(9, [Measured(0, (1, 5, 9), 0.0, slopes)]))


def test_a_curve_that_begins_below_zero_is_fitted_by_one_that_rises() -> None:
    """Measured for half-scale data: the best exponential is the better of the best for each rate."""
    at, slopes = (1, 19, 32, 42, 48, 50), (-0.51, -0.25, -0.06, 0.12, 0.25, 0.34)
    fit = fit_exponential(Influence.of(50, [Measured(0, at, 0.0, slopes)]))
    rates = np.linspace(0.001, 1.0, 4000)
    basis = np.exp(rates[:, None] * (np.array(at) - 50))
    heights = np.maximum((basis @ slopes) / (basis**2).sum(axis=1), 0.0)
    errors = ((heights[:, None] * basis - slopes) ** 2).sum(axis=1)
    assert fit.rate == pytest.approx(rates[errors.argmin()], abs=5e-4)
    assert fit.last == pytest.approx(heights[errors.argmin()], rel=1e-2)


def test_too_few_steps_and_different_steps_are_refused() -> None:
    two = Measured(0, (1, 9), 0.0, (1.0, 2.0))
    with pytest.raises(InvalidValue, match="at least 3 steps"):
        fit_exponential(Influence.of(9, [two]))
    with pytest.raises(InvalidValue, match="same steps"):
        Influence.of(9, [two, Measured(1, (1, 8), 0.0, (1.0, 2.0))])


def test_the_band_is_student_s_interval() -> None:
    rows = np.random.default_rng(0).standard_normal((7, 3))
    found = Influence.of(9, [Measured(i, (1, 5, 9), 0.0, tuple(row)) for i, row in enumerate(rows)])
    low, high = found.interval()
    for j in range(3):
        expected = stats.ttest_1samp(rows[:, j], 0.0).confidence_interval(0.95)
        assert (low[j], high[j]) == pytest.approx((expected.low, expected.high))


def toy_study(seed: int = 0) -> Study:
    spec = base_spec(
        "toy", epsilon=4.0, accountant="pld", settings={"steps": 6, "stand_in": "toy-public", "seed": seed}
    )
    return Study(spec, (1, 4, 6))


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_study_that_is_killed_goes_on_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, quiet = toy_study(), Console(file=io.StringIO())
    (whole,) = influences.study_influence([study], range(3), tmp_path / "whole", console=quiet)
    measured: list[int] = []

    def dying(*arguments: object, **options: object) -> Measured:
        seed = options["seed"]
        assert isinstance(seed, int)
        if len(measured) == 2 and not measured.count(9):
            measured.append(9)
            raise KeyboardInterrupt
        measured.append(seed)
        return measure(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(influences, "measure", dying)
    with pytest.raises(KeyboardInterrupt):
        influences.study_influence([study], range(3), tmp_path / "torn", console=quiet)
    # What is whole is not measured again, what is damaged is.
    (resumed,) = influences.study_influence([study], range(3), tmp_path / "torn", console=quiet)
    assert measured == [0, 1, 9, 2]
    np.testing.assert_array_equal(resumed.slopes, whole.slopes)
    path = study.path(tmp_path / "torn")
    other = dataclasses.replace(study, high=1.0)  # whole, in the same file
    influences.study_influence([other], [7], tmp_path / "torn", console=quiet)
    mine = next(line for line in path.read_text().splitlines() if '"high": 2.0' in line)
    path.write_text(path.read_text().replace(mine, mine.replace('"base": ', '"base": 1', 1)))
    (repaired,) = influences.study_influence([study], range(3), tmp_path / "torn", console=quiet)
    assert measured == [0, 1, 9, 2, 7, 0, 1, 2]
    assert influences.found(tmp_path / "torn", other).keys() == {7}
    np.testing.assert_array_equal(repaired.slopes, whole.slopes)


@pytest.mark.usefixtures("toy")
def test_lines_of_another_study_are_not_taken(tmp_path: Path) -> None:
    study, quiet = toy_study(), Console(file=io.StringIO())
    influences.study_influence([study], [0], tmp_path, console=quiet)
    assert influences.found(tmp_path, study).keys() == {0}
    for other in (
        dataclasses.replace(study, at=(1, 3, 6)),
        dataclasses.replace(study, high=1.0),
        dataclasses.replace(study, spec=dataclasses.replace(study.spec, clip=2.0)),
    ):
        assert other.path(tmp_path) == study.path(tmp_path)
        assert not influences.found(tmp_path, other)
    assert toy_study(5) == study  # the seed of a spec does not matter


@pytest.mark.usefixtures("toy")
def test_the_private_data_are_not_opened_and_plain_runs_have_no_influence(tmp_path: Path) -> None:
    course_of(toy_study().spec)
    with pytest.raises(AssertionError, match="private data were opened"):
        course_of(dataclasses.replace(toy_study().spec, stand_in=""))
    plain = base_spec("toy", epsilon=0.0, accountant="none", settings={"method": "none", "steps": 6})
    with pytest.raises(InvalidValue, match="influence must be measured on a private run"):
        Study(plain, (1,))


def quadratic_plan(**options: Any) -> Allocation:
    return influence_plan(quadratic(0.0), accountant=Zcdp(), console=Console(file=io.StringIO()), **options)


@pytest.mark.slow
def test_the_plan_spends_the_same_budget_where_the_influence_says(tmp_path: Path) -> None:
    """On the quadratic, the known influence at the planned noise is less than at constant noise and near the least."""
    before, found = quadratic(0.0).plan, quadratic_plan(seeds=6, path=tmp_path / "seeds.json")
    plan = found.plan
    assert plan.budget == before.budget
    assert plan.sampling == before.sampling
    np.testing.assert_array_equal(plan.clip_norm, before.clip_norm)
    spent = np.sum(plan.noise_multiplier**-2.0)
    assert spent == pytest.approx(np.sum(before.noise_multiplier**-2.0), rel=1e-3)
    q = closed_form(before, 0.0)
    least, uniform = np.sqrt(q).sum() ** 2 / spent, STEPS * q.sum() / spent
    reached = float(np.sum(q * plan.noise_multiplier**2))
    assert least <= reached < least + 0.02 * (uniform - least)
    relative = plan.noise_multiplier * found.fit.at(np.arange(1, STEPS + 1)) ** 0.25
    np.testing.assert_allclose(relative, relative[0])


@pytest.mark.slow
def test_a_plan_is_resumed_from_its_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seeds = tmp_path / "seeds.json", list[int]()

    def counted(*arguments: Any, **options: Any) -> Measured:
        seeds.append(options["seed"])
        return measure(*arguments, **options)

    monkeypatch.setattr(influence_plan_module, "measure", counted)
    first = quadratic_plan(seeds=2, path=path)
    second = quadratic_plan(seeds=3, path=path)
    assert seeds == [0, 1, 2]
    np.testing.assert_array_equal(second.influence.slopes[:2], first.influence.slopes)
    quadratic_plan(seeds=2, points=5, path=path)  # other steps: a line of its own
    assert seeds == [0, 1, 2, 0, 1]
    path.write_text(path.read_text().replace('"base": ', '"base": 1'))
    with pytest.raises(FileRefused):
        quadratic_plan(seeds=2, path=path)


@pytest.mark.parametrize(("seeds", "points", "words"), [(1, 6, "seeds"), (2, 2, "points")])
def test_too_little_to_plan_by_is_refused(seeds: int, points: int, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        quadratic_plan(seeds=seeds, points=points)
