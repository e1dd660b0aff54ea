"""Strong recipes: fresh seeds, certified, scored on data that no search has seen."""

import dataclasses
from pathlib import Path

import pytest

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.recipes_page import recipes_in_brief, recipes_page
from decrescendo_papers.experiments.recipes import Recipe, Trial, save_recipe
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.strong import FIRST_SEED, Strong, paper_of, read_recipes
from decrescendo_papers.experiments.table import base_spec

SPEC = base_spec("mnist", epsilon=0.4, accountant="pld", settings={"method": "constant", "steps": 10})
TRIALS = (Trial(0, {"clip": 0.5}, (0.8,), 60.0),)
RECIPE = Recipe(SPEC, "fashion-mnist", "public", 0.8, TRIALS, {"clip": "0.1..1"}, 1.0, "tune", {})


def _result(spec: Spec, percent: float) -> Result:
    return Result(spec, {"test_accuracy": percent / 100}, claimed=0.4, certified=(0.399, 0.4), clt=0.39)


@pytest.fixture
def strong(tmp_path: Path) -> Strong:
    return _read(tmp_path, {"mnist-0.4-paper": RECIPE})


def _read(folder: Path, recipes: dict[str, Recipe]) -> Strong:
    """As an archive holds them: what searches wrote, one behind the other."""
    archive = folder / "recipes.jsonl"
    with archive.open("w") as lines:
        for name, recipe in recipes.items():
            save_recipe(folder / f"{name}.json", recipe)
            lines.write((folder / f"{name}.json").read_text())
    return read_recipes(archive)


def test_they_are_run_with_seeds_that_no_search_used(strong: Strong) -> None:
    specs = strong.specs([0, 1])
    assert [spec.seed for spec in specs] == [FIRST_SEED, FIRST_SEED + 1]
    assert {spec.seeded(0) for spec in specs} == {SPEC}
    assert {spec.accountant for spec in specs} == {"pld"}
    assert strong.specs([0], blocks=["claimed"]) == []
    assert strong.specs([0], only=["mnist/0.4/*"]) == specs[:1]
    with pytest.raises(InvalidValue, match="cells must be of a recipe"):
        strong.specs([0], only=["imdb/*"])


def test_the_page_holds_each_recipe_against_the_best_number_of_the_paper(tmp_path: Path, strong: Strong) -> None:
    paper = paper_of("mnist", 0.4)
    assert paper == 94.35
    assert recipes_in_brief(strong, Archive([])).startswith("Of 0 recipes with at least 3 seeds, 0 have")
    few = Archive([_result(spec, 99.0) for spec in strong.specs([0, 1])])
    assert recipes_in_brief(strong, few).startswith("Of 0 recipes")
    assert " 94.35 |" in recipes_page(strong, Archive([]))
    for gap, words in ((0.5, "1 have"), (0.0, "0 have"), (-0.5, "0 have")):
        page = recipes_page(strong, Archive([_result(spec, paper + gap) for spec in strong.specs([0, 1, 2])]))
        assert words in page
        assert f"{paper + gap:.2f} ± 0.00" in page
        assert f"{gap:+.2f}" in page
    started = Recipe(
        dataclasses.replace(SPEC, start="enlarged-digits"), "fashion-mnist", "public", 0.9, TRIALS,
        {"clip": "0.1..1"}, 1.0, "tune", {},
    )  # fmt: skip
    both = _read(tmp_path, {**strong.recipes, "mnist-0.4-paper-start": started})
    measured = [
        dataclasses.replace(run, metrics={**run.metrics, "start_accuracy": 0.7 + 0.02 * (run.spec.seed % 2)})
        for run in (_result(spec, 95.0) for spec in both.specs([0, 1]) if spec.start)
    ]
    page = recipes_page(both, Archive(measured))
    assert "| 71.00 ± 1.41 | 95.00 ± 0.00 |" in page


def test_fashion_is_run_from_public_weights_too_with_nothing_searched(tmp_path: Path) -> None:
    fashion = base_spec("fashion-mnist", epsilon=0.4, accountant="pld", settings={"method": "constant", "steps": 10})
    tanh = dataclasses.replace(fashion, model="tanh")
    searched = {
        "one": dataclasses.replace(RECIPE, spec=fashion, stand_in="mnist"), "two": RECIPE,
        "tanh": dataclasses.replace(RECIPE, spec=tanh, stand_in="mnist"),
    }  # fmt: skip
    found = _read(tmp_path, searched)
    assert {name: recipe.spec for name, recipe in found.recipes.items()} == {
        "one": fashion, "one-from-mnist": dataclasses.replace(fashion, start="mnist"), "two": SPEC,
        "tanh": tanh,
    }  # fmt: skip
    assert [spec.start for spec in found.specs([0], only=["*/*/one", "*/*/one-from-mnist"])] == ["", "mnist"]
    page = recipes_page(found, Archive([]))
    assert "nothing was searched for it" in page


def test_runs_that_a_search_made_do_not_count(strong: Strong) -> None:
    assert "99.00" not in recipes_page(strong, Archive([_result(SPEC, 99.0)]))


def test_the_best_number_of_the_paper() -> None:
    assert paper_of("imdb", 3) == 76.64
    assert paper_of("names", 3) is None


def test_reviews_that_were_searched_on_do_not_score() -> None:
    """A recipe for the reviews is of the task that leaves the searched half out."""
    from decrescendo_papers.experiments.pages.recipes_page import plain_task

    assert {plain_task(task) for task in ("imdb-half", "imdb")} == {"imdb"}
