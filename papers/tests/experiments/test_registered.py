"""Recipes by registration: what was found is what the registered commands find, and the page judges by the rule."""

import dataclasses
import math
from pathlib import Path

import pytest

from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.registered_page import registered_in_brief, registered_page
from decrescendo_papers.experiments.recipes import Recipe, Trial, load_recipe, save_recipe
from decrescendo_papers.experiments.registered import REGISTERED, SECOND, Registration, read_registered
from decrescendo_papers.experiments.reproduce import requested
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.search import Search
from decrescendo_papers.experiments.space import default_space, parse_fixed, parse_moving
from decrescendo_papers.experiments.strong import FIRST_SEED
from decrescendo_papers.experiments.table import base_spec
from decrescendo_papers.experiments.tasks import find_task

FOUND = Path(__file__).parents[2] / "results/registered"
FIRST = REGISTERED[0]
SETTINGS = {"method": "constant", "steps": 10, "delta": FIRST.delta}
SPEC = base_spec(FIRST.task, epsilon=FIRST.epsilon, accountant="pld", settings=SETTINGS)
RECIPE = Recipe(
    SPEC, FIRST.stand_in, "public", 0.7, (Trial(0, {"stride": 1.0}, (0.7,), 60.0),), {"stride": "1..8:log"}, 1.0,
    "papers search", {},
)  # fmt: skip


@pytest.mark.parametrize("entry", REGISTERED, ids=lambda entry: entry.key)
def test_what_was_found_was_registered(entry: Registration) -> None:
    moving, fixed = dict(map(parse_moving, entry.vary)), dict(map(parse_fixed, entry.fix))
    space = default_space(find_task(entry.task)).changed(moving, {**fixed, "delta": entry.delta})
    asked = Search(
        task=entry.task,
        epsilon=entry.epsilon,
        stand_in=entry.stand_in,
        space=space,
        trials=entry.round.trials,
        together=entry.round.together,
    )
    path = FOUND / f"{entry.key}.json"
    if not path.exists():
        return
    recipe = load_recipe(path)
    assert recipe.command.split() == ["papers", *entry.words]
    assert (len(recipe.trials), recipe.space) == (entry.round.trials, space.describe())
    assert (recipe.spec.epsilon, recipe.spec.delta, recipe.spec.accountant) == (
        entry.epsilon,
        entry.delta,
        "pld",
    )
    best = max((trial for trial in recipe.trials if trial.score is not None), key=lambda trial: trial.score or 0)
    assert asked.runs(best.number, dict(best.values))[0] == dataclasses.replace(recipe.spec, stand_in=entry.stand_in)


def test_there_is_one_registration_a_target() -> None:
    assert len({entry.key for entry in REGISTERED}) == len(REGISTERED)


@pytest.mark.parametrize(
    ("gap", "seeds", "words"),
    [
        (0.5, 5, "| reached |"),
        (0.0, 5, "| reached |"),
        (-0.5, 5, "| not reached |"),
        (0.5, 4, "| not evaluated yet |"),
    ],
)
def test_a_target_is_reached_at_or_above_it_by_all_seeds(tmp_path: Path, gap: float, seeds: int, words: str) -> None:
    save_recipe(tmp_path / f"{FIRST.key}.json", RECIPE)
    found = read_registered(tmp_path)
    runs = [
        Result(SPEC.seeded(seed), {"test_accuracy": percent / 100}, claimed=1, certified=(1, 1), clt=1)
        for seed, percent in (
            *((FIRST_SEED + seed, FIRST.target + gap) for seed in range(seeds)),
            (0, 1.0), (FIRST_SEED + 5, 1.0),  # of the search, and one more than registered
        )
    ]  # fmt: skip
    page = registered_page(found, Archive(runs))
    line = next(line for line in page.splitlines() if line.startswith("| names "))
    assert words in " ".join(line.split())
    assert f"{gap:+.2f} ± 0.00" in line
    assert f"{FIRST.target + gap:.2f} ± 0.00" in line
    reached = words == "| reached |"
    assert f"of the first round, {int(reached)} reached, " in registered_in_brief(found, Archive(runs))


@pytest.mark.parametrize(
    ("mean", "close"),
    # Five seeds whose standard error is one: within two of the target, on the edge, beyond it, on both sides.
    [(1.99, True), (2.0, True), (2.01, False), (-2.0, True), (-2.01, False)],
)
def test_what_other_seeds_could_turn_is_named(tmp_path: Path, mean: float, close: bool) -> None:
    save_recipe(tmp_path / f"{FIRST.key}.json", RECIPE)
    spread = math.sqrt(2.5)  # of -2 .. 2; times it and over the root of five: an error of one
    runs = [
        Result(SPEC.seeded(FIRST_SEED + i), {"test_accuracy": (FIRST.target + mean + away) / 100})
        for i, away in enumerate(math.sqrt(5) / spread * step for step in (-2, -1, 0, 1, 2))
    ]
    words = registered_in_brief(read_registered(tmp_path), Archive(runs))
    assert words.endswith(f"could decide otherwise: {FIRST.key}.") is close
    assert ("Within two standard errors of the target" in words) is close


def test_nothing_found_is_said(tmp_path: Path) -> None:
    page = registered_page(read_registered(tmp_path), Archive([]))
    assert "0 reached, 0 not reached, 6 not evaluated yet; of 7 of the second, " in page
    assert "Nothing yet." in page


def test_the_evaluation_is_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "results/registered"
    folder.mkdir(parents=True)
    save_recipe(folder / f"{FIRST.key}.json", RECIPE)
    monkeypatch.chdir(tmp_path)
    assert [spec.seed for spec in requested(["registered"], 2)] == [FIRST_SEED, FIRST_SEED + 1]


def test_the_second_round_is_evaluated_with_ten_seeds_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = next(entry for entry in REGISTERED if entry.round is SECOND)
    folder = tmp_path / "results/registered"
    folder.mkdir(parents=True)
    save_recipe(folder / f"{entry.key}.json", RECIPE)
    monkeypatch.chdir(tmp_path)
    seeds = [spec.seed for spec in requested(["registered"], 10)]
    assert seeds == list(range(200, 210))
    runs = [Result(SPEC.seeded(seed), {"test_accuracy": 1.0}, claimed=1, certified=(1, 1), clt=1) for seed in seeds]
    found = read_registered(folder)
    assert "of 7 of the second, 0 reached, " in registered_in_brief(found, Archive(runs[:-1]))
    assert "of 7 of the second, 1 reached, " in registered_in_brief(found, Archive(runs))
