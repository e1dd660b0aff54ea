"""The command that measures how the noise should move, on public data, and plans by what it finds."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import err, one_line_errors, print_json, say
from decrescendo.cli.options import AsJson, Batch, Clip, Decay, Delta, Epochs, OptimizerName, Steps, TaskName
from decrescendo.cli.plans import plan_facts
from decrescendo.errors import InvalidValue, check_real


@one_line_errors
def influence_command(
    task: Annotated[TaskName, typer.Argument(help="What will be trained.")],
    on: Annotated[str, typer.Option(help="Public data to measure on; the task's own are not opened.")],
    epsilon: Annotated[float, typer.Option(help="Budget: epsilon > 0 of the whole run.")],
    delta: Delta = None,
    batch: Batch = None,
    steps: Steps = None,
    epochs: Epochs = None,
    clip: Clip = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: the task's.")] = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(help="Optimiser. Default: the task's.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum in [0, 1), for sgd and momentum-bc.")] = 0.0,
    lr_decay: Annotated[Decay, typer.Option(help="Learning rate constant or falling to zero.")] = Decay.NONE,
    points: Annotated[int, typer.Option(help="At how many steps the noise is changed.", min=3)] = 6,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.", min=2)] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the influence into this PNG file, and an SVG.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of finished seeds.")] = Path("results/influence"),
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much the noise of each step matters, and plan the noise that suits it.

    Trains on public data, again and again with one step's noise changed, around constant noise at the same budget. Fits
    an exponential, and calibrates the noise that is best for it (Hong et al., Lemma 4.3). The budget is then spent
    once, by decrescendo train with the plan. Interrupted, it goes on with the seed it was at.

    Example: decrescendo influence mnist35-pca --on gaussian-2 --epsilon 4 --delta 1e-8 --steps 50 --out plan.json
    """
    import torch

    from decrescendo.experiments.influence import spread
    from decrescendo.experiments.influence_plan import influence_plan
    from decrescendo.experiments.influences import Study, course_of, draw_influence
    from decrescendo.experiments.stand_ins import find_stand_in
    from decrescendo.experiments.table import base_spec
    from decrescendo.experiments.tasks import find_task

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
    settings |= {"momentum": momentum, "lr_decay": lr_decay.value, "stand_in": on}
    spec = base_spec(known.name, epsilon=epsilon, accountant="pld", settings=settings)
    if threads is not None:
        torch.set_num_threads(threads)
    kept = Study(spec, spread(spec.steps, points)).path(results)
    found = influence_plan(course_of(spec), seeds=seeds, points=points, path=kept, console=err)
    if out is not None:
        found.plan.save(out)
    drawn = [] if plot is None else draw_influence(found.influence, found.fit, plot)
    written = [*([] if out is None else [out]), *drawn]
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
