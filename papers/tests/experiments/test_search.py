"""Facts: a search on public data never opens the private ones, and is the same search however often it is killed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decrescendo.accounting.budget import Budget
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo_papers.experiments import search as search_room
from decrescendo_papers.experiments.perform import perform, plan_of
from decrescendo_papers.experiments.recipes import Recipe, load_recipe, load_recipes, save_recipe
from decrescendo_papers.experiments.results import find, path_of
from decrescendo_papers.experiments.search import Search, search
from decrescendo_papers.experiments.space import (
    Among,
    Between,
    Space,
    default_space,
    parse_fixed,
    parse_moving,
    starting_values,
)
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import base_spec
from decrescendo_papers.experiments.tasks import find_task

from .conftest import here, pretend, spoil

SPACE = Space(
    {
        "method": Among(("constant", "dynamic")),
        "stride": Between(0.1, 2.0, log=True),
        "clip": Between(0.5, 2.0, log=True),
        "rho_mu": Between(1.1, 1.5),
    },
    {"steps": 2, "rho_c": 2.0},
)


def asked(**changes: Any) -> Search:
    settings: dict[str, Any] = {
        "task": "toy", "epsilon": 3.0, "stand_in": "toy-public", "space": SPACE, "trials": 5, "together": 2,
    }  # fmt: skip
    return Search(**{**settings, **changes})


def values(recipe: Recipe) -> list[dict[str, Any]]:
    return [dict(trial.values) for trial in recipe.trials]


def test_settings_chosen_by_rows_that_are_tested_on_are_refused() -> None:
    space = Space({"clip": Between(0.1, 1.0)}, {"method": "constant"})
    changes: dict[str, Any] = {"stand_in": "imdb-public", "space": space}
    with pytest.raises(InvalidValue, match=r"stand_in must have no rows that imdb is tested on.*imdb-half"):
        asked(task="imdb", **changes)
    asked(task="imdb-half", **changes)


@pytest.mark.usefixtures("toy")
class TestSearch:
    def test_a_killed_search_goes_on_with_the_same_trials_and_repeats_nothing(self, tmp_path: Path) -> None:
        whole = search(asked(trials=12), tmp_path / "whole", here(tmp_path / "whole"))
        folder, performed = tmp_path / "killed", []
        for life in (3, 0, 4):
            with pytest.raises(KeyboardInterrupt):
                search(asked(trials=12), folder, here(folder, performed, die_after=life))
        resumed = search(asked(trials=12), folder, here(folder, performed))
        assert resumed == whole
        assert len(performed) == len(set(performed)) == 12

    def test_more_trials_go_on_where_fewer_ended(self, tmp_path: Path) -> None:
        performed: list[Spec] = []
        few = search(asked(trials=5), tmp_path, here(tmp_path, performed))
        more = search(asked(trials=12), tmp_path, here(tmp_path, performed))
        assert values(more)[:5] == values(few)
        assert len(performed) == 12

    @pytest.mark.slow
    def test_optuna_learns_from_the_scores(self, tmp_path: Path) -> None:
        """The same sampler told other scores asks for other trials, once its random beginning is over."""

        def elsewhere(spec: Spec) -> Any:
            return dataclasses.replace(pretend(spec), metrics={"test_accuracy": spec.clip}, refused="")

        near = search(asked(trials=24), tmp_path / "a", here(tmp_path / "a"))
        far = search(asked(trials=24), tmp_path / "b", here(tmp_path / "b", compute=elsewhere))
        assert values(near)[:10] == values(far)[:10]
        assert values(near)[12:] != values(far)[12:]
        assert np.mean([v["clip"] for v in values(far)[12:]]) > np.mean([v["clip"] for v in values(near)[12:]])

    def test_the_first_trial_is_where_the_task_starts(self, tmp_path: Path) -> None:
        first = search(asked(), tmp_path, here(tmp_path)).trials[0].values
        assert first == {"method": "constant", "stride": 0.5, "clip": 1.0}

    def test_the_best_is_the_best_of_all_and_the_recipe_lists_them(self, tmp_path: Path) -> None:
        recipe = search(asked(trials=12), tmp_path / "runs", here(tmp_path / "runs"), command="decrescendo tune")
        scores = [trial.score for trial in recipe.trials if trial.score is not None]
        assert recipe.score == max(scores)
        assert recipe.spec.stand_in == ""
        assert recipe.core_minutes == pytest.approx(0.1 * len(scores))
        assert recipe.failed == 12 - len(scores) > 0
        assert all(trial.why == "too large" for trial in recipe.trials if trial.score is None)
        winner = find(tmp_path / "runs", dataclasses.replace(recipe.spec, stand_in="toy-public"))
        assert winner is not None
        assert winner.metrics["test_accuracy"] == recipe.score

    def test_trials_share_seeds_unless_asked(self, tmp_path: Path) -> None:
        shared: list[Spec] = []
        recipe = search(asked(seeds=2), tmp_path / "a", here(tmp_path / "a", shared))
        assert sorted({spec.seed for spec in shared}) == [0, 1]
        scored = [trial for trial in recipe.trials if trial.scores]
        assert all(len(trial.scores) == 2 and trial.score == np.mean(trial.scores) for trial in scored)
        fresh: list[Spec] = []
        search(asked(seeds=2, common_seeds=False), tmp_path / "b", here(tmp_path / "b", fresh))
        assert sorted(spec.seed for spec in fresh) == list(range(10))

    @pytest.mark.slow
    def test_every_run_is_on_the_stand_in_with_the_noise_of_the_private_task(self, tmp_path: Path) -> None:
        """The toy task's own loader raises."""
        performed: list[Spec] = []
        space = Space({"stride": Between(0.1, 2.0)}, {"steps": 2})
        recipe = search(asked(trials=2, space=space), tmp_path, here(tmp_path, performed, compute=perform))
        assert [spec.stand_in for spec in performed] == ["toy-public"] * 2
        assert {plan_of(spec).sampling.dataset_size for spec in performed} == {60}
        private = plan_of(recipe.spec)
        assert plan_of(performed[0]).ledger == private.ledger
        assert private.guarantee.kind == "upper"
        assert private.budget == Budget(3.0, find_task("toy").delta)
        with pytest.raises(AssertionError, match="private data were opened"):
            perform(recipe.spec)

    def test_a_search_without_any_score_says_why(self, tmp_path: Path) -> None:
        space = Space({"clip": Between(1.9, 2.0)}, {"steps": 2})
        with pytest.raises(InvalidValue, match=r"at least one trial.* got none of 3; the first: too large"):
            search(asked(space=space, trials=3), tmp_path, here(tmp_path))

    def test_a_run_that_fails_is_a_trial_without_a_score(self, tmp_path: Path) -> None:
        def fails(spec: Spec) -> Any:
            if spec.clip > 1:
                raise ValueError("broken")
            return pretend(spec)

        recipe = search(asked(trials=8), tmp_path, here(tmp_path, compute=fails))
        assert {trial.why for trial in recipe.trials if trial.values["clip"] > 1} == {"broken"}  # type: ignore[operator]

    def test_a_damaged_result_is_run_again(self, tmp_path: Path) -> None:
        performed: list[Spec] = []
        before = search(asked(), tmp_path, here(tmp_path, performed))
        spoil(path_of(tmp_path, performed[1]), performed[1])
        assert search(asked(), tmp_path, here(tmp_path, performed)) == before
        assert performed[5:] == [performed[1]]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"stand_in": ""}, "stand_in for toy must be one of toy-public"),
            ({"stand_in": "mnist"}, "stand_in for toy must be one of toy-public"),
            ({"task": "none"}, "task must be one of"),
            ({"epsilon": 0.0}, "epsilon must be"),
            ({"trials": 0}, "trials must be >= 1"),
            ({"seeds": 0}, "seeds must be >= 1"),
            ({"together": 0}, "together must be >= 1"),
            ({"space": Space({"model": Among(("paper", "magic"))})}, "model must be one of paper, tanh"),
            ({"space": Space({"method": Among(("magic",))})}, "schedule must be one of"),
            ({"space": Space({"momentum": Between(0, 1)})}, "momentum must be"),
            (
                {"space": Space({"momentum": Among((0.9,))}, {"optimizer": "adam"})},
                "momentum must be 0 with adam",
            ),
            ({"space": Space({"batch": Among((12.0, 61.0))})}, "batch must be at most the 60 rows"),
            ({"space": Space({"averaging": Between(0.0, 1.0)})}, "averaging must be"),
            ({"space": Space({"lr_decay": Among(("warm",))})}, "lr_decay must be"),
            ({"space": Space({"clip": Between(-1.0, 1.0)})}, "clip must be > 0"),
            (
                {"space": Space({"clip": Between(0.1, 1.0)}, {"start": "nowhere"})},
                "start for toy must be one of",
            ),
        ],
    )
    def test_what_no_run_could_have_is_refused_before_the_first(self, changes: Any, words: str) -> None:
        with pytest.raises(InvalidValue, match=words):
            asked(**changes)


