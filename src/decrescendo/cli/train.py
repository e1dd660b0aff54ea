"""The command that trains a task."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import err, one_line_errors, print_json, say
from decrescendo.cli.options import (
    RHO_C,
    RHO_MU,
    AsJson,
    Batch,
    Clip,
    Decay,
    Delta,
    Epochs,
    Epsilon,
    OptimizerName,
    RhoC,
    RhoMu,
    ScheduleName,
    Steps,
    TaskName,
)
from decrescendo.cli.plans import agreed_plan, guarantee_facts, plan_facts
from decrescendo.errors import InvalidValue
from decrescendo.rng import Secure


@one_line_errors
def train_command(
    task: Annotated[TaskName, typer.Argument(help="What to train on.")],
    plan: Annotated[Path | None, typer.Option(help="A plan file; instead of the budget options.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    batch: Batch = None,
    steps: Steps = None,
    epochs: Epochs = None,
    schedule: ScheduleName = None,
    clip: Clip = None,
    rho_mu: RhoMu = RHO_MU,
    rho_c: RhoC = RHO_C,
    optimizer: Annotated[OptimizerName | None, typer.Option(help="Optimiser. Default: the task's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: the task's.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum in [0, 1), for sgd and momentum-bc.")] = 0.0,
    lr_decay: Annotated[Decay, typer.Option(help="Learning rate constant or falling to zero.")] = Decay.NONE,
    seed: Annotated[
        int | None,
        typer.Option(
            help="For repeatable experiments; as sensitive as the data. Default: noise that nobody can predict."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="New folder for the run.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Ledger of the data set, from `decrescendo ledger --create`.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder to keep the run in; as sensitive as the data.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --checkpoints.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Train a task privately.

    Settings not given are those of the paper (for digits: chosen here).

    Example: decrescendo train mnist --epsilon 1.2 --schedule dynamic --out runs/mnist
    """
    import torch

    from decrescendo.experiments.tasks import find_task, train_task
    from decrescendo.run import check_free
    from decrescendo.store import Store

    chosen = find_task(task.value)
    if folder is not None:
        check_free(folder)  # before the training, not after it
    agreed = agreed_plan(
        chosen, plan, epsilon, delta, batch, steps, epochs, schedule, clip, rho_mu=rho_mu, rho_c=rho_c
    )
    if resume and checkpoints is None:
        raise InvalidValue("--resume must be given --checkpoints, the folder of the run, got none")
    if threads is not None:
        torch.set_num_threads(threads)
    if not as_json:
        say(agreed.describe())
    if seed is not None:
        err.print(
            f"seed {seed}: whoever knows it knows the noise. For weights that leave the house give none"
        )
    with nullcontext() if store is None else closing(Store(store)) as opened:
        run = train_task(
            chosen,
            agreed,
            seed=Secure() if seed is None else seed,
            optimizer=None if optimizer is None else optimizer.value,
            learning_rate=lr,
            momentum=momentum,
            lr_decay=lr_decay.value,
            store=opened,
            checkpoints=checkpoints,
            resume=resume,
            progress=not as_json,
        )
        left = None if opened is None else f"{opened.dataset}: {opened.describe()}"
    if folder is not None:
        run.save(folder)
    if as_json:
        facts = plan_facts(agreed) | {"steps_taken": run.steps, "guarantee": guarantee_facts(run.guarantee)}
        print_json({**facts, "metrics": dict(run.metrics), "seconds": run.seconds, "saved": folder})
        return
    nonfinite = sum(run.diagnostics.nonfinite) if run.diagnostics is not None else 0
    if nonfinite:
        err.print(f"[yellow]warning:[/yellow] {nonfinite} gradients were not finite and counted as zero")
    say(run.describe())
    if left is not None:
        say(left)
    if folder is not None:
        say(
            f"written: {folder}, with a privacy statement. To add what only you know: decrescendo statement --help"
        )
