"""Facts: a schedule from a file is compared with the papers', within their budget, or refused in one line."""

import json
from pathlib import Path

import cloudpickle
import pytest
from often import some

from decrescendo_papers.data import digits
from decrescendo_papers.experiments.own_curves import beside
from decrescendo_papers.experiments.tasks import TASKS
from decrescendo_papers.tasks import as_task

from .conftest import Invoke

MINE = """
import decrescendo as dc

def plans(budget, sampling, steps):
    return {"mine": dc.calibrate(budget, sampling, steps=steps, noise=lambda u: 1 - 0.3 * u, clip=1.0)}

def taken(budget, sampling, steps):
    return {"vanilla": plans(budget, sampling, steps)["mine"]}

def loud(budget, sampling, steps):
    return plans(dc.Budget(2 * budget.epsilon, budget.delta), sampling, steps)

def others(budget, sampling, steps):
    return plans(budget, dc.PoissonSampling(2_000, 100), steps)

def estimated(budget, sampling, steps):
    return {"mine": dc.calibrate(budget, sampling, steps=steps, clip=1.0, accountant=dc.accounting.GdpClt())}

def one(budget, sampling, steps):
    return plans(budget, sampling, steps)["mine"]

number = 3
"""


def arguments(curve: str) -> tuple[object, ...]:
    return "compare", "digits", "--epsilon", 2, "--curve", curve, "--seeds", 2, "--jobs", 1, "--steps", 2


@pytest.mark.slow  # its trainings are those of the test below, which looks at the rest
def test_yours_is_compared_with_vanilla_and_dynamic_and_is_kept(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    result = invoke(*arguments("mine.py:plans"))
    assert result.exit_code == 0, result.output
    table = (tmp_path / "compared/digits-2/table.md").read_text()
    assert table.strip() in result.stdout
    assert [line.split()[1] for line in table.splitlines()[2:5]] == ["mine", "vanilla", "dynamic"]
    assert "minus mine" in table
    before = (tmp_path / "compared/digits-2/runs.jsonl").read_bytes()
    assert before.count(b"\n") == 6
    assert invoke(*arguments("mine.py:plans")).exit_code == 0
    assert (tmp_path / "compared/digits-2/runs.jsonl").read_bytes() == before


@pytest.mark.slow
def test_of_several_rates_each_plans_is_chosen_on_other_test_rows_than_it_is_scored_on(
    invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    result = invoke(*arguments("mine.py:plans"), "--lr", 1e-6, "--lr", 0.5)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "compared/digits-2"
    rows = {
        part: [json.loads(line)["about"] for line in (folder / part).read_text().splitlines()]
        for part in ("rates/runs.jsonl", "runs.jsonl")
    }
    assert [len(found) for found in rows.values()] == [
        12,
        6,
    ]  # plans times rates times seeds, and plans times seeds
    chosen = dict(line.split("|")[1:3] for line in (folder / "rates/table.md").read_text().splitlines()[2:5])
    reported = dict(line.split("|")[1:3] for line in (folder / "table.md").read_text().splitlines()[2:5])
    assert chosen == reported
    assert "own best learning rate" in (folder / "rates/table.md").read_text()
    assert "own best learning rate" not in (folder / "table.md").read_text()


def test_the_halves_of_the_test_rows_have_no_row_in_common() -> None:
    model = as_task("digits").fresh(0, as_task("digits").load())
    _, targets = digits().test
    scores = [as_task("digits", half).first_score(model) for half in (None, 0, 1)]
    counts = len(targets), len(targets[::2]), len(targets[1::2])
    right = [round(score * count) for score, count in zip(scores, counts, strict=True)]
    assert right[0] == right[1] + right[2]
    assert counts[0] == counts[1] + counts[2]


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ("mine.py", "--curve must be FILE.py:FUNCTION"),
        ("absent.py:plans", "with a file that is there, got 'absent.py:plans'"),
        ("mine.py:absent", "must name a function of mine.py, got 'absent'"),
        ("mine.py:number", "must name a function of mine.py, got 'number'"),
        ("mine.py:one", "must return plans by name, got Plan"),
        ("mine.py:taken", "none called vanilla or dynamic, got vanilla"),
        ("mine.py:loud", "plan 'mine' must be within"),
        ("mine.py:estimated", "by a certified bound"),
        ("mine.py:others", "must be for 1438 rows, got dataset_size=2000"),
    ],
)
def test_what_cannot_be_compared_fairly_is_refused_in_one_line(
    curve: str, words: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    result = invoke(*arguments(curve))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "compared").exists()


@pytest.mark.parametrize("name", some(TASKS, 3))
def test_every_task_can_be_sent_to_another_process_and_has_plans(name: str) -> None:
    task = cloudpickle.loads(cloudpickle.dumps(as_task(name)))
    assert task.count == TASKS[name].rows
    vanilla, dynamic = beside(name, 2.0, steps=2)
    assert vanilla.sampling.dataset_size == dynamic.sampling.dataset_size == task.count
