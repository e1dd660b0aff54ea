"""Section 5 of Hong et al. as data: private gradient descent on few images of MNIST, with uniform noise and with noise
that falls exponentially, both chosen on made-up data.

Three stages, each from what the one before has kept: the influence of the noise on made-up data; the number of steps,
on made-up data too; the runs on MNIST.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy import stats

from decrescendo_papers.experiments import influences, results
from decrescendo_papers.experiments.alike import first_of_least
from decrescendo_papers.experiments.estimate import Exponential, Influence, fit_exponential
from decrescendo_papers.experiments.execute import Outcome, missing
from decrescendo_papers.experiments.influence import spread
from decrescendo_papers.experiments.influences import Study
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec
from decrescendo_papers.experiments.tasks import PAPER, find_task

HONG = "hong"

# (4, 1e-8), counted as the paper counts: zCDP, an upper bound.
EPSILON, DELTA, ACCOUNTANT = 4.0, 1e-8, "zcdp"
STAND_INS = {"mnist35-pca": "gaussian-2", "mnist-pca": "gaussian-10"}
SIZES = (250, 500, 1000)
SCALES = ("half-scale", "double-scale")
STEPS = (50, 100, 150)
SHOWN = 100  # whose influence is drawn
POINTS = 6
SEEDS = 20  # of the comparison, and of the influence that is drawn
CHOOSING_SEEDS = 5  # of the influence and of the runs that schedules and steps are chosen by
UNIFORM, DYNAMIC = "constant", "growing-mu"
METHODS = {UNIFORM: "uniform", DYNAMIC: "exponential"}

Run = Callable[[Sequence[Spec]], Outcome]
Find = Callable[[Spec], results.Result | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One place where uniform and exponential noise are compared.

    Args:
        task: a key of `STAND_INS`.
        size: number of images N.
        model: of the task: the data scale.
    """

    task: str
    size: int
    model: str = PAPER

    @property
    def key(self) -> str:
        """As pages name it."""
        return f"{self.task}/{self.size}" + ("" if self.model == PAPER else f"/{self.model}")

    def spec(self, steps: int, method: str = UNIFORM, *, rho_mu: float = 1.0, made_up: bool = False) -> Spec:
        """One run, of seed 0."""
        task, private = find_task(self.task), method != NOT_PRIVATE
        return Spec(
            task=self.task, method=method, accountant=ACCOUNTANT if private else "none",
            epsilon=EPSILON if private else 0.0, delta=DELTA, steps=steps, batch=self.size, rows=self.size, seed=0,
            clip=task.clip, learning_rate=task.learning_rate, rho_mu=rho_mu, model=self.model,
            stand_in=STAND_INS[self.task] if made_up else "",
        )  # fmt: skip

    def study(self, steps: int = SHOWN, *, made_up: bool = True) -> Study:
        """Its influence around uniform noise."""
        return Study(self.spec(steps, made_up=made_up), spread(steps, POINTS))


CASES = (
    *(Case(task, size) for task in STAND_INS for size in SIZES),
    *(Case("mnist35-pca", max(SIZES), model) for model in SCALES),
)
# Where the influence is measured on the private images too: not private, and not used for any choice.
LOOKED_AT = tuple(Case(task, max(SIZES)) for task in STAND_INS)


@dataclass(frozen=True, slots=True)
class Loss:
    """A mean over seeds, with its standard error."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the made-up data say for a case.

    Args:
        case: where.
        fits: of the influence, by number of steps.
        losses: final loss on the made-up data, by method and number of steps.
    """

    case: Case
    fits: dict[int, Exponential]
    losses: dict[tuple[str, int], Loss]

    def steps(self, method: str) -> int:
        """The number of steps with the smallest loss, the smallest number among equal losses."""
        found = {steps: loss.mean for (name, steps), loss in self.losses.items() if name == method}
        return first_of_least(sorted(found), found.__getitem__)

    def spec(self, method: str, steps: int | None = None) -> Spec:
        """The run on the private images; with the method's own number of steps, or with another's."""
        taken = self.steps(method) if steps is None else steps
        return self.case.spec(taken, method, rho_mu=self.growth(method, taken))

    def growth(self, method: str, steps: int) -> float:
        """rho_mu at that number of steps."""
        return growth(self.fits[steps]) if method == DYNAMIC else 1.0

    def compared(self) -> list[Spec]:
        """All runs on the private images: both methods at both numbers of steps, so that a better shape can be told
        from a better number of steps."""
        return [self.spec(method, steps) for steps in sorted({*map(self.steps, METHODS)}) for method in METHODS]


def growth(fit: Exponential) -> float:
    """rho_mu to three digits behind the point, so that the last bits of a fit do not make another run."""
    return round(fit.rho_mu(), 3)


