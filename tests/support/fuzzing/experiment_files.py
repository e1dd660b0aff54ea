"""Results, recipes, cost curves and measured influences."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments import costs, measured_seeds, recipes, results
from decrescendo_papers.experiments.costs import Costs
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.recipes import Recipe, Trial, load_recipe, save_recipe
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec
from fuzzing.mutations import resigned
from fuzzing.target import Files, Target

FILE = "file.json"
SPEC = Spec(
    task="mnist", method="dynamic", accountant="pld", epsilon=0.4, delta=1e-6, steps=4800, batch=250, seed=0, clip=1.5,
    rho_mu=1.25, rho_c=3.3, learning_rate=0.15,
)  # fmt: skip


def _text(format_name: str, version: int, facts: dict[str, Any]) -> Files:
    content = {"format": format_name, "version": version, **facts}
    return {FILE: json.dumps({**content, "sha256": kept.digest(content)}, indent=1).encode()}


def _sign(files: Files) -> Files:
    return {name: resigned(content, kept.digest) for name, content in files.items()}


@cache
def _results() -> list[Files]:
    made = Result(
        SPEC, {"test_accuracy": 0.9}, 0.4, (0.39, 0.4), 0.2, (2.0, 1.0), (1.5, 0.5), {"length": [1.0, 2.0]}, 3.5,
        {"device": "cpu"},
    )  # fmt: skip
    refused = Result(SPEC, refused="no noise meets it")
    return [{FILE: results.line_of(r).encode()} for r in (made, refused)]


def _read_result(folder: Path) -> Result:
    found, wrong = results.read_all(folder / FILE)
    if wrong or len(found) != 1:
        raise FileRefused("; ".join(wrong) or "no result, or several")
    (read,) = found
    Archive([read]).of(read.spec)
    read.spec.name.encode()
    return read


def _result_again(value: Result, folder: Path) -> Result:
    return results.read_line(results.line_of(value), folder / FILE)


@cache
def _recipes() -> list[Files]:
    trials = (
        Trial(0, {"clip": 0.1, "steps": 10, "method": "constant"}, (0.5, 0.6), 2.0),
        Trial(1, {}, (), 0.0, "refused"),
    )
    recipe = Recipe(
        SPEC,
        "fashion-mnist",
        "images",
        0.55,
        trials,
        {"clip": "0.1..2"},
        4.5,
        "decrescendo tune",
        {"name": "TPE"},
        {"device": "cpu"},
    )
    return [_text(recipes.FORMAT, recipes.VERSION, {**asdict(recipe), "spec": SPEC.settings()})]


def _read_recipe(folder: Path) -> Recipe:
    read = load_recipe(folder / FILE)
    read.describe().encode()
    return read


def _recipe_again(value: Recipe, folder: Path) -> Recipe:
    save_recipe(folder / FILE, value)
    return load_recipe(folder / FILE)


def _read_costs(folder: Path) -> Costs:
    found = costs.find(folder, SPEC, 2)
    if found is None:
        raise FileRefused("no costs that can be used")
    return found


COSTS = costs.path_of(Path()).name
IDENTITY = {"spec": SPEC.settings(), "low": 0.5, "high": 2.0, "at": [1, 5, 9]}


@cache
def _costs() -> list[Files]:
    facts = {
        "spec": SPEC.settings(),
        "points": 2,
        **asdict(Costs([1, 2], [0.1, 0.2], [0.1, 0.2], [0.2, 0.3], [0.5, 0.6])),
    }
    content = {"format": costs.FORMAT, "version": costs.VERSION, **facts}
    return [{COSTS: kept.seal(content).encode()}]


@cache
def _influences() -> list[Files]:
    rows = [{"seed": seed, "base": 0.5, "slopes": [0.1, 0.2, 0.3], "seconds": 2.0, "machine": {}} for seed in (0, 1)]
    content = {"format": measured_seeds.FORMAT, "version": measured_seeds.VERSION, **IDENTITY, "seeds": rows}
    return [{FILE: kept.seal(content).encode()}]


def _read_influence(folder: Path) -> Any:
    found = measured_seeds.read_seeds(folder / FILE, IDENTITY)
    if not found:
        raise FileRefused("no seeds that can be used")
    return found


def _influence_again(value: Any, folder: Path) -> Any:
    for measured in value.values():
        measured_seeds.add_seed(folder / FILE, IDENTITY, measured, {})
    return measured_seeds.read_seeds(folder / FILE, IDENTITY)


EXPERIMENTS = (
    Target("result", _results, _read_result, _result_again, _sign),
    Target("recipe", _recipes, _read_recipe, _recipe_again, _sign),
    Target("costs", _costs, _read_costs, None, _sign),
    Target("influence", _influences, _read_influence, _influence_again, _sign),
)
