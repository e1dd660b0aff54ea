"""The page of the recipes chosen after looking: how far each got, and what its search cost."""

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.alike import above, first_of_most
from decrescendo_papers.experiments.comparisons import ENOUGH
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.pages.settings import machines_table
from decrescendo_papers.experiments.recipes import Recipe
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.strong import FIRST_SEED, TARGETS, Strong, paper_of

MODELS = {"paper": "the paper's", "tanh": "tanh for ReLU"}


def recipes_page(strong: Strong, archive: Archive) -> str:
    """The whole page."""
    runs = {name: _fresh(archive, recipe) for name, recipe in strong.recipes.items()}
    scores = {name: score_of(found) for name, found in runs.items()}
    results = [result for found in runs.values() for result in found.values()]
    parts = [
        "# Recipes chosen after looking",
        "An archive: which searches and rows there are was decided after earlier rows' test scores had been seen. "
        "Those that were written down before their first run have [a page of their own](registered.md).",
        "The same models at the same certified epsilon, with settings that a search on public data found. Test "
        "accuracy in %, mean ± sample standard deviation over fresh seeds (none that the search used), beside the best "
        "number of the paper at the same epsilon (which the paper only claims) and the target set before the search. "
        "Written by `papers report` from `results/recipes.jsonl` and `results/runs`.",
        _progress(strong, scores),
        _overview(strong, scores),
        _starts(runs),
        "## What was found, and where it was looked for",
        "The private data were opened by no search: it saw the named public data, with the noise that the private data "
        "would need. What moved, within what limits, and every trial with its score is in the recipe's file. A row "
        "whose name says *-from-* has the settings that were found for a random start: nothing was searched for it. "
        "*Which* searches and starts were tried was decided by people who had "
        "seen the scores of earlier rows on the test data, and a target counts as reached if any of its rows reached "
        "it: with several rows a target, the best is a little flattered. All rows are shown.",
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
    """How many targets were reached, for the index."""
    scores = {name: score_of(_fresh(archive, recipe)) for name, recipe in strong.recipes.items()}
    counts = [f"{kind} {len(names)}" for kind, names in _standings(strong, scores).items() if names]
    return f"Of {len(TARGETS)} targets: {', '.join(counts)}."


def _progress(strong: Strong, scores: dict[str, Score]) -> str:
    """Which targets were reached, which only from pre-trained weights, which were not (by how much, or for want of a
    recipe), and which have no answer yet."""
    found = _standings(strong, scores)
    lines = [f"- {kind} ({len(names)}): {', '.join(names)}" for kind, names in found.items() if names]
    return "\n".join((f"Of {len(TARGETS)} targets:", "", *lines))


def _standings(strong: Strong, scores: dict[str, Score]) -> dict[str, list[str]]:
    """Targets by what came of them."""
    found: dict[str, list[str]] = {
        "reached": [], "reached from weights pre-trained on public data only": [], "not reached": [], "no run yet": [],
    }  # fmt: skip
    for (task, epsilon, model), target in TARGETS.items():
        kind, words = _standing(task, epsilon, model, target, strong, scores)
        found[kind].append(words)
    return found


def _standing(
    task: str, epsilon: float, model: str, target: float, strong: Strong, scores: dict[str, Score]
) -> tuple[str, str]:
    """What came of one target, and which recipe says so."""
    known = {
        name: recipe.spec.start
        for name, recipe in strong.recipes.items()
        if (plain_task(recipe.spec.task), recipe.spec.epsilon, recipe.spec.model) == (task, epsilon, model)
    }
    run = {name: start for name, start in known.items() if scores[name].seeds >= ENOUGH}
    if not known:
        return "not reached", f"{task}-{epsilon:g}-{model} (no recipe)"
    if not run:
        few = any(scores[name].seeds for name in known)
        return "no run yet", f"{task}-{epsilon:g}-{model}" + f" (fewer than {ENOUGH} seeds)" * few
    # A fresh start first: it needs no public data but for its settings.
    for name, start in sorted(run.items(), key=lambda item: bool(item[1])):
        if not above(target, scores[name].mean):
            return "reached from weights pre-trained on public data only" if start else "reached", name
    best = first_of_most(run, lambda name: scores[name].mean)
    return "not reached", f"{best} ({scores[best].mean - target:+.2f})"


def _overview(strong: Strong, scores: dict[str, Score]) -> str:
    rows: list[list[str]] = []
    for name, recipe in strong.recipes.items():
        spec, score = recipe.spec, scores[name]
        task = plain_task(spec.task)
        target, paper = TARGETS.get((task, spec.epsilon, spec.model)), paper_of(task, spec.epsilon)
        rows.append(
            [
                name, spec.task, f"{spec.epsilon:g}", MODELS[spec.model] + (", pre-trained" if spec.start else ""),
                score.shown, str(score.seeds) if score.seeds else "-", score.bracket, _number(paper), _number(target),
                "-" if target is None or not score.seeds else f"{score.mean - target:+.2f}",
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
        "target",
    ]
    return table([*header, "ours - target"], rows, "llrlrrrrrr")


def _starts(runs: dict[str, dict[int, Result]]) -> str:
    """What the pre-trained weights score by themselves."""
    rows: list[list[str]] = []
    for name, found in runs.items():
        before = {
            seed: 100 * run.metrics["start_accuracy"]
            for seed, run in found.items()
            if "start_accuracy" in run.metrics
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
    header = ["recipe", "searched on", "score there", "trials", "failed", "core-minutes", "moved"]
    return table(header, rows, "llrrrrl")


def _moved(recipe: Recipe) -> str:
    return "; ".join(f"{name} {limits}" for name, limits in recipe.space.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
