"""The command that measures how the noise should move, on public data, and plans by what it finds."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli import err, judge_of, one_line_errors, plan_facts, print_json, say
from decrescendo.cli.options import (
    Accountant,
    AsJson,
    Batch,
    Clip,
    Delta,
    Epochs,
    EpsilonNeeded,
    LrDecay,
    MomentumOf,
    OptimizerOption,
    Rate,
    SavePlan,
    Steps,
    Threads,
)
from decrescendo.errors import InvalidValue, check_real
from decrescendo_papers.cli.options import Influences, PaperTask


@one_line_errors
def influence_command(
    task: PaperTask,
    on: Annotated[str, typer.Option(help="Public data to measure on; the task's own are not opened.")],
    epsilon: EpsilonNeeded,
    delta: Delta = None,
    batch: Batch = None,
    steps: Steps = None,
    epochs: Epochs = None,
    clip: Clip = None,
    lr: Rate = None,
    optimizer: OptimizerOption = None,
    momentum: MomentumOf = None,
    lr_decay: LrDecay = None,
    accountant: Accountant = None,
    points: Annotated[int, typer.Option(help="At how many steps the noise is changed.", min=3)] = 6,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.", min=2)] = 5,
    out: SavePlan = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the influence into this PNG file.")] = None,
    results: Influences = Path("results/influence"),
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much the noise of each step matters, and plan the noise that suits it.

    Trains on public data, again and again with one step's noise changed, around constant noise at the same budget. Fits
    an exponential, and calibrates the noise that is best for it (Hong et al., Lemma 4.3). The budget is then spent
    once, by decrescendo train with the plan. Interrupted, it goes on with the seed it was at.

    Example: papers influence mnist35-pca --on gaussian-2 --epsilon 4 --delta 1e-8 --steps 50 --out plan.json
    """
    import torch

    from decrescendo_papers.experiments.influence import spread
    from decrescendo_papers.experiments.influence_plan import influence_plan
    from decrescendo_papers.experiments.influences import Study, course_of, draw_influence
    from decrescendo_papers.experiments.stand_ins import find_stand_in
    from decrescendo_papers.experiments.table import base_spec
    from decrescendo_papers.experiments.tasks import find_task

    for option, path in (("--out", out), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():  # asked before the work, not after it
            raise InvalidValue(f"{option} must name a file in a folder that exists, got {str(path)!r}")
    if steps is not None and epochs is not None:
        raise InvalidValue("at most one of --steps and --epochs must be given, got both")
    known = find_task(task.value)
    find_stand_in(on, known, "--on")
    given = {
        "delta": delta, "batch": batch, "steps": steps, "clip": clip, "learning_rate": lr,
        "epochs": None if epochs is None else check_real("epochs", epochs, above=0),
        "optimizer": None if optimizer is None else optimizer.value,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None}
    settings |= {
        "momentum": 0.0 if momentum is None else momentum,
        "stand_in": on,
        "lr_decay": "none" if lr_decay is None else lr_decay.value,
    }
    spec = base_spec(known.name, epsilon=epsilon, accountant="pld", settings=settings)
    if threads is not None:
        torch.set_num_threads(threads)
    kept = results / f"{Study(spec, spread(spec.steps, points)).spec.name}.jsonl"  # a file of these settings alone
    found = influence_plan(
        course_of(spec), seeds=seeds, points=points, path=kept, accountant=judge_of(accountant), console=err
    )
    if out is not None:
        found.plan.save(out)
    if plot is not None:
        draw_influence(found.influence, found.fit, plot)
    written = [path for path in (out, plot) if path is not None]
    if as_json:
        influence, fit = found.influence, found.fit
        columns = (influence.at, influence.mean, *influence.interval())
        rows = zip(*(column.tolist() for column in columns), strict=True)
        facts = {
            "influence": [dict(zip(("step", "mean", "low", "high"), row, strict=True)) for row in rows],
            "seeds": influence.seeds, "rate": fit.rate, "rate_interval": list(fit.interval), "rho_mu": fit.rho_mu(),
            "gain": fit.gain(), "plan": plan_facts(found.plan), "written": written,
        }  # fmt: skip
        print_json(facts)
        return
    say(f"measured on {on}")
    say(found.describe())
    for path in written:
        say(f"written: {path}")