class TestSpace:
    def test_every_default_space_is_one_that_runs_can_have(self) -> None:
        for name in ("mnist", "fashion-mnist"):
            task = find_task(name)
            space = default_space(task)
            for corner in space.corners():
                search_room.check_settings(space.spec(name, 0.4, corner))

    def test_a_stride_is_how_far_a_clipped_step_moves(self) -> None:
        spec = Space({"clip": Between(0.1, 1)}, {"stride": 0.6, "momentum": 0.5}).spec("mnist", 1, {"clip": 0.2})
        assert spec.learning_rate * spec.clip / (1 - spec.momentum) == pytest.approx(0.6)

    def test_what_a_method_does_not_read_is_not_asked_for(self) -> None:
        drawn = [SPACE.draw(np.random.default_rng(seed)) for seed in range(50)]
        assert {values["method"] for values in drawn} == {"constant", "dynamic"}
        assert all(("rho_mu" in values) == (values["method"] == "dynamic") for values in drawn)

    def test_draws_are_as_declared(self) -> None:
        rng = np.random.default_rng(0)
        logs = np.log([Between(1.0, np.e**2, log=True).draw(rng) for _ in range(4000)])
        assert logs.mean() == pytest.approx(1.0, abs=0.03)
        assert np.var(logs) == pytest.approx(4 / 12, rel=0.06)
        several = [Among(("a", "b", "c", "d")).draw(rng) for _ in range(4000)]
        assert [several.count(letter) / 4000 for letter in "abcd"] == pytest.approx([0.25] * 4, abs=0.03)

    def test_the_start_of_a_search_is_the_task_itself(self) -> None:
        task = find_task("mnist")
        space = default_space(task)
        spec = space.spec("mnist", 0.4, starting_values(space, task))
        assert spec == base_spec("mnist", epsilon=0.4, accountant="pld", settings={"method": "constant"})

    def test_what_stands_for_a_setting_gives_way_to_it(self) -> None:
        space = default_space(find_task("mnist")).changed(
            {"learning_rate": Between(0.1, 1)}, {"steps": 300, "batch": 500.0}
        )
        assert not {"stride", "epochs", "steps", "batch"} & set(space.moving)
        assert (space.fixed["steps"], space.fixed["batch"]) == (300, 500.0)
        assert space.changed({}, {"epochs": 2.0}).fixed == {"batch": 500.0, "epochs": 2.0}

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("clip=0.5..2", ("clip", Between(0.5, 2))),
            ("stride=0.5..2:log", ("stride", Between(0.5, 2, log=True))),
            ("batch=250,500", ("batch", Among((250.0, 500.0)))),
            ("steps=100,200", ("steps", Among((100, 200)))),
            ("method=constant", ("method", Among(("constant",)))),
        ],
    )
    def test_ranges_are_read_and_written(self, text: str, found: Any) -> None:
        assert parse_moving(text) == found
        assert parse_moving(f"{found[0]}={found[1]}") == found

    @pytest.mark.parametrize(
        ("act", "words"),
        [
            (lambda: parse_moving("clip"), "a setting must be like"),
            (lambda: parse_moving("seed=1,2"), "a setting must be one of"),
            (lambda: parse_moving("epsilon=1..2"), "a setting must be one of"),
            (lambda: parse_moving("clip=a..b"), "clip must be a number"),
            (lambda: parse_moving("steps=1..9"), "a range must be of a real setting"),
            (lambda: parse_moving("clip=1..2:exp"), "a range must be"),
            (lambda: parse_moving("clip=2..1"), "high must be > 2"),
            (lambda: parse_moving("clip=0..1:log"), "low must be > 0"),
            (lambda: parse_moving("clip=1,1"), "values must be"),
            (lambda: parse_fixed("steps=1.5"), "steps must be a whole number"),
            (lambda: parse_fixed("stand_in=mnist"), "a setting must be one of"),
            (lambda: Space({}), "a search must move at least one setting"),
            (lambda: Space({"clip": Between(1, 2)}, {"clip": 1.0}), "got both for clip"),
            (
                lambda: Space({"stride": Between(1, 2)}, {"learning_rate": 1.0}),
                "stride stands for learning_rate",
            ),
            (lambda: Space({"delta": Between(0.1, 0.2)}), "delta must be fixed"),
        ],
    )
    def test_wrong_spaces_are_refused(self, act: Any, words: str) -> None:
        with pytest.raises(InvalidValue, match=words):
            act()


