"""A comparison's runs: killed and resumed, in one process or several, with the same numbers; what its table says."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import decrescendo as dc
from decrescendo.base import sealed
from decrescendo.errors import FileRefused, InvalidValue, MissingExtra
from decrescendo.report import Paired, holm
from decrescendo.training import Comparison, Task, accuracy, compare, cross_entropy, initialised

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def build(seed: int) -> nn.Module:
    return initialised(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 2)), seed)


def score(model: nn.Module) -> dict[str, float]:
    model.eval()  # left so: a score in the middle must not change the training
    with torch.no_grad():
        return {"minus loss": -float(nn.functional.cross_entropy(model(X), Y))}


TASK = Task(model=build, loss=cross_entropy, data=(X, Y), score=score, learning_rate=0.5)


def plans() -> dict[str, dc.Plan]:
    budget, sampling = dc.Budget(2.0, 1e-4), dc.PoissonSampling(200, 50)
    noises = {"mine": dc.curves.linear(1.0, 0.7), "constant": 1.0}
    return {name: dc.calibrate(budget, sampling, steps=6, noise=z, clip=1.0) for name, z in noises.items()}


PLANS = plans()


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures, which take longer than the trainings: docs/how-to/compare-schedules.md draws one."""
    monkeypatch.setattr("decrescendo.training.search.comparison.draw_scores", lambda *given, **more: None)


@pytest.mark.slow
def test_scores_on_the_way_change_nothing_and_the_last_one_is_that_of_the_run() -> None:
    once, often = (compare(PLANS, TASK, seeds=2, points=points, averaging=0.5) for points in (1, 3))
    assert once.scores == often.scores
    curve = often.curves["mine"]
    assert list(curve.steps) == [2, 4, 6]
    assert [row[-1] for row in curve.values] == list(often.scores["mine"])
    shorter = {"mine": dc.calibrate(PLANS["mine"].budget, PLANS["mine"].sampling, steps=6, noise=1.0, clip=1.0)}
    assert compare(shorter, TASK, seeds=1, points=100).curves["mine"].steps == (1, 2, 3, 4, 5, 6)


@pytest.mark.slow  # docs/how-to/compare-schedules.md runs two processes in every run of the tests
def test_several_processes_find_the_same_numbers_as_one(tmp_path: Path) -> None:
    """The task is made of functions that no other process could import by name."""
    local = replace(TASK, model=lambda seed: build(seed), score=lambda model: {"accuracy": accuracy(model, X, Y)})
    told: list[Any] = []
    one = compare(PLANS, local, seeds=2, learning_rate=[0.1, 0.5])
    two = compare(PLANS, local, seeds=2, learning_rate=[0.1, 0.5], jobs=2, out=tmp_path, tell=told.append)
    assert one == two
    assert len(told) == 8
    assert (tmp_path / "table.md").read_text() == one.table() + "\n"


