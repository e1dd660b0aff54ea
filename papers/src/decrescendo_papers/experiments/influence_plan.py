"""From a training on public data to a plan for the private data: measure influence, fit it, calibrate the noise."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from decrescendo import Plan, PoissonSampling, calibrate
from decrescendo.accounting import Accountant
from decrescendo.base import sealed as kept
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.training import versions
from decrescendo_papers.experiments.estimate import Exponential, Influence, fit_exponential
from decrescendo_papers.experiments.influence import HIGH, LOW, Course, Measured, Tick, measure, spread, work
from decrescendo_papers.experiments.measured_seeds import add_seed, read_seeds, seeds_bar


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Where the noise should go, and why.

    Args:
        influence: as measured on public data.
        fit: the exponential through it.
        plan: for the private data, with the noise of Lemma 4.3 for that exponential.
    """

    influence: Influence
    fit: Exponential
    plan: Plan

    def describe(self) -> str:
        """What was measured, what was fitted and what is planned, for people."""
        low, high = self.influence.interval()
        rows = zip(self.influence.at, self.influence.mean, low, high, strict=True)
        return "\n".join(
            [
                f"influence of z_t^2 on the final loss, {self.influence.seeds} seeds, 95 % intervals",
                *(f"  step {step:>6}  {mean: .3g}  [{below: .3g}, {above: .3g}]" for step, mean, below, above in rows),
                self.fit.describe(),
                self.plan.describe(),
            ]
        )


def influence_plan(
    course: Course,
    *,
    seeds: int = 5,
    points: int = 6,
    path: Path | None = None,
    accountant: Accountant | None = None,
    console: Console | None = None,
) -> Allocation:
    """Measure on public data how much the noise of each step matters, and plan the noise that suits it.

    The whole way of Hong et al., section 5: train again and again on the public rows of ``course`` with the noise of
    one step changed (`influence.measure`), fit an exponential (`estimate.fit_exponential`), and calibrate noise with
    mu_t proportional to q_t^(1/4) (Lemma 4.3) at the budget, sampling, number of steps and clip norms of
    ``course.plan``. The plan is then spent once, by `train` on the private data.

    Args:
        course: the training, on public data, around its plan.
        seeds: how many, from 0; >= 2, so that there is an interval.
        points: at how many steps the noise is changed, >= 3; closest at the end.
        path: finished seeds are kept in this file; called again with the same plan and steps, it goes on from there;
            that data, model and optimiser are the same, nobody checks.
        accountant: judges the plan; by default `Pld`.
        console: where progress and the time left are drawn; standard error by default.

    Guarantee:
        the plan's, for one training on private data. No private data are read here, and nothing is spent.

    Raises:
        InvalidValue: too few seeds or points; nothing that an exponential fits.
        FileRefused: the file at ``path`` is damaged.

    >>> import io, torch
    >>> import decrescendo as dc
    >>> plan = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(20, 20), steps=4,
    ...                     privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0))
    >>> pull = lambda model, batch: (model.weight - batch).square().sum(dim=1) / 2
    >>> course = Course(lambda seed: torch.nn.Linear(50, 1, bias=False), pull, torch.zeros(20, 50), plan,
    ...                 lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    ...                 lambda model: float(model.weight.detach().square().sum()) / 2)
    >>> found = influence_plan(course, seeds=3, points=4, console=Console(file=io.StringIO()))
    >>> z = found.plan.noise_multiplier
    >>> bool(z[0] > plan.noise_multiplier[0] > z[-1])  # late noise matters more here: it should fall
    True
    """
    count = check_integer("seeds", seeds, at_least=2)
    at = spread(course.plan.steps, check_integer("points", points, at_least=3))
    if len(at) < 3:
        raise InvalidValue(f"the plan must have at least 3 steps to fit a curve to, got {course.plan.steps}")
    identity = {"spec": {"plan": _digest(course.plan)}, "low": LOW, "high": HIGH, "at": list(at)}
    known = {} if path is None else read_seeds(path, identity)
    todo = [seed for seed in range(count) if seed not in known]
    if todo:
        if path is not None:
            kept.check_writable(path.parent)
        with seeds_bar(console) as show:
            bar = show.add_task("", total=len(todo) * work(course.plan.steps, at))
            for seed in todo:
                show.update(bar, description=f"influence, seed {seed}")

                def tick(steps: int) -> None:
                    show.advance(bar, steps)

                known[seed] = _one(course, at, seed, tick, path, identity)
    influence = Influence.of(course.plan.steps, [known[seed] for seed in range(count)])
    fit, plan = fit_exponential(influence), course.plan
    planned = calibrate(
        plan.budget,
        PoissonSampling(plan.sampling.dataset_size, float(plan.batch_size[0])),
        steps=plan.steps,
        privacy=fit.privacy(),
        clip=plan.clip_norm,
        batch=plan.batch_size,
        accountant=accountant,
    )
    return Allocation(influence, fit, planned)


def _one(
    course: Course, at: tuple[int, ...], seed: int, tick: Tick, path: Path | None, identity: dict[str, Any]
) -> Measured:
    start = time.monotonic()
    measured = measure(course, at, seed=seed, tick=tick)
    if path is not None:
        add_seed(path, identity, measured, {"seconds": time.monotonic() - start, "versions": versions()})
    return measured


def _digest(plan: Plan) -> str:
    """Of what `measure` takes from a plan; to six digits, because the last bits of a calibration differ by machine."""
    arrays = (np.unique(plan.sampling.rates(plan.steps)), plan.noise_multiplier, plan.clip_norm)
    text = "|".join(" ".join(f"{value:.6g}" for value in array) for array in arrays)
    return hashlib.sha256(f"{plan.sampling.dataset_size}|{text}".encode()).hexdigest()
