"""The command that trains."""

import dataclasses
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decrescendo.cli import options
from decrescendo.cli.app import err, one_line_errors, print_json, say, working
from decrescendo.cli.asked import Asked, agreed_plan, judge_of, strata_of
from decrescendo.cli.facts import plan_facts
from decrescendo.errors import InvalidValue

if TYPE_CHECKING:
    from decrescendo.clipping import EngineSettings, Telemetry
    from decrescendo.plans.plan import Plan
    from decrescendo.training import Recipe, Run, Settings


@one_line_errors
def train_command(
    task: options.TaskName,
    plan: options.PlanFile = None,
    recipe: Annotated[
        Path | None, typer.Option(help="What `decrescendo tune --on` found: its settings and its budget.")
    ] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    batch: options.Batch = None,
    batch_end: options.BatchEnd = None,
    max_batch_size: options.MaxBatchSize = None,
    random_allocation: options.RandomAllocation = None,
    stratum: options.Strata = None,
    examples_per_person: options.ExamplesPerPerson = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    schedule: options.ScheduleName = None,
    clip: options.Clip = None,
    clip_quantile: Annotated[
        float | None,
        typer.Option(
            help="The clip norm follows this quantile of gradient norms, from --clip on, at no further price. Then "
            "--schedule is growing-mu unless it is given: one of noise alone."
        ),
    ] = None,
    telemetry: Annotated[
        str | None,
        typer.Option(
            help="What to release of each batch beside its gradients, for anybody to see: norms, loss, accuracy, "
            "separated by commas. Norms cost nothing, the others half a percent of the clip norm."
        ),
    ] = None,
    largest_loss: options.LargestLoss = None,
    rho_mu: options.RhoMu = None,
    rho_c: options.RhoC = None,
    accountant: options.Accountant = None,
    optimizer: options.OptimizerOption = None,
    lr: options.Rate = None,
    momentum: options.MomentumOf = None,
    lr_decay: options.LrDecay = None,
    seed: options.Seed = None,
    folder: Annotated[Path | None, typer.Option("--out", help="New folder for the run.")] = None,
    store: options.StoreFile = None,
    name: options.RunName = "",
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder to keep the run in; as sensitive as the data.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --checkpoints.")] = False,
    threads: options.Threads = None,
    capture: options.Capture = None,
    memory: options.Memory = None,
    microbatch_size: options.MicrobatchSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a task privately.

    A task is your function, module:function, that returns a decrescendo.training.Task or (model, loss,
    data). Settings that you do not pass come from the task.

    Example: decrescendo train my_project:patients --epsilon 1.2 --schedule dynamic --out runs/patients
    """
    import torch

    from decrescendo.base import Secure
    from decrescendo.training import Store, find_task, train_task
    from decrescendo.training.run import check_free
    from decrescendo.training.steering import ClipController

    chosen = find_task(task)
    if folder is not None:
        check_free(folder)  # before the training, not after it
    sizes = {"batch": batch, "batch_end": batch_end, "max_batch_size": max_batch_size}
    strata = strata_of(stratum, **sizes, random_allocation=random_allocation) if stratum else None
    asked = Asked(
        epsilon=epsilon, delta=delta, batch=batch, batch_end=batch_end, max_batch_size=max_batch_size,
        random_allocation=random_allocation, stratum=strata, steps=steps, epochs=epochs,
        schedule=schedule, clip=clip, rho_mu=rho_mu, rho_c=rho_c, accountant=accountant,
        examples_per_person=examples_per_person,
    )  # fmt: skip
    if clip_quantile is not None and plan is None and recipe is None and schedule is None:
        asked = dataclasses.replace(asked, schedule=options.Schedule.GROWING_MU)
    found = None if recipe is None else _recipe(recipe, plan, asked, optimizer, lr, momentum, lr_decay)
    if found is None:
        agreed = agreed_plan(chosen, plan, asked)
    else:
        with working("calibrating"):
            agreed = found.plan(chosen, judge_of(accountant))
    _check_together(name, store, resume, checkpoints)
    told = _telemetry(telemetry, largest_loss)
    followed = agreed if clip_quantile is None else ClipController(agreed, "quantile", target=clip_quantile)
    if threads is not None:
        torch.set_num_threads(threads)
    if not as_json:
        _announce(agreed, clip_quantile, kept=folder is not None or checkpoints is not None)
    if seed is not None:
        err.print(f"seed {seed}: whoever knows it knows the noise. For weights that are published give none")
    with nullcontext() if store is None else closing(Store(store)) as opened:
        run = train_task(
            chosen, followed, seed=Secure() if seed is None else seed,
            **(
                _given(optimizer=optimizer, learning_rate=lr, momentum=momentum, lr_decay=lr_decay)
                if found is None
                else _said(found.settings)
            ),
            settings=_engine(chosen.engine, capture, memory, microbatch_size), store=opened, name=name,
            checkpoints=checkpoints, resume=resume, progress=not as_json, telemetry=told,
        )  # fmt: skip
        left = None if opened is None else f"{opened.dataset}: {opened.describe()}"
    if folder is not None:
        folder = run.save(folder)
    if as_json:
        print_json(_facts(agreed, run) | {"saved": folder})
    else:
        _say_end(run, left, folder)


def _check_together(name: str, store: Path | None, resume: bool, checkpoints: Path | None) -> None:
    """Refuse options that mean nothing without another one."""
    if name and store is None:
        raise InvalidValue(f"--name must be given with --store, which lists runs by it, got --name={name}")
    if resume and checkpoints is None:
        raise InvalidValue("--resume must be given --checkpoints, the folder of the run, got none")


def _telemetry(asked: str | None, largest_loss: float | None) -> "Telemetry | None":
    from decrescendo.clipping import Telemetry

    names = {name.strip() for name in asked.split(",")} if asked is not None else set[str]()
    if largest_loss is not None and "loss" not in names:
        raise InvalidValue(f"--largest-loss must come with --telemetry loss, got --largest-loss {largest_loss:g}")
    if asked is None:
        return None
    if odd := names - {"norms", "loss", "accuracy"}:
        raise InvalidValue(f"--telemetry must name norms, loss or accuracy, got {', '.join(sorted(odd))}")
    return Telemetry(
        norms=10 if "norms" in names else 0, loss="loss" in names, accuracy="accuracy" in names,
        loss_range=(0.0, 10.0 if largest_loss is None else largest_loss),
    )  # fmt: skip


def _announce(agreed: "Plan", clip_quantile: float | None, *, kept: bool) -> None:
    """What is going to happen."""
    say(agreed.describe())
    if clip_quantile is not None:
        say(f"C_t follows the {clip_quantile:g} quantile of gradient norms, from there on")
    if not kept:
        err.print("nothing will be kept of this training: --out FOLDER writes weights and privacy statement")


def _facts(agreed: "Plan", run: "Run") -> dict[str, Any]:
    """A plan and the run that followed it, for JSON."""
    from decrescendo.accounting.budget import guarantee_facts
    from decrescendo.base.assumption import assumption_facts

    facts = plan_facts(agreed) | {"steps_taken": run.steps, "guarantee": guarantee_facts(run.guarantee)}
    facts |= assumption_facts(run.assumptions)
    if run.telemetry:
        facts["telemetry"] = [
            {name: dataclasses.asdict(found) for name, found in one.shown().items()} for one in run.telemetry
        ]
    return {**facts, "metrics": dict(run.metrics), "seconds": run.seconds}


def _say_end(run: "Run", left: str | None, folder: Path | None) -> None:
    """What has happened; ``left``: what the store has left."""
    from decrescendo.training.loop.progress import curves

    say(run.describe())
    for text in curves(run.telemetry):
        say(f"{text}, released while training")
    if left is not None:
        say(left)
    if folder is not None:
        say(f"written: {folder}, with a privacy statement. To add what only you know: decrescendo statement --help")


def _recipe(
    path: Path,
    plan: Path | None,
    asked: Asked,
    optimizer: options.OptimizerName | None,
    lr: float | None,
    momentum: float | None,
    lr_decay: options.Decay | None,
) -> "Recipe":
    from decrescendo.training import Recipe

    rest = {
        "--plan": plan, "--optimizer": optimizer, "--lr": lr, "--momentum": momentum, "--lr-decay": lr_decay,
    }  # fmt: skip
    given = [name for name in asked.given() if name != "--accountant"]
    given += [name for name, value in rest.items() if value is not None]
    if given:
        raise InvalidValue(f"a recipe says it all, got --recipe and {', '.join(given)}. Give one or the other")
    return Recipe.load(path)


def _said(settings: "Settings") -> dict[str, Any]:
    names = ("optimizer", "learning_rate", "momentum", "lr_decay", "averaging")
    return {name: getattr(settings, name) for name in names}


def _engine(
    settings: "EngineSettings",
    capture: options.CaptureWhen | None,
    memory: options.MemoryUse | None,
    microbatch_size: int | None,
) -> "EngineSettings":
    """The task's settings of the engine, with the options that were given."""
    found = _given(
        capture=None if capture is None else capture.setting,
        memory=None if memory is None else memory.value,
        microbatch_size=microbatch_size,
    )
    return dataclasses.replace(settings, **found)


def _given(**given: Any) -> dict[str, Any]:
    """Of the options that were given: what is not is the task's, or the library's."""
    return {name: value for name, value in given.items() if value is not None}
