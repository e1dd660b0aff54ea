"""The command that attacks a training: a lower bound on epsilon beside the certified one."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decrescendo.cli import options
from decrescendo.cli.app import check_out, one_line_errors, print_json, say, working
from decrescendo.cli.asked import Asked, agreed_plan
from decrescendo.errors import InvalidValue

if TYPE_CHECKING:
    from decrescendo.audit import Attack, AuditResult
    from decrescendo.base.rng import Secure
    from decrescendo.plans.plan import Plan
    from decrescendo.training import Store, Task

FEATURES = 8


@one_line_errors
def audit_command(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="What is trained, module:function. Default: digits; with --plan made-up rows, as many as it says.",
        ),
    ] = None,
    plan: options.PlanFile = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    batch: options.Batch = None,
    batch_end: options.BatchEnd = None,
    max_batch_size: options.MaxBatchSize = None,
    examples_per_person: options.ExamplesPerPerson = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    schedule: options.ScheduleName = None,
    clip: options.Clip = None,
    rho_mu: options.RhoMu = None,
    rho_c: options.RhoC = None,
    accountant: options.Accountant = None,
    attack: Annotated[
        options.AttackName,
        typer.Option(
            help="canaries: one training, many canaries. The others: many small trainings with and without one "
            "record; but for one-canary at the plan's epsilon and delta, on data made for it."
        ),
    ] = options.AttackName.CANARIES,
    canaries: Annotated[
        int | None, typer.Option(help="How many rows become canaries, >= 20. Default: a third, at most 5000.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Trainings, for the attacks of many runs.", min=8)] = 200,
    confidence: Annotated[float, typer.Option(help="Of everything that is said, together.")] = 0.95,
    seed: options.Seed = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    store: options.StoreFile = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack a training and compute a lower bound on its epsilon. Exit code 1 if a break is found.

    The audit runs the real training with canaries in place of some rows; do not use its weights. The bound should be
    below the certified epsilon, which does not prove that the training is correct; a bound above it means that
    something is broken. With --store the audit is recorded in the ledger of the data: it trains on them, and spends
    the plan's epsilon again.

    Example: decrescendo audit digits --epsilon 4 --epochs 2
    """
    import torch

    from decrescendo.audit import many_runs
    from decrescendo.base.rng import Secure
    from decrescendo.training import Store, find_task

    check_out(out)
    known = None if plan is not None and task is None else find_task(task or "digits")
    if store is not None and (known is None or attack is not options.AttackName.CANARIES):
        raise InvalidValue(
            "--store must be given with a task and --attack canaries, got "
            + ("made-up rows, which are in no ledger" if known is None else f"--attack {attack.value}")
            + ("" if known is None else ": its trainings would each have to fit, or are on rows made for it")
        )
    asked = Asked(
        epsilon=epsilon, delta=delta, batch=batch, batch_end=batch_end, max_batch_size=max_batch_size,
        steps=steps, epochs=epochs,
        schedule=schedule, clip=clip, rho_mu=rho_mu, rho_c=rho_c, accountant=accountant,
        examples_per_person=examples_per_person,
    )  # fmt: skip
    agreed = agreed_plan(known, plan, asked)
    if threads is not None:
        torch.set_num_threads(threads)
    crafted = _crafted(attack, agreed)
    if not as_json:
        if crafted is not None:
            say(f"{attack.value} attacks a training made for it, whose budget is that of the plan asked for:")
        say((agreed if crafted is None else crafted.plan).describe())
    source = Secure() if seed is None else seed
    with nullcontext() if store is None else closing(Store(store)) as opened, working("auditing"):
        if crafted is not None:
            result = many_runs(crafted, runs=runs, seed=source, confidence=confidence)
        else:
            result = _audit(attack, agreed, known, canaries, runs, source, confidence, opened)
    if out is not None:
        from decrescendo.base import write_whole

        write_whole(out, result.to_json())
    if as_json:
        import json

        print_json(json.loads(result.to_json()))
    else:
        say(result.describe())
        if out is not None:
            say(f"written: {out}")
    if result.caught_by:
        raise typer.Exit(1)


def _crafted(attack: options.AttackName, plan: "Plan") -> "Attack | None":
    """An attack with a training of its own, for the plan's budget."""
    from decrescendo.audit import attacks

    makers = {
        options.AttackName.OPPOSED: attacks.opposed,
        options.AttackName.BATCH_SIZE: attacks.batch_size,
        options.AttackName.PADDED: attacks.padded,
        options.AttackName.CROWDED: attacks.crowded,
        options.AttackName.COUNTED: attacks.counted,
        options.AttackName.ONCE: attacks.once,
        options.AttackName.TOLD: attacks.told,
    }
    return makers[attack](plan.budget) if attack in makers else None


def _audit(
    attack: options.AttackName,
    plan: "Plan",
    task: "Task | None",
    canaries: int | None,
    runs: int,
    seed: "int | Secure",
    confidence: float,
    store: "Store | None",
) -> "AuditResult":
    import torch

    from decrescendo.audit import attacks, many_runs, one_run
    from decrescendo.audit.one_run import FEWEST
    from decrescendo.training import cross_entropy, initialised, make_optimizer, rows

    count = plan.sampling.dataset_size
    if task is None:
        random = torch.Generator().manual_seed(0)
        data = torch.randn(count, FEATURES, generator=random), torch.randint(2, (count,), generator=random)
        rate, optimizer, loss, engine = 0.1, "sgd", cross_entropy, None

        def build() -> torch.nn.Module:
            return initialised(lambda: torch.nn.Linear(FEATURES, 2), 0)
    else:
        data, engine = rows(task.load(), task.collate_fn), task.engine
        rate, optimizer, loss = task.learning_rate, task.optimizer, task.loss

        def build() -> torch.nn.Module:
            return task.fresh(0)

    if attack is options.AttackName.ONE_CANARY:
        made = attacks.one_canary(plan, data, build, loss, learning_rate=rate, settings=engine)
        return many_runs(made, runs=runs, seed=seed, confidence=confidence)
    return one_run(
        build(), loss, data, plan, lambda model: make_optimizer(model, optimizer, rate),
        canaries=max(FEWEST, min(count // 3, 5000)) if canaries is None else canaries, seed=seed,
        confidence=confidence, settings=engine, store=store,
    )  # fmt: skip