def influence_of(study: Study, folder: Path, seeds: int = CHOOSING_SEEDS) -> Influence | None:
    """What is kept of so many seeds, if it is enough to choose by."""
    kept = influences.found(folder, study)
    asked = [kept[seed] for seed in range(seeds) if seed in kept]
    return Influence.of(study.spec.steps, asked) if len(asked) >= CHOOSING_SEEDS else None


def drawn() -> list[Study]:
    """The influences that figures show: on made-up data, and on the images themselves, which is not used."""
    return [case.study() for case in CASES] + [case.study(made_up=False) for case in LOOKED_AT]


def fits_of(case: Case, folder: Path) -> dict[int, Exponential] | None:
    """The exponentials for the influence on made-up data by number of steps, if all are measured."""
    found = {steps: influence_of(case.study(steps), folder) for steps in STEPS}
    fits = {steps: fit_exponential(one) for steps, one in found.items() if one is not None}
    return fits if len(fits) == len(STEPS) else None


def tuning_specs(case: Case, fits: Mapping[int, Exponential]) -> dict[tuple[str, int], Spec]:
    """The runs on made-up data that choose the number of steps, of seed 0, by method and steps."""
    return {
        (method, steps): case.spec(
            steps, method, rho_mu=growth(fits[steps]) if method == DYNAMIC else 1.0, made_up=True
        )
        for method in METHODS
        for steps in STEPS
    }


def chosen(case: Case, find: Find, folder: Path) -> Chosen | None:
    """What the made-up data say, if they have been asked; ``find`` knows the finished runs."""
    fits = fits_of(case, folder)
    if fits is None:
        return None
    losses: dict[tuple[str, int], Loss] = {}
    for key, spec in tuning_specs(case, fits).items():
        found = [find(spec.seeded(seed)) for seed in range(CHOOSING_SEEDS)]
        values = [result.metrics["train_loss"] for result in found if result is not None]
        if len(values) < CHOOSING_SEEDS:
            return None
        losses[key] = Loss(float(np.mean(values)), float(stats.sem(values)))
    return Chosen(case, fits, losses)


def plain_spec(case: Case) -> Spec:
    """Gradient descent without clipping and noise."""
    return case.spec(max(STEPS), NOT_PRIVATE)


def reproduce_hong(runs: Path, folder: Path, *, seeds: int, run: Run, console: Console | None = None) -> Outcome:
    """Everything that is missing, stage by stage; interrupted, it goes on from there.

    Args:
        runs: folder of finished runs.
        folder: of measured influences.
        seeds: of the runs on MNIST and of the influence that is drawn, from 0.
        run: `experiments.execute.execute` with its folder and processes.
        console: where the progress of the influences is drawn.

    Raises:
        InvalidValue: an influence that no exponential fits.
    """
    first = [case.study(steps) for case in CASES for steps in STEPS]
    influences.study_influence(first, range(CHOOSING_SEEDS), folder, console=console)
    fits = {case: fits_of(case, folder) for case in CASES}
    tuning = [spec for case, of in fits.items() if of is not None for spec in tuning_specs(case, of).values()]
    outcomes = [run([spec.seeded(seed) for seed in range(CHOOSING_SEEDS) for spec in tuning])]
    known = [
        found for case in CASES if (found := chosen(case, lambda spec: results.find(runs, spec), folder)) is not None
    ]
    compared = [spec for found in known for spec in found.compared()]
    stages = (compared, [plain_spec(case) for case in CASES])
    outcomes.append(run([spec.seeded(seed) for stage in stages for seed in range(seeds) for spec in stage]))
    influences.study_influence(drawn(), range(seeds), folder, console=console)
    failed = {name: why for outcome in outcomes for name, why in outcome.failed.items()}
    return Outcome(sum(one.kept for one in outcomes), sum(one.done for one in outcomes), failed)


def unfinished(runs: Path, folder: Path, seeds: int) -> tuple[list[tuple[Study, int]], list[Spec]]:
    """What `reproduce_hong` would do, as far as that is known before earlier stages are finished."""
    asked = {case.study(steps): CHOOSING_SEEDS for case in CASES for steps in STEPS}
    asked |= dict.fromkeys(drawn(), max(seeds, CHOOSING_SEEDS))
    absent = [
        (study, seed)
        for study, count in asked.items()
        for seed in sorted({*range(count)} - influences.found(folder, study).keys())
    ]
    specs: list[Spec] = []
    for case in CASES:
        fits, known = fits_of(case, folder), chosen(case, lambda spec: results.find(runs, spec), folder)
        if fits is not None:
            specs += [s.seeded(i) for s in tuning_specs(case, fits).values() for i in range(CHOOSING_SEEDS)]
        if known is not None:
            specs += [spec.seeded(i) for spec in known.compared() for i in range(seeds)]
        specs += [plain_spec(case).seeded(i) for i in range(seeds)]
    return absent, missing(specs, runs)
