"""Makes plans for a workload: noise correlated between steps, or independent where that costs less."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, check_one_example
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.truncated import composes
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.plans.correlating import Task, best_strategy, equal_columns
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, planned
from decrescendo.plans.sampling_refusals import uncut
from decrescendo.plans.scale_search import certified_scale, first_guess, steer
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy
from decrescendo.plans.workload import Workload

# The most bands that "auto" tries; in long runs fewer, since a search's time grows with the square.
_MOST, _MOST_OF_LONG, _LONG = 64, 32, 1_000
_TIE = 1.03  # plans whose estimated costs are within this factor of the least are certified and compared


def correlated(
    budget: Budget,
    sampling: PoissonSampling | BatchSchedule,
    clip_norm: Float[np.ndarray, " steps"],
    accountant: Accountant,
    bands: int | Literal["auto"],
    workload: Workload,
) -> Plan:
    """The plan of the least `Workload.cost` found, with ``bands`` bands, or with the best of 1, 2, 4, ..

    "auto" also compares independent noise and equal columns, so its plan costs at most as much as these.
    """
    what = "noise that follows a workload or is correlated"
    check_one_example(budget, what)
    uncut(sampling, what)
    if not composes(accountant, Ledger.of([1.0], 0.5)):
        raise InvalidValue(f"accountant must be Pld for {what}, got {accountant.name}. Leave it out")
    steps = clip_norm.size
    sizes = sampling.sizes(steps)
    task = Task(budget, workload, clip_norm / sizes, sampling.rates(steps))
    search = _Search(budget, sampling, clip_norm, accountant, task)
    if bands == "auto":
        return search.best()
    if isinstance(bands, str):
        raise InvalidValue(f"bands must be a whole number or 'auto', got {bands!r}")
    count = check_integer("bands", bands, at_least=1)
    if count > steps:
        raise InvalidValue(f"bands must be at most the {steps} steps, got bands={count}. A group must have a turn")
    search.drawn(count)  # or a refusal, before the search
    return search.least([_Tried(search, best_strategy(task, count)), _Tried(search, equal_columns(task, count))])


class _Tried:
    """A strategy up to a factor, the factor estimated to meet the budget, and the cost with that."""

    def __init__(self, search: "_Search", shape: Float[np.ndarray, "bands steps"], guess: float | None = None) -> None:
        self.shape, self.drawn, self._search = shape, search.drawn(len(shape)), search
        norms, rates = np.linalg.norm(shape, axis=0), self.drawn.rates(shape.shape[1])
        if guess is None:
            guess = first_guess(norms[:: len(shape)], rates[:: len(shape)], search.budget)
        self.scale = steer(search.judge, self._ledger, guess, search.budget)
        self.cost = search.cost(self.noise(self.scale))

    def noise(self, scale: float) -> "Strategy | Float[np.ndarray, ' steps']":
        """The strategy times ``scale``; with one band, z_t."""
        return 1 / (scale * self.shape[0]) if len(self.shape) == 1 else Strategy.rounded(self.shape, scale)

    def _ledger(self, scale: float) -> Ledger:
        noise = self.noise(scale)
        return planned(self.drawn, noise.noise_multiplier if isinstance(noise, Strategy) else noise)

    def plan(self) -> Plan:
        """The plan of this strategy, scaled to the budget and certified."""
        search, budget = self._search, self._search.budget
        moving = isinstance(search.sampling, BatchSchedule)
        scale, guarantee = certified_scale(search.judge, self._ledger, self.scale, budget, moving=moving)
        noise = self.noise(scale)
        correlation = noise if isinstance(noise, Strategy) else None
        z = noise if correlation is None else correlation.noise_multiplier
        return Plan(budget, self.drawn, Schedule(z, search.clip_norm), guarantee, correlation)


@dataclass(frozen=True, slots=True)
class _Search:
    budget: Budget
    sampling: PoissonSampling | BatchSchedule
    clip_norm: Float[np.ndarray, " steps"]
    judge: Accountant
    task: Task

    def drawn(self, bands: int) -> PoissonSampling | BatchSchedule | CyclicPoissonSampling:
        """The sampling for this number of bands."""
        size = self.sampling.expected_batch_size
        return self.sampling if bands == 1 else CyclicPoissonSampling(self.sampling.dataset_size, size, bands)

    def cost(self, noise: "Strategy | Float[np.ndarray, ' steps']") -> float:
        """The workload's cost of ``noise``."""
        return self.task.workload.cost(noise, self.task.scale)

    def best(self) -> Plan:
        """The best plan of 1, 2, 4, .. bands, tried until more cost more."""
        tried: list[_Tried] = []
        bands = 1
        most = _MOST_OF_LONG if self.task.steps > _LONG else _MOST
        while bands <= most and self.task.fits(bands):
            tried.append(_Tried(self, best_strategy(self.task, bands), tried[-1].scale if tried else None))
            if len(tried) > 1 and tried[-1].cost > tried[-2].cost:
                break
            bands *= 2
        best = min(tried, key=lambda one: one.cost)
        return self.least([tried[0], best, _Tried(self, equal_columns(self.task, len(best.shape)))])

    def least(self, tried: "list[_Tried]") -> Plan:
        """The plan of the least certified cost, among strategies whose estimated costs are close to the least."""
        least = min(one.cost for one in tried)
        plans = [one.plan() for one in dict.fromkeys(tried) if one.cost < _TIE * least]
        return min(plans, key=lambda plan: self.cost(plan.correlation or plan.noise_multiplier))
