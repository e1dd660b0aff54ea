"""The command that searches for settings on public data; on private data: `decrescendo tune --private`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from decrescendo.cli import err, one_line_errors, say
from decrescendo.cli.options import Fix, Found, TrialsOf, Vary
from decrescendo.errors import InvalidValue
from decrescendo_papers.cli.options import AccountantName, Device, PaperTask

RESULTS, TOGETHER = Path("results/search/runs"), 4


@one_line_errors
def search_command(
    task: PaperTask,
    epsilon: Annotated[float, typer.Option(help="Of one run, by --accountant.")],
    out: Found,
    on: Annotated[str, typer.Option(help="Public data to search on; the task's own are not opened.")] = "",
    trials: TrialsOf = "",
    accountant: Annotated[
        AccountantName, typer.Option(help="pld certifies; by the others, claimed.")
    ] = AccountantName.PLD,
    vary: Vary = None,
    fix: Fix = None,
    seeds: Annotated[int, typer.Option(help="Public: runs a trial; their mean counts.", min=1)] = 1,
    fresh_seeds: Annotated[
        bool, typer.Option("--fresh-seeds", help="Public: a trial's seeds are its own, not everybody's.")
    ] = False,
    together: Annotated[
        int, typer.Option(help="Public: trials asked for at once; part of what the search is.", min=1)
    ] = TOGETHER,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Public: of the optimiser, default 0. Private: as sensitive as the data; default: drawn from the "
            "operating system, and not shown.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Public: processes, one thread each.", min=1)] = 1,
    device: Device = "auto",
    results: Annotated[Path, typer.Option(help="Public: folder of finished trials.")] = RESULTS,
) -> None:
    """Search for settings on public data.

    The search is free, and goes on where it was interrupted. For a search on the private data themselves see
    decrescendo tune --private.

    Example: papers search mnist --epsilon 0.4 --on fashion-mnist --trials 40 --jobs 2 --out mnist-0.4.json
    """
    given = [*(("--vary", text) for text in vary or ()), *(("--fix", text) for text in fix or ())]
    from decrescendo_papers.experiments.execute import execute
    from decrescendo_papers.experiments.recipes import save_recipe
    from decrescendo_papers.experiments.search import Search, search
    from decrescendo_papers.experiments.space import default_space
    from decrescendo_papers.experiments.tasks import find_task

    asked = Search(
        task=task.value, epsilon=epsilon, stand_in=on, space=_changed(default_space(find_task(task.value)), given),
        trials=_number(trials), seeds=seeds, common_seeds=not fresh_seeds, together=together, sampler_seed=seed or 0,
        accountant=accountant.value,
    )  # fmt: skip
    words = ["papers", "search", task.value, "--epsilon", f"{epsilon:g}", "--on", on, "--trials", trials]
    words += ["--accountant", accountant.value] * (accountant is not AccountantName.PLD)
    words += [word for pair in given for word in pair]
    words += ["--seeds", str(seeds)] * (seeds != 1) + ["--fresh-seeds"] * fresh_seeds
    words += ["--together", str(together)] * (together != TOGETHER) + ["--seed", str(seed)] * bool(seed)
    found = search(
        asked, results, lambda specs: execute(specs, results, jobs=jobs, device=device, console=err),
        command=shlex.join(words), console=err,
    )  # fmt: skip
    save_recipe(out, found)
    say(found.describe())
    say(f"written: {out}")


def _changed(space: Any, given: list[tuple[str, str]]) -> Any:
    from decrescendo_papers.experiments.space import parse_fixed, parse_moving

    moving = dict(parse_moving(text) for option, text in given if option == "--vary")
    return space.changed(moving, dict(parse_fixed(text) for option, text in given if option == "--fix"))


def _number(trials: str) -> int:
    try:
        return int(trials)
    except ValueError:
        raise InvalidValue(f"--trials must be a number, got {trials!r}") from None
