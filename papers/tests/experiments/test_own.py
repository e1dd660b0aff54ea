"""Facts: the baselines' own settings are those of the searches by the rule that was written down, rounded."""

from pathlib import Path

import pytest

from decrescendo_papers.experiments.own import CHOSEN, SEARCHED, STAND_INS, name, rows, words
from decrescendo_papers.experiments.recipes import load_recipes
from decrescendo_papers.experiments.table1 import COLUMNS, TABLE1

SETTINGS = load_recipes(Path(__file__).parents[2] / "results/settings.jsonl")
PLACES = {name(row, column): (row, column) for row in SEARCHED for column in COLUMNS}


@pytest.mark.parametrize("key", CHOSEN)
def test_what_is_run_is_what_was_found_by_the_rule(key: str) -> None:
    row, column = PLACES[key]
    recipe = SETTINGS[key]
    assert recipe.command.split() == ["papers", *words(row, column)]
    assert recipe.stand_in == STAND_INS[column.task]
    (cell,) = [
        one
        for one in TABLE1.tried_cells([0], TABLE1.own)
        if one.row.key == f"{row.key}-own-{column.task}-{column.epsilon:g}"
    ]
    (run,) = cell.specs
    assert (run.task, run.epsilon, run.accountant, run.method, run.steps, run.batch) == (
        column.task, column.epsilon, row.accountant, recipe.spec.method, recipe.spec.steps, recipe.spec.batch
    )  # fmt: skip
    for setting in ("clip", "learning_rate", "rho_mu"):
        assert getattr(run, setting) == float(f"{getattr(recipe.spec, setting):.2g}")


def test_only_searched_columns_have_a_row() -> None:
    assert len(rows(COLUMNS)) == len(CHOSEN)
    assert rows(COLUMNS[:1])[0].only == ("mnist/0.4",)
    assert rows([]) == ()