@pytest.mark.usefixtures("toy")
class TestRecipe:
    def test_a_file_gives_the_recipe_back(self, tmp_path: Path) -> None:
        recipe = search(asked(seeds=2), tmp_path, here(tmp_path))
        save_recipe(tmp_path / "deep" / "recipe.json", recipe)
        assert load_recipe(tmp_path / "deep" / "recipe.json") == recipe

    @pytest.mark.parametrize("change", [{"score": 1.0}, {"version": 9}, {"format": "x"}])
    def test_an_edited_file_is_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        path = tmp_path / "recipe.json"
        save_recipe(path, search(asked(), tmp_path, here(tmp_path)))
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(FileRefused, match=r"recipe\.json must"):
            load_recipe(path)

    def test_an_archive_of_which_one_line_is_edited_is_refused(self, tmp_path: Path) -> None:
        recipe, archive = search(asked(), tmp_path, here(tmp_path)), tmp_path / "both.jsonl"
        for name in ("two", "one"):
            save_recipe(tmp_path / f"{name}.json", recipe)
        lines = [(tmp_path / f"{name}.json").read_text() for name in ("two", "one")]
        archive.write_text("".join(lines))
        assert list(load_recipes(archive).items()) == [("two", recipe), ("one", recipe)]
        archive.write_text(lines[0] + lines[1].replace('"one"', '"three"'))
        with pytest.raises(FileRefused, match=r"both\.jsonl, line 2 must match its own checksum"):
            load_recipes(archive)
        assert load_recipes(tmp_path / "none") == {}