LIFE = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_compared_runs as test
found = test.compare(test.PLANS, test.TASK, seeds=3, out=sys.argv[2], tell=lambda run: time.sleep(float(sys.argv[3])))
"""


@pytest.mark.slow  # one that ended early goes on in the tests below; a killed training does in many others
def test_a_comparison_that_was_killed_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    lines = tmp_path / "runs.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    life = subprocess.Popen(
        [sys.executable, "-c", LIFE, str(Path(__file__).parent), str(tmp_path), "60"], env=environment
    )
    try:
        until = time.monotonic() + 120
        while not lines.exists() and life.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        life.send_signal(signal.SIGKILL)
        life.wait()
    kept = lines.read_text()
    assert kept.count("\n") == 1
    told: list[Any] = []
    resumed = compare(PLANS, TASK, seeds=3, out=tmp_path, tell=told.append)
    assert lines.read_text().startswith(kept)
    assert lines.read_text().count("\n") == 6
    assert len(told) == 6
    whole = compare(PLANS, TASK, seeds=3)
    assert {name: np.array(found) for name, found in resumed.scores.items()} == {
        name: pytest.approx(np.array(found), abs=1e-6) for name, found in whole.scores.items()
    }


def count(folder: Path) -> int:
    return len((folder / "runs.jsonl").read_text().splitlines())


def test_only_what_is_new_is_trained_and_another_task_is_another_run(tmp_path: Path) -> None:
    one = {"mine": PLANS["mine"]}
    compare(one, TASK, seeds=1, out=tmp_path)
    compare({"renamed": PLANS["mine"]}, TASK, seeds=1, out=tmp_path)
    assert count(tmp_path) == 1
    compare(one, TASK, seeds=2, out=tmp_path)
    assert count(tmp_path) == 2
    others: list[dict[str, Any]] = [
        {"data": (X + 1, Y)}, {"score": lambda model: {"accuracy": accuracy(model, X, Y)}}, {"optimizer": "adam"},
        {"model": lambda seed: initialised(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), seed)},
        {"loss": lambda model, batch: 2 * cross_entropy(model, batch)},
    ]  # fmt: skip
    for number, change in enumerate(others, start=3):
        compare(one, replace(TASK, **change), seeds=1, out=tmp_path)
        assert count(tmp_path) == number, change
    compare(one, TASK, seeds=1, out=tmp_path, momentum=0.5)
    compare(one, TASK, seeds=1, out=tmp_path, learning_rate=0.3)
    assert count(tmp_path) == 9


def times(model: nn.Module, batch: Any, by: Any) -> torch.Tensor:
    return by * cross_entropy(model, batch)


def test_what_loss_and_score_use_belongs_to_a_run(tmp_path: Path) -> None:
    """A value of a closure or a default, an argument of `partial`, a function that another calls."""

    def helped(by: Any) -> Any:
        def inner(model: nn.Module, batch: Any) -> torch.Tensor:
            return times(model, batch, by)

        return lambda model, batch: inner(model, batch)

    one = {"mine": PLANS["mine"]}
    for number, change in enumerate(
        [{"loss": helped(by)} for by in (1.0, 2.0, torch.tensor([1.0]), torch.tensor([2.0]))]
        + [{"loss": partial(times, by=by)} for by in (1.0, 2.0)]
        + [{"score": lambda model, rows=rows: score(model) | {"more": rows[1]}} for rows in ([1, 2], [1, 3])],
        start=1,
    ):
        for _ in range(2):
            compare(one, replace(TASK, **change), seeds=1, out=tmp_path)
            assert count(tmp_path) == number, change


@pytest.mark.slow
def test_what_a_program_uses_has_one_digest_in_every_process() -> None:
    code = (
        "import torch; from torch import nn\n"
        "from decrescendo.training.processes.function_digest import program_digest\n"
        "words, table = {'a', 'b', 'c'}, {'x': [1, 2.0], 'y': torch.ones(2)}\n"
        "class Net(nn.Module):\n    def forward(self, x): return x * len(words)\n"
        "def loss(model, batch): return model(batch) * table['x'][1] + len({'p', 'q'} & words)\n"
        "print(program_digest(nn.Sequential(nn.Linear(2, 2), Net()).requires_grad_(False).apply("
        "lambda m: [p.data.fill_(1) for p in m.parameters()]), [loss, lambda model: words]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_plan_whose_scores_are_the_first_ones_counts_in_the_correction() -> None:
    first, other = (0.5, 0.6, 0.55), (0.4, 0.53, 0.47)
    found = Comparison({"first": first, "other": other, "same": first})
    alone = Comparison({"first": first, "other": other})
    assert found.p_values == {"other": pytest.approx(2 * alone.p_values["other"])}
    assert "corrected after Holm for 2 comparisons" in found.table()


@pytest.mark.parametrize("damage", ["cut", "edited", "foreign", "resealed", "without scores"])
def test_a_broken_line_is_refused_by_its_number(damage: str, tmp_path: Path) -> None:
    compare({"mine": PLANS["mine"]}, TASK, seeds=2, out=tmp_path)
    path = tmp_path / "runs.jsonl"
    first, second = path.read_text().splitlines()
    content = sealed.opened(second, "line", "decrescendo-compared-run", 1)
    broken = {
        "cut": second[:-20], "edited": second.replace('"seconds": ', '"seconds": 1'), "foreign": "hello",
        "resealed": sealed.seal(content | {"scores": ["high"]}),
        "without scores": sealed.seal(content | {"steps": [], "scores": []}),
    }[damage]  # fmt: skip
    path.write_text(f"{first}\n{broken}\n")
    with pytest.raises(FileRefused, match=r"line 2 of .*runs.jsonl.* Take the line out, and its run is repeated"):
        compare({"mine": PLANS["mine"]}, TASK, seeds=2, out=tmp_path)
    moved = sealed.seal(content | {"steps": [1, 2, 3, 4, 5]})
    path.write_text(f"{first}\n{moved}\n")
    with pytest.raises(FileRefused, match="must be scored at the steps"):
        compare({"mine": PLANS["mine"]}, TASK, seeds=2, out=tmp_path)
    path.write_text(f"{first}\n")
    compare({"mine": PLANS["mine"]}, TASK, seeds=2, out=tmp_path)
    assert count(tmp_path) == 2


@pytest.mark.slow
def test_plans_are_trained_at_rates_that_were_chosen_by_another_task(tmp_path: Path) -> None:
    rates = dict(zip(PLANS, (0.05, 0.5, 0.2, 0.4), strict=False))
    found = compare(PLANS, TASK, seeds=2, learning_rate=rates, out=tmp_path)
    assert found.learning_rates == rates
    assert count(tmp_path) == 2 * len(PLANS)
    for name, plan in PLANS.items():
        alone = compare({name: plan}, TASK, seeds=2, learning_rate=rates[name])
        assert found.scores[name] == alone.scores[name]
    assert found.tried == ()
    assert "own best learning rate" not in found.table()
    with pytest.raises(InvalidValue, match=r"one rate for each plan, .*, got one for other"):
        compare(PLANS, TASK, learning_rate={"other": 0.5})


@pytest.mark.slow
def test_each_plan_is_at_its_own_best_rate_and_one_that_diverges_is_never_the_best(tmp_path: Path) -> None:
    def by_rate(model: nn.Module) -> dict[str, float]:
        """Far weights score as not a number: those of the largest rate."""
        length = float(sum(p.detach().norm() for p in model.parameters()))
        return {"score": math.nan if length > 50 else score(model)["minus loss"]}

    task, rates = replace(TASK, score=by_rate), [0.01, 0.5, 1e3]
    found = compare(PLANS, task, seeds=2, learning_rate=rates, out=tmp_path)
    for name, plan in PLANS.items():
        means = {
            rate: np.mean(compare({name: plan}, task, seeds=2, learning_rate=rate).scores[name]) for rate in rates[:2]
        }
        assert found.learning_rates[name] == max(means, key=lambda rate: means[rate])
    assert compare(PLANS, task, seeds=2, learning_rate=rates, out=tmp_path).scores == found.scores
    assert "best learning rate of 0.01, 0.5, 1000" in found.table()
    with pytest.raises(InvalidValue, match="finite, got nan by the plan 'mine'"):
        compare(PLANS, task, seeds=2, learning_rate=[1e3], out=tmp_path)


def test_the_table_says_what_independent_formulas_say() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(0.8, 0.02, 8)
    scores = {
        "first": base,
        "far": base + rng.normal(0.02, 0.005, 8),
        "near": base + rng.normal(0.004, 0.02, 8),
    }
    found = Comparison({name: tuple(map(float, values)) for name, values in scores.items()})
    tests = [stats.ttest_rel(scores[name], base).pvalue for name in ("far", "near")]
    assert [found.p_values[name] for name in ("far", "near")] == pytest.approx(holm(tests), rel=1e-4)
    assert found.p_values["far"] == pytest.approx(min(1, 2 * min(tests)), rel=1e-4)
    rows = [[cell.strip() for cell in line.split("|")] for line in found.table().splitlines()[2:5]]
    assert [row[8] for row in rows] == ["", "better", "undecided"]
    needed = found.differences["near"].seeds_to_decide
    assert needed is not None
    assert rows[2][9] == str(needed)


def test_with_so_many_seeds_four_tests_in_five_decide() -> None:
    """A simulation, and with two thirds of them far fewer do."""
    few = Paired((1.0, -0.5, 1.5, 0.0))
    needed = few.seeds_to_decide
    assert needed is not None
    rng = np.random.default_rng(1)

    def decided(seeds: int) -> float:
        drawn = rng.normal(few.mean, np.std(few.differences, ddof=1), (20_000, seeds))
        return float((stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean())

    assert decided(needed) == pytest.approx(0.8, abs=0.02)
    assert decided(2 * needed // 3) < 0.7


def test_without_matplotlib_the_rest_is_written_and_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*given: object, **more: object) -> None:
        raise MissingExtra('matplotlib must be installed for this. Run pip install "decrescendo[plots]"')

    monkeypatch.setattr("decrescendo.training.search.comparison.draw_scores", missing)
    with pytest.warns(UserWarning, match="figure.png was not drawn: matplotlib must be installed"):
        compare({"mine": PLANS["mine"]}, TASK, seeds=1, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl", "table.md"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"jobs": 0}, "jobs"), ({"points": 0}, "points"), ({"learning_rate": []}, "at least one value"),
     ({"learning_rate": [0.1, -1.0]}, "learning_rate must be > 0"), ({"momentum": math.nan}, "momentum"),
     ({"averaging": 1.0}, "averaging must be")],
)  # fmt: skip
def test_what_cannot_be_asked_for(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        compare(PLANS, TASK, **change)
