"""The command that searches for settings: on public data, or on private data at a price."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decrescendo.cli import options
from decrescendo.cli.app import check_out, err, one_line_errors, say
from decrescendo.cli.asked import judge_of
from decrescendo.errors import InvalidValue

if TYPE_CHECKING:
    from decrescendo.clipping import Telemetry
    from decrescendo.training import Space, Task


@one_line_errors
def tune_command(
    task: options.TaskName,
    epsilon: options.EpsilonNeeded,
    out: options.Found,
    on: Annotated[str, typer.Option(help="Public data to search on, a task too; no trial sees those of TASK.")] = "",
    private: Annotated[bool, typer.Option("--private", help="Search on the task's own data, and pay for it.")] = False,
    delta: options.Delta = None,
    trials: options.TrialsOf = "",
    vary: options.Vary = None,
    fix: options.Fix = None,
    only: Annotated[
        bool,
        typer.Option("--only", help="Search what --vary names and nothing else: the rest is the task's own."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Public: runs a trial; their mean counts. Default 1.", min=1)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Public: of the settings that are drawn, default 0. Private: as sensitive as the data; default: drawn "
            "from the operating system, and not shown."
        ),
    ] = None,
    rank_by: Annotated[
        str,
        typer.Option(
            "--rank-by",
            help="Private: accuracy or loss. Rank trials by what their last 20 steps release of it, not by a score "
            "on public data.",
        ),
    ] = "",
    largest_loss: options.LargestLoss = None,
    accountant: options.Accountant = None,
    examples_per_person: options.ExamplesPerPerson = None,
    store: options.StoreFile = None,
    threads: options.Threads = None,
) -> None:
    """Search for settings, on public data or with a guarantee for the whole search.

    On public data (--on) the search costs no privacy; pass the result to decrescendo train with --recipe. On private
    data (--private) the number of trials is random and secret, and the guarantee covers the whole search.

    The search varies schedule, batch, epochs, clip, stride (learning rate x clip / (1 - momentum): the length of a step
    whose gradients are all clipped), lr_decay, averaging (decay of an average of the weights, 0 for none), momentum,
    rho_mu and rho_c. --vary adds a setting or changes a range, --fix fixes one, --only varies only what --vary names.

    Example: decrescendo tune my_project:task --epsilon 0.4 --on my_project:public --trials 40 --out recipe.json
    """
    import torch

    from decrescendo.training import find_task

    if private == bool(on):
        got = "both" if private else "neither"
        raise InvalidValue(
            f"tune must be given either --on (public data, free) or --private (the task's own, at a price), got {got}"
        )
    if on == task:
        raise InvalidValue(
            f"--on must name public data, got the task itself, {on}: its rows would be searched as if that were free. "
            "--private searches them at a price"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    chosen, told = find_task(task), _ranking(rank_by, largest_loss)
    if private:
        given = {"--seeds": seeds, "--accountant": accountant, "--examples-per-person": examples_per_person}
        if surplus := [name for name, value in given.items() if value is not None]:
            raise InvalidValue(
                f"{', '.join(surplus)} must be left out with --private, got it: a trial has one seed, a secret one, "
                "and the search has an accountant of its own (Selection), for one example"
            )
        _privately(chosen, epsilon, delta, trials, vary or [], fix or [], only, told, seed, out, store)
        return
    if told:
        raise InvalidValue("--rank-by must be left out with --on, got it: the public task has a score")
    if store is not None:
        raise InvalidValue("--store must be left out with --on, got it: a search on public data costs nothing")
    from decrescendo.accounting import Budget
    from decrescendo.cli.asked import whom
    from decrescendo.training import default_space, tune
    from decrescendo.training.search.recipe import Trial

    check_out(out)

    def tell(trial: Trial) -> None:
        score = "no score" if trial.score is None else f"{trial.score:.4f}"
        words = f"{score}  {dict(trial.values)} {trial.why}"
        err.print(words, soft_wrap=True, highlight=False, markup=False)

    budget = Budget(
        epsilon,
        chosen.delta if delta is None else delta,
        *whom(options.UnitName.EXAMPLE, examples_per_person),
    )
    found = tune(
        chosen, find_task(on), budget,
        _changed(default_space(chosen), vary or [], fix or [], only), trials=_number(trials), on=on,
        seeds=1 if seeds is None else seeds, seed=0 if seed is None else seed, accountant=judge_of(accountant),
        tell=tell,
    )  # fmt: skip
    found.save(out)
    say(found.describe())
    say(f"written: {out}. To train by it: decrescendo train {task} --recipe {out}")


def _ranking(rank_by: str, largest_loss: float | None) -> "Telemetry | None":
    """What trials of a private search are ranked by; ``None`` for a score."""
    from decrescendo.clipping import Telemetry

    if largest_loss is not None and rank_by != "loss":
        raise InvalidValue(f"--largest-loss must come with --rank-by loss, got --largest-loss {largest_loss:g}")
    if rank_by not in ("", "accuracy", "loss"):
        raise InvalidValue(f"--rank-by must be accuracy or loss, got {rank_by!r}")
    if not rank_by:
        return None
    return Telemetry(
        norms=0, loss=rank_by == "loss", accuracy=rank_by == "accuracy",
        loss_range=(0.0, 10.0 if largest_loss is None else largest_loss),
    )  # fmt: skip


def _privately(
    task: "Task",
    epsilon: float,
    delta: float | None,
    trials: str,
    vary: list[str],
    fix: list[str],
    only: bool,
    told: "Telemetry | None",
    seed: int | None,
    out: Path,
    store: Path | None,
) -> None:
    from decrescendo.base import Secure
    from decrescendo.training import (
        PrivateSearch,
        Store,
        free_space,
        parse_trials,
        save_winner,
        search_privately,
    )
    from decrescendo.training.search.winner import check_fresh

    if not trials:
        raise InvalidValue("--trials must be given with --private, like geometric:10, got none")
    if told is not None:
        fix = ["averaging=0", *fix]  # what is released is of the weights of each step
    check_fresh(out)
    asked = PrivateSearch(
        task=task, epsilon=epsilon, delta=delta, space=_changed(free_space(task), vary, fix, only),
        trials=parse_trials(trials), telemetry=told,
    )  # fmt: skip

    def announce(text: str) -> None:
        words = f"{text}\nsearching; nothing is shown before the end"
        err.print(words, soft_wrap=True, highlight=False, markup=False)

    with nullcontext() if store is None else closing(Store(store)) as opened:
        winner = search_privately(asked, Secure() if seed is None else seed, announce=announce, store=opened)
        left = None if opened is None else f"{opened.dataset}: {opened.describe()}"
    weights = save_winner(out, winner)
    say(winner.describe())
    if left is not None:
        say(left)
    say(f"written: {out}" + ("" if weights is None else f", {weights}"))


def _changed(space: "Space", vary: list[str], fix: list[str], only: bool) -> "Space":
    from decrescendo.training import Space, parse_fixed, parse_moving

    moving, fixed = dict(map(parse_moving, vary)), dict(map(parse_fixed, fix))
    if only and not moving:
        raise InvalidValue("--only must be given with --vary, got none: there would be nothing to search")
    if only:
        space = Space(moving, {name: value for name, value in space.fixed.items() if name not in moving})
        return space.changed({}, fixed)
    return space.changed(moving, fixed)


def _number(trials: str) -> int:
    try:
        return int(trials)
    except ValueError:
        raise InvalidValue(
            f"--trials must be a number on public data, got {trials!r}. A random number is for --private"
        ) from None
