"""The page of the recipes chosen after looking: how far each got, and what its search cost."""

import math

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.comparisons import ENOUGH
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.pages.settings import machines_table
from decrescendo_papers.experiments.recipes import Recipe
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.strong import FIRST_SEED, Strong, paper_of

MODELS = {"paper": "the paper's", "tanh": "tanh for ReLU"}


def recipes_page(strong: Strong, archive: Archive) -> str:
    """The whole page."""
    runs = {name: _fresh(archive, recipe) for name, recipe in strong.recipes.items()}
    scores = {name: score_of(found) for name, found in runs.items()}
    results = [result for found in runs.values() for result in found.values()]
    parts = [
        "# Recipes chosen after looking",
        "An archive: which searches and rows to include was decided after the test scores of earlier rows had been "
        "seen. Those that were written down before their first run have [a page of their own](registered.md).",
        "The same models at the same certified epsilon, with settings that a search on public data found. Test "
        "accuracy in %, mean ± sample standard deviation over fresh seeds (none that the search used), beside the best "
        "number of the paper at the same epsilon (an epsilon that the paper claims by an estimate). "
        "Earlier versions of this page had targets of our own, of which 12 of 17 were missed: they were guesses, and "
        "are gone. Written by `papers report` from `results/recipes.jsonl` and `results/runs`.",
        _in_brief(strong, scores),
        _overview(strong, scores),
        _starts(runs),
        "## What was found, and where it was looked for",
        "No search opened the private data: each saw only the named public data, with the noise that the private data "
        "would need. What was searched, within what limits, and every trial with its score are in the recipe's file. "
        "A row whose name says *-from-* has the settings that were found for a random start: nothing was searched for "
        "it. *Which* searches and starts were tried was decided by people who had "
        "seen the scores of earlier rows on the test data: of several rows at one epsilon, the best is a little "
        "optimistic. All rows are shown.",
        _settings(strong),
        _searches(strong),
        "## Hardware and versions",
        machines_table(results),
        "## Command",
        "```sh\npapers reproduce recipes --seeds 5\npapers report\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fresh(archive: Archive, recipe: Recipe) -> dict[int, Result]:
    """The recipe's runs with seeds that no search has used."""
    return {seed: result for seed, result in archive.of(recipe.spec).items() if seed >= FIRST_SEED}


def recipes_in_brief(strong: Strong, archive: Archive) -> str:
    """How many recipes are above the paper's best number, for the index."""
    return _in_brief(strong, {name: score_of(_fresh(archive, recipe)) for name, recipe in strong.recipes.items()})


def _in_brief(strong: Strong, scores: dict[str, Score]) -> str:
    known = [(scores[name], _gap(recipe, scores[name])) for name, recipe in strong.recipes.items()]
    found = [(score, gap) for score, gap in known if gap is not None and score.seeds >= ENOUGH]
    clear = sum(gap > 2 * (score.deviation or 0.0) / math.sqrt(score.seeds) for score, gap in found)
    return (
        f"Of {len(found)} recipes with at least {ENOUGH} seeds, {sum(gap > 0 for _, gap in found)} have a mean above "
        f"the paper's best number, {clear} by more than two standard errors of their own."
    )


def _gap(recipe: Recipe, score: Score) -> float | None:
    """Mean accuracy minus the paper's best at the same epsilon; ``None`` where either is missing."""
    paper = paper_of(plain_task(recipe.spec.task), recipe.spec.epsilon)
    return None if paper is None or not score.seeds else round(score.mean - paper, 9) + 0.0


def _overview(strong: Strong, scores: dict[str, Score]) -> str:
    rows: list[list[str]] = []
    for name, recipe in strong.recipes.items():
        spec, score = recipe.spec, scores[name]
        paper, gap = paper_of(plain_task(spec.task), spec.epsilon), _gap(recipe, score)
        rows.append(
            [
                name, spec.task, f"{spec.epsilon:g}", MODELS[spec.model] + (", pre-trained" if spec.start else ""),
                score.shown, str(score.seeds) if score.seeds else "-", score.bracket,
                "-" if paper is None else f"{paper:.2f}", "-" if gap is None else f"{gap:+.2f}",
            ]
        )  # fmt: skip
    header = [
        "recipe",
        "data",
        "epsilon",
        "model",
        "accuracy",
        "seeds",
        "certified",
        "paper's best",
        "difference",
    ]
    return table(header, rows, "llrlrrrrr")


def _starts(runs: dict[str, dict[int, Result]]) -> str:
    """What the pre-trained weights score by themselves."""
    rows: list[list[str]] = []
    for name, found in runs.items():
        before = {
            seed: 100 * run.metrics["start_accuracy"] for seed, run in found.items() if "start_accuracy" in run.metrics
        }
        if before:
            start = next(iter(found.values())).spec.start
            rows.append([name, start, Score(before).shown, score_of(found).shown])
    if not rows:
        return ""
    words = (
        "Pre-trained weights are those after a few passes over the named public data, without privacy; none of the "
        "task's own data were opened for them. What they score on the test data before the first private step:"
    )
    return words + "\n\n" + table(["recipe", "start", "before", "after"], rows, "llrr")


def plain_task(task: str) -> str:
    """The task as the paper knows it.

    >>> plain_task("imdb-half"), plain_task("fashion-mnist")
    ('imdb', 'fashion-mnist')
    """
    return task.removesuffix("-half")


def _settings(strong: Strong) -> str:
    rows: list[list[str]] = []
    for name, recipe in strong.recipes.items():
        spec = recipe.spec
        moves = "" if spec.rho_mu == spec.rho_c == 1 else f" ({spec.rho_mu:.3g}, {spec.rho_c:.3g})"
        rate = f"{spec.optimizer} {spec.learning_rate:.3g}, {spec.lr_decay}"
        start = spec.start or "random"
        rows.append(
            [
                name, spec.method + moves, f"{spec.batch:g}", str(spec.steps), f"{spec.clip:.3g}", rate,
                f"{spec.momentum:.3g}", f"{spec.averaging:.4g}", start,
            ]
        )  # fmt: skip
    header = ["recipe", "schedule", "batch", "steps", "clip", "rate, decay", "momentum", "averaging", "start"]
    return table(header, rows, "llrrrlrrl")


def _searches(strong: Strong) -> str:
    rows = [
        [
            name, recipe.stand_in, f"{100 * recipe.score:.2f}", str(len(recipe.trials)), str(recipe.failed),
            f"{recipe.core_minutes:.0f}", _moved(recipe),
        ]
        for name, recipe in strong.recipes.items()
    ]  # fmt: skip
    header = ["recipe", "searched on", "score there", "trials", "failed", "core-minutes", "search space"]
    return table(header, rows, "llrrrrl")


def _moved(recipe: Recipe) -> str:
    return "; ".join(f"{name} {limits}" for name, limits in recipe.space.items())
