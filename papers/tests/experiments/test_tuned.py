"""Schedules tuned in each column: what is tried, the rule by which one is taken, and what the page says of it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.methods import DYNAMIC, END_CLIP, MEAN_CLIP
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.tuned_page import tuned_in_brief, tuned_page
from decrescendo_papers.experiments.reproduce import TABLES, requested
from decrescendo_papers.experiments.results import Result, save
from decrescendo_papers.experiments.search import check_settings
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import check_untested, find_stand_in
from decrescendo_papers.experiments.table import CERTIFIED
from decrescendo_papers.experiments.tasks import find_task
from decrescendo_papers.experiments.tuned import (
    COLUMNS,
    CONSTANT,
    FIXED,
    MOVING,
    Evaluations,
    Tuned,
    read_tuned,
)

FIRST = COLUMNS[0]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.key)
def test_a_trial_is_a_run_on_public_data_that_the_task_is_not_tested_on(column: Tuned) -> None:
    task = find_task(column.task)
    check_untested(find_stand_in(column.stand_in, task), task)
    for trial in column.trials():
        check_settings(trial)
        assert (trial.stand_in, trial.accountant, trial.epsilon) == (column.stand_in, "pld", column.epsilon)
    on_task = [dataclasses.replace(trial, stand_in="") for trial in column.trials()]
    assert on_task == [column.spec(candidate) for candidate in (*CONSTANT, *MOVING)]


@pytest.mark.parametrize("key", [key for key in TABLES if not key.startswith("table2")])
def test_the_tables_have_runs_of_what_is_constant_and_of_the_pair_of_all_columns(key: str) -> None:
    table = TABLES[key]
    rows = {row.key: row for row in table.rows}
    for column, own in zip(table.columns, (one for one in COLUMNS if one.table == key), strict=True):
        cells = [
            table.cell(rows[name], column, CERTIFIED, [0]).specs[0]
            for name in ("vanilla", MEAN_CLIP.key, END_CLIP.key, DYNAMIC.key)
        ]
        assert cells == [own.spec(candidate) for candidate in (*CONSTANT, FIXED)]


def scored(column: Tuned, scores: list[float]) -> dict[Spec, Result]:
    return {
        spec: Result(spec, metrics={"test_accuracy": score})
        for spec, score in zip(column.trials(), scores, strict=True)
    }


def test_the_best_of_each_kind_is_taken_and_of_equals_the_first() -> None:
    found = scored(FIRST, [0.5, 0.7, 0.7, 0.1, 0.9, 0.2, 0.9, 0.3, 0.4])
    chosen = Evaluations(found.get).candidates(FIRST)
    assert chosen["constant"] == CONSTANT[1]
    assert chosen["moving"] == MOVING[1]
    assert (chosen["vanilla"], chosen["fixed"]) == (
        CONSTANT[0],
        {"method": "dynamic", "rho_mu": 1.25, "rho_c": 3.3},
    )


def test_a_trial_that_its_budget_refused_is_not_taken() -> None:
    found = scored(FIRST, [0.5] * 9)
    refused = FIRST.trial(CONSTANT[0])
    found[refused] = Result(refused, refused="no noise is enough")
    assert Evaluations(found.get).candidates(FIRST)["constant"] == CONSTANT[1]


def test_nothing_is_evaluated_before_all_trials_of_a_column_are_there() -> None:
    found = scored(FIRST, [0.5] * 9)
    specs = Evaluations(found.get).specs([0, 1])
    assert {spec.seed for spec in specs} == {0, 1}
    assert {(spec.task, spec.epsilon, spec.stand_in) for spec in specs} == {("mnist", 0.4, "")}
    del found[FIRST.trial(MOVING[-1])]
    assert not Evaluations(found.get).specs([0, 1])


def runs(column: Tuned, candidate: dict[str, Any], accuracies: list[float]) -> list[Result]:
    specs = [column.spec(candidate).seeded(seed) for seed in range(len(accuracies))]
    return [Result(spec, metrics={"test_accuracy": score}) for spec, score in zip(specs, accuracies, strict=True)]


def test_the_page_compares_what_was_chosen_with_what_was_chosen() -> None:
    trials = scored(FIRST, [0.5, 0.7, 0.6, 0.1, 0.9, 0.2, 0.8, 0.3, 0.4])
    archive = Archive(
        [
            *trials.values(),
            *runs(FIRST, CONSTANT[0], [0.80, 0.81, 0.82]),
            *runs(FIRST, CONSTANT[1], [0.88, 0.89, 0.91]),
            *runs(FIRST, MOVING[1], [0.90, 0.91, 0.92]),
        ]
    )
    page = tuned_page(archive)
    (row,) = (line for line in page.splitlines() if "91.00 ± 1.00" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:7] == [
        "Table 1",
        "mnist/0.4",
        *(["81.00 ± 1.00", "89.33 ± 1.53"]),
        "91.00 ± 1.00",
        "91.00 ± 1.00",
        "3",
    ]
    assert cells[7].startswith("+10.00 ± 0.00")
    assert cells[8].startswith("+1.67 ± 0.33, p 0.0377: above")
    assert cells[9] == "same"  # the first of the equal ones is the authors' pair
    assert "vanilla DP-SGD +10.00 points over 1 column and 3 seeds" in tuned_in_brief(archive)
    assert f"Trials are missing of {len(COLUMNS) - 1} columns" in page


def test_the_choice_is_of_the_results_that_are_named(tmp_path: Path) -> None:
    for result in scored(FIRST, [0.5] * 9).values():
        save(tmp_path, result)
    assert len(requested(["tuned"], 1, results=tmp_path)) == 4
    assert not requested(["tuned"], 1, results=tmp_path / "other")
    assert read_tuned(tmp_path).untried() == len(COLUMNS) - 1
    assert read_tuned(tmp_path).untried(["mnist/0.4"]) == 0


def test_trials_are_asked_for_by_column() -> None:
    assert len(requested(["tuned-trials"], 5)) == len(COLUMNS) * 9
    names = requested(["tuned-trials"], 1, cells=["names/8"])
    assert len(names) == 9
    assert {spec.stand_in for spec in names} == {"synthetic-names"}
    assert len(requested(["tuned-trials"], 1, cells=["imdb-half/1/table2-at-64"])) == 9
    with pytest.raises(InvalidValue, match="cells must be of a tuned column"):
        requested(["tuned-trials"], 1, cells=["names/7"])
