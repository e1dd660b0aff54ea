"""Plans of noise for a workload: correlated between steps, or independent where that is better."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Pld, Truncated
from decrescendo.accounting.budget import Budget, Guarantee, check_one_example
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.plans.correlating import Task, best_strategy, equal_columns
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, planned
from decrescendo.plans.sampling_refusals import uncut
from decrescendo.plans.scale_search import first_guess, settled, steer
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy
from decrescendo.plans.workload import Workload

# "auto" tries so many bands at most, in long runs and in others; a search takes as many squares of it.
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
    """The plan of the least `Workload.cost` that is found, with so many bands, or with 1, 2, 4, .. of them.

    Among those that "auto" compares are independent noise, and equal columns; so it is at most as costly as these.
    """
    own = accountant.judge if isinstance(accountant, Truncated) else accountant
    if not isinstance(own, Pld):
        raise InvalidValue(
            f"accountant must be Pld for noise that follows a workload or is correlated, got {own.name}. Leave it out"
        )
    check_one_example(budget, "noise that follows a workload or is correlated")
    uncut(sampling, "noise that follows a workload or is correlated")
    steps = clip_norm.size
    sizes = sampling.sizes(steps)
    search = _Search(
        budget, sampling, clip_norm, own, Task(budget, workload, clip_norm / sizes, sampling.rates(steps))
    )
    if bands == "auto":
        return search.best()
    count = check_integer("bands", bands, at_least=1)
    if count > steps:
        raise InvalidValue(
            f"bands must be at most the {steps} steps, got bands={count}. A group must have a turn"
        )
    return search.least([_Tried(search, shape, None) for shape in search.shapes(count)])


class _Tried:
    """A strategy up to a factor, the factor that an estimate finds, and the cost with it."""

    def __init__(
        self, search: "_Search", shape: Float[np.ndarray, "bands steps"], guess: float | None
    ) -> None:
        self.shape, self.drawn, self._search = shape, search.drawn(len(shape)), search
        norms, rates = np.linalg.norm(shape, axis=0), self.drawn.rates(shape.shape[1])
        if guess is None:
            guess = first_guess(norms[:: len(shape)], rates[:: len(shape)], search.budget)
        self.scale = steer(self._estimated, guess, search.budget)
        self.cost = search.cost(self.noise(self.scale))

    def noise(self, scale: float) -> "Strategy | Float[np.ndarray, ' steps']":
        """The strategy times ``scale``; of one band z_t."""
        return 1 / (scale * self.shape[0]) if len(self.shape) == 1 else Strategy.rounded(self.shape, scale)

    def _ledger(self, scale: float) -> Ledger:
        noise = self.noise(scale)
        return planned(self.drawn, noise.noise_multiplier if isinstance(noise, Strategy) else noise)

    def _estimated(self, scale: float) -> float:
        return self._search.judge.estimate(self._ledger(scale), self._search.budget.delta)

    def plan(self) -> Plan:
        """Scaled to the budget and certified."""
        search, budget = self._search, self._search.budget

        def certified(scale: float) -> Guarantee:
            return search.judge.certify(self._ledger(scale), budget)

        moving = isinstance(search.sampling, BatchSchedule)
        scale, guarantee = settled(self._estimated, certified, self.scale, budget, moving=moving)
        noise = self.noise(scale)
        correlation = noise if isinstance(noise, Strategy) else None
        z = noise if correlation is None else correlation.noise_multiplier
        return Plan(budget, self.drawn, Schedule(z, search.clip_norm), guarantee, correlation)


class _Search:
    def __init__(
        self,
        budget: Budget,
        sampling: PoissonSampling | BatchSchedule,
        clip_norm: Float[np.ndarray, " steps"],
        judge: Pld,
        task: Task,
    ) -> None:
        self.budget, self.sampling, self.clip_norm, self.judge, self.task = (
            budget, sampling, clip_norm, judge, task,
        )  # fmt: skip
        self._guess: float | None = None

    def drawn(self, bands: int) -> PoissonSampling | BatchSchedule | CyclicPoissonSampling:
        """How batches are drawn with so many bands."""
        size = self.sampling.expected_batch_size
        return self.sampling if bands == 1 else CyclicPoissonSampling(self.sampling.dataset_size, size, bands)

    def cost(self, noise: "Strategy | Float[np.ndarray, ' steps']") -> float:
        """The workload's."""
        return self.task.workload.cost(noise, self.task.scale)

    def shapes(self, bands: int) -> Iterator[Float[np.ndarray, "bands steps"]]:
        """Strategies to compare."""
        self.drawn(bands)  # or a refusal, before the search
        yield best_strategy(self.task, bands)
        yield equal_columns(self.task, bands)
        if bands == 1 and isinstance(self.sampling, PoissonSampling) and self.sampling.sample_rate < 1:
            yield self._allocated(self.sampling)

    def best(self) -> Plan:
        """Of the numbers of bands that are tried until more are worse."""
        tried: list[_Tried] = []
        bands = 1
        most = _MOST_OF_LONG if self.task.steps > _LONG else _MOST
        while bands <= most and self.task.fits(bands):
            tried.append(_Tried(self, best_strategy(self.task, bands), tried[-1].scale if tried else None))
            if len(tried) > 1 and tried[-1].cost > tried[-2].cost:
                break
            bands *= 2
        best = min(tried, key=lambda one: one.cost)
        rivals = [best, _Tried(self, equal_columns(self.task, len(best.shape)), None)]
        if tried[0].cost < _TIE * best.cost:
            rivals += [_Tried(self, shape, None) for shape in self.shapes(1)]
        return self.least(rivals)

    def least(self, tried: "list[_Tried]") -> Plan:
        """Of strategies whose estimates are close, the plan whose certified cost is least."""
        least = min(one.cost for one in tried)
        plans = [one.plan() for one in tried if one.cost < _TIE * least]
        return min(plans, key=lambda plan: self.cost(plan.correlation or plan.noise_multiplier))

    def _allocated(self, sampling: PoissonSampling) -> Float[np.ndarray, "1 steps"]:
        """Independent noise by the exact accountant's own table; see `allocate`."""
        from decrescendo.plans.allocation import allocate  # it calls calibrate

        _, influence = self.task.system.independent()
        plan = allocate(
            self.budget,
            sampling,
            steps=self.task.steps,
            influence=influence,
            clip=self.clip_norm,
            accountant=self.judge,
        )
        return 1 / plan.noise_multiplier[None]
