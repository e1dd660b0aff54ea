"""Recipes chosen after looking: the same models at the same certified epsilon, with settings found on public data."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.recipes import Recipe, load_recipes
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, Column, fits
from decrescendo_papers.experiments.table1 import TABLE1
from decrescendo_papers.experiments.table2 import TABLE2
from decrescendo_papers.experiments.table3 import TABLE3

FILE = Path("results/recipes.jsonl")

# Seeds that no search has used.
FIRST_SEED = 100

# By task and model. Where no stand-in is left to search on, as all its public data are needed for the start: what was
# found for a random start is run from pre-trained weights too, as a row of its own. Decided after the runs from random
# starts had been seen, and before any such run.
STARTS = {("fashion-mnist", "paper"): "mnist"}


def paper_of(task: str, epsilon: float) -> float | None:
    """The best number that the paper has at this epsilon, in %."""
    for table in (TABLE1, TABLE2, TABLE3):
        column = Column(task, epsilon)
        if column in table.columns:
            numbers = [table.reported(row, column) for row in table.rows]
            return max((number for number in numbers if number is not None), default=None)
    return None


@dataclass(frozen=True, slots=True)
class Strong:
    """All recipes of a file, as ``reproduce recipes`` runs them.

    Args:
        recipes: by name.
        seeds: of some of them, by name, where they are not `FIRST_SEED` and as many after it as are asked for.
    """

    recipes: dict[str, Recipe]
    seeds: Mapping[str, range] = field(default_factory=dict[str, range])

    @property
    def key(self) -> str:
        """As ``reproduce`` names it."""
        return "recipes"

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """Every recipe on its task's own data, one fresh seed after the other; certified only.

        Args:
            seeds: 0 is the first seed that no search has used, `FIRST_SEED` or the recipe's own; those beyond a
                recipe's own seeds are left out.
            blocks: see `experiments.table.Table.specs`.
            only: patterns ``task/epsilon/name``.

        Raises:
            InvalidValue: a pattern that fits no recipe.
        """
        keys = {name: f"{recipe.spec.task}/{recipe.spec.epsilon:g}/{name}" for name, recipe in self.recipes.items()}
        for pattern in only:
            if not any(fits(key, pattern) for key in keys.values()):
                raise InvalidValue(
                    f"cells must be of a recipe, like {next(iter(keys.values()), 'none')}, got {pattern!r}"
                )
        if CERTIFIED not in blocks:
            return []
        chosen = [
            (recipe.spec, self.seeds.get(name, range(FIRST_SEED, sys.maxsize)))
            for name, recipe in self.recipes.items()
            if not only or any(fits(keys[name], pattern) for pattern in only)
        ]
        return [spec.seeded(own[seed]) for seed in seeds for spec, own in chosen if seed < len(own)]


def read_recipes(path: Path = FILE) -> Strong:
    """The recipes in a file, none if there is no such file; those in `STARTS` also from pre-trained weights.

    Raises:
        FileRefused: one is damaged.
    """
    found: dict[str, Recipe] = {}
    for name, recipe in load_recipes(path).items():
        found[name] = recipe
        start = STARTS.get((recipe.spec.task, recipe.spec.model))
        if start and not recipe.spec.start:
            found[f"{name}-from-{start}"] = replace(recipe, spec=replace(recipe.spec, start=start))
    return Strong(found)
