"""The comparisons of Hong et al.'s experiment with their finished runs, and what is tested on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from scipy import stats

from decrescendo.report import SAME, Paired, largest, paired
from decrescendo_papers.experiments.comparisons import holm
from decrescendo_papers.experiments.estimate import LEVEL, Exponential, Influence
from decrescendo_papers.experiments.hong import (
    CASES,
    DYNAMIC,
    METHODS,
    SIZES,
    UNIFORM,
    Case,
    Chosen,
    chosen,
    plain_spec,
)
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.tasks import PAPER

LOSS, ACCURACY = "train_loss", "test_accuracy"
UNITS = {LOSS: "training loss, nats", ACCURACY: "test accuracy, %"}
DIGITS = {LOSS: 4, ACCURACY: 2}
SCALE_NAMES = {"half-scale": "5", PAPER: "10", "double-scale": "20"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One case with its finished runs.

    Args:
        case: where.
        chosen: what the made-up data said.
        results: by method and number of steps, then by seed.
        plain: without privacy, by seed.
    """

    case: Case
    chosen: Chosen
    results: Mapping[tuple[str, int], Mapping[int, Result]]
    plain: Mapping[int, Result]

    @property
    def steps(self) -> list[int]:
        """The numbers of steps that either method chose."""
        return sorted({steps for _, steps in self.results})

    def values(self, metric: str, method: str, steps: int | None = None) -> dict[int, float]:
        """A metric by seed, accuracies in per cent; at the method's own number of steps if none is given.

        Of the seeds that both methods have: unequal seeds have other images.
        """
        taken = {name: self.chosen.steps(name) if steps is None else steps for name in METHODS}
        both = set[int].intersection(*(set(self.results[name, count]) for name, count in taken.items()))
        found = self.results[method, taken[method]]
        return values({seed: result for seed, result in found.items() if seed in both}, metric)

    def gain(self, metric: str, steps: int | None = None) -> Paired:
        """How much better the exponential is, seed by seed: points of accuracy, or nats less of loss.

        With ``steps`` both take as many; without, each takes what it chose.
        """
        one, other = self.values(metric, DYNAMIC, steps), self.values(metric, UNIFORM, steps)
        return paired(one, other) if metric == ACCURACY else paired(other, one)

    @property
    def everything(self) -> list[Result]:
        """All private runs."""
        return [result for found in self.results.values() for result in found.values()]


def values(found: Mapping[int, Result], metric: str) -> dict[int, float]:
    """A metric by seed, accuracies in per cent."""
    factor = 100.0 if metric == ACCURACY else 1.0
    return {seed: factor * result.metrics[metric] for seed, result in found.items()}


def compared(sources: Sources) -> list[Compared]:
    """The cases that have runs of both methods."""
    archive, found = sources.archive, list[Compared]()
    for case in CASES:
        known = chosen(case, lambda spec: archive.of(spec).get(spec.seed), sources.influence)
        if known is None:
            continue
        runs = {(spec.method, spec.steps): archive.of(spec) for spec in known.compared()}
        if all(runs.values()):
            found.append(Compared(case, known, runs, archive.of(plain_spec(case))))
    return found


def sized(cases: Sequence[Compared], task: str) -> list[Compared]:
    """Those that differ in the number of images only, ascending."""
    found = [one for one in cases if one.case.task == task and one.case.model == PAPER]
    return sorted(found, key=lambda one: one.case.size)


def scaled(cases: Sequence[Compared]) -> list[Compared]:
    """Those that differ in the length of the data only, ascending."""
    found = [one for one in cases if one.case.task == "mnist35-pca" and one.case.size == max(SIZES)]
    return sorted(found, key=lambda one: float(SCALE_NAMES[one.case.model]))


def trend(cases: Sequence[Compared], at: Sequence[float], metric: str) -> Paired:
    """How much the gain grows along ``at``, seed by seed: the slope of a least-squares line; of one case, nothing.

    In closed form, whose sums are exact up to their last digit: gains that do not move have a slope that does not
    either, whatever a machine's linear algebra makes of them.
    """
    if len(cases) < 2:
        return Paired(())
    sign = 1 if metric == ACCURACY else -1
    gains: list[dict[int, float]] = []
    size = 0.0
    for one in cases:
        first, second = one.values(metric, DYNAMIC), one.values(metric, UNIFORM)
        gains.append({seed: sign * (first[seed] - second[seed]) for seed in first})
        size = max(size, largest(first, second))
    seeds = sorted(set[int].intersection(*map(set, gains)))
    middle = math.fsum(at) / len(at)
    away = [place - middle for place in at]
    squares = math.fsum(step * step for step in away)
    return Paired(
        tuple(math.fsum(step * of[seed] for step, of in zip(away, gains, strict=True)) / squares for seed in seeds),
        size / (max(at) - min(at)),
    )


def corrected_p(pairs: Sequence[Paired]) -> list[float | None]:
    """P values after Holm, among those that have one."""
    found = [pair.p_value for pair in pairs]
    corrected = iter(holm([value for value in found if value is not None]))
    return [None if value is None else next(corrected) for value in found]


def inside(found: Influence, fit: Exponential) -> Bool[np.ndarray, " points"]:
    """At which measured steps the interval holds the fitted exponential, up to rounding."""
    (low, high), fitted = found.interval(), fit.at(found.at)
    rounding = SAME * np.abs(found.slopes).max()
    return (low - rounding <= fitted) & (fitted <= high + rounding)


def refuted(found: Influence, fit: Exponential) -> float | None:
    """P value against the fitted exponential: of the measured step that is furthest from it by Student's t-test over
    the seeds, times the number of steps. The fit has seen the same numbers, and is nearer to them than the truth: p is
    rather too large.

    ``None`` for one seed. Up to rounding a step that is on the curve is not off it.
    """
    if found.seeds < 2:
        return None
    away = np.abs(found.mean - fit.at(found.at))
    away[away <= SAME * np.abs(found.slopes).max()] = 0.0
    far = np.divide(away, found.error, out=np.where(away > 0, np.inf, 0.0), where=found.error > 0)
    return min(1.0, len(found.at) * float(2 * stats.t.sf(far.max(), found.seeds - 1)))


def reach(numbers: Sequence[float]) -> float:
    """Half of Student's confidence interval of the mean; zero for one value."""
    if len(numbers) < 2:
        return 0.0
    return float(stats.t.ppf((1 + LEVEL) / 2, len(numbers) - 1) * stats.sem(numbers))
