"""How much the noise of each step moves the final loss, found by training again with that one step's noise changed.

Hong et al. call it the *influence* of a step: ERUB = gamma^T + R sum_t q_t z_t^2, so q_t is what one unit of z_t^2
costs in the final loss. Here it is measured, on data that are public or made up: nothing in this file is private.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from decrescendo import NoisyMean, Plan, PoissonSampling, Streams, apply, privatise
from decrescendo.base import Keystream, Seeds
from decrescendo.clipping import Batch, ClippedSum, Engine, Loss
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real
from decrescendo.training import Rows, rows

# By these factors the variance of one step's noise is changed: a difference centred on the plan's own noise.
LOW, HIGH = 0.0, 2.0

Tick = Callable[[int], None]  # steps taken since the last call


@dataclass(frozen=True, slots=True)
class Course:
    """A training that can be repeated with other noise: everything but the seed.

    Args:
        build: from a seed to a fresh model.
        loss: one loss per example, as for `training.train`.
        data: *public* rows, as many as the plan's ``dataset_size``; as for `training.train`. What is measured on
            private rows is one more access to them, which nothing here pays for.
        plan: the noise and clipping around which the noise is changed.
        optimizer: from a model to a fresh optimiser over its parameters.
        score: from a trained model to the final loss whose expectation counts; it must not change the model.
        scheduler: from an optimiser to a fresh learning-rate scheduler, stepped after each step; ``None`` for none.

    Raises:
        InvalidValue: data of another length than the plan says.
    """

    build: Callable[[int], nn.Module]
    loss: Loss
    data: object
    plan: Plan
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    score: Callable[[nn.Module], float]
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None

    def __post_init__(self) -> None:
        check_instance("plan", self.plan, Plan)
        count = rows(self.data).count
        if count != self.plan.sampling.dataset_size:
            raise InvalidValue(
                f"data must have the plan's {self.plan.sampling.dataset_size} rows, got {count}. "
                "Influence depends on N: make a plan for as many rows as the public data have"
            )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one seed says.

    Args:
        seed: of the initial weights, the batches and the noise.
        at: steps whose noise was changed, from 1, ascending.
        base: final loss of the training as planned.
        slopes: at each of these steps, the change of the final loss for one unit of z_t^2.
    """

    seed: int
    at: tuple[int, ...]
    base: float
    slopes: tuple[float, ...]


def measure(
    course: Course,
    at: Sequence[int],
    *,
    seed: int,
    low: float = LOW,
    high: float = HIGH,
    tick: Tick | None = None,
) -> Measured:
    """Train once as planned, and again from each step of ``at`` with that step's noise changed.

    With f(a) the final loss when the noise of step t is a times what it was, everything else, the other steps' noise
    included, as before::

        slope_t = { [f(sqrt h) + f(-sqrt h)] - [f(sqrt l) + f(-sqrt l)] } / (2 (h - l) z_t^2)

    In the mean over the noise f(a) depends on a^2 only, so slope_t estimates q_t, the difference quotient of the
    expected final loss in z_t^2 between l z_t^2 and h z_t^2 (its derivative, where the loss is quadratic). Taking both
    signs removes what is odd in the noise, which has the mean zero and most of the variance.

    Trainings that are equal up to step t are not repeated: each branch starts from what is kept of the planned one
    (weights, optimiser, learning rate, random streams), to the last bit as if it had been trained from the start.

    Args:
        course: what is trained, on public data.
        at: steps, from 1 to the plan's last, ascending.
        seed: whole number >= 0.
        low: factor l >= 0 of the variance.
        high: factor h > l of the variance.
        tick: called with the number of steps taken since its last call.

    Raises:
        InvalidValue: steps that the plan has not, or factors in the wrong order; a plan without noise at such a step.

    >>> import decrescendo as dc
    >>> plan = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(20, 20), steps=3,
    ...                     privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0))
    >>> pull = lambda model, batch: (model.weight - batch).square().sum(dim=1) / 2
    >>> course = Course(lambda seed: nn.Linear(4, 1, bias=False), pull, torch.zeros(20, 4), plan,
    ...                 lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    ...                 lambda model: float(model.weight.detach().square().sum()) / 2)
    >>> first, last = measure(course, [1, 3], seed=0).slopes
    >>> 0 < first < last
    True
    """
    plan = course.plan
    steps = [int(step) for step in at]
    if not steps or steps != sorted(set(steps)) or steps[0] < 1 or steps[-1] > plan.steps:
        raise InvalidValue(f"at must be steps of 1 .. {plan.steps}, each once and ascending, got {steps}")
    below = check_real("low", low, at_least=0)
    above = check_real("high", high, above=below)
    noise = plan.noise_multiplier
    if not all(noise[step - 1] > 0 for step in steps):
        raise InvalidValue("the plan must have noise where it is to be changed, got noise_multiplier=0 there")
    runner = _Runner(course, seed, tick)
    kept: dict[int, _State] = {}
    for step in range(1, plan.steps + 1):
        if step in set(steps):
            kept[step] = runner.state()
        runner.step(step)
    base = runner.score()
    slopes: list[float] = []
    for step in steps:

        def final(factor: float, step: int = step) -> float:
            if factor == 1.0:
                return base
            runner.restore(kept[step])
            runner.step(step, factor)
            for later in range(step + 1, plan.steps + 1):
                runner.step(later)
            return runner.score()

        def even(variance: float, final: Callable[[float], float] = final) -> float:
            root = math.sqrt(variance)
            return final(0.0) if root == 0 else (final(root) + final(-root)) / 2

        slopes.append((even(above) - even(below)) / ((above - below) * float(noise[step - 1]) ** 2))
    return Measured(runner.seed, tuple(steps), base, tuple(slopes))


def spread(steps: int, points: int) -> tuple[int, ...]:
    """So many of 1 .. ``steps``, closest at the end: there the influence changes fastest and branches are short.

    >>> spread(100, 6)
    (1, 37, 64, 84, 96, 100)
    """
    total = check_integer("steps", steps, at_least=1)
    back = np.linspace(1.0, 0.0, check_integer("points", points, at_least=2)) ** 2
    return tuple(sorted({round(float(step)) for step in total - back * (total - 1)}))


def work(steps: int, at: Sequence[int], low: float = LOW) -> int:
    """How many steps `measure` takes for one seed: the planned training, and its branches from each step of ``at``.

    >>> work(100, (1, 100))
    403
    """
    branches = (1 if low == 0 else 2) + 2
    return steps + sum(branches * (steps - step + 1) for step in at)


@dataclass(frozen=True, slots=True)
class _State:
    """All that the rest of a training depends on."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None
    sampling: Mapping[str, Any]
    noise: int
    masks: Mapping[str, Any]


class _Runner:
    """One training, step by step, with a way back."""

    def __init__(self, course: Course, seed: int, tick: Tick | None) -> None:
        streams = Streams(seed)
        self.seed = streams.seed
        self._course, self._tick = course, tick
        self._model = course.build(self.seed)
        self._optimizer = course.optimizer(self._model)
        self._scheduler = None if course.scheduler is None else course.scheduler(self._optimizer)
        self._masks = streams.numpy("model")
        self._engine = Engine(self._model, course.loss, seeds=Seeds(self._masks))
        self._table: Rows = rows(course.data)
        self._device = next(part for part in self._model.parameters() if part.requires_grad).device
        self._sampling = streams.numpy("sampling")
        self._noise = streams.keyed("noise")

    def step(self, number: int, factor: float = 1.0) -> None:
        """Step ``number`` of the plan, its noise times ``factor``."""
        plan = self._course.plan
        sampling = plan.sampling.at(number - 1)
        if not isinstance(sampling, PoissonSampling):
            raise InvalidValue(f"influence is measured of Poisson batches, got {sampling}")
        (chosen,) = sampling.batches(1, self._sampling)
        batch = None
        if len(chosen):
            batch = _moved(self._table.take(chosen), self._device)
        clipped = self._engine.clipped_sum(batch, float(plan.clip_norm[number - 1]))
        noisy = self._noised(clipped, float(plan.noise_multiplier[number - 1]), factor, sampling)
        apply(noisy, self._model, self._optimizer)
        if self._scheduler is not None:
            self._scheduler.step()
        if self._tick is not None:
            self._tick(1)

    def _noised(self, clipped: ClippedSum, z: float, factor: float, sampling: PoissonSampling) -> NoisyMean:
        """Whatever the factor, the stream of noise goes on from the same place."""
        noisy = privatise(clipped, z * (abs(factor) or 1.0), sampling, self._noise)
        if factor > 0:
            return noisy
        clean = privatise(clipped, 0.0, sampling, self._noise)
        if factor == 0:
            return clean
        mirrored = {name: 2 * value - noisy.gradients[name].to(value) for name, value in clean.gradients.items()}
        return NoisyMean(mirrored, noisy.release, noisy.noise_std)

    def score(self) -> float:
        return float(self._course.score(self._model))

    def state(self) -> _State:
        return _State(
            {name: value.detach().clone() for name, value in self._model.state_dict().items()},
            copy.deepcopy(self._optimizer.state_dict()),
            None if self._scheduler is None else copy.deepcopy(self._scheduler.state_dict()),
            copy.deepcopy(self._sampling.bit_generator.state),
            self._noise.position,
            copy.deepcopy(self._masks.bit_generator.state),
        )

    def restore(self, state: _State) -> None:
        self._model.load_state_dict(state.model)
        # Loading takes some of what it is given and not a copy of it.
        self._optimizer.load_state_dict(copy.deepcopy(state.optimizer))
        if self._scheduler is not None and state.scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state.scheduler))
        self._sampling.bit_generator.state = copy.deepcopy(state.sampling)
        self._noise = Keystream(self._noise.key, state.noise)
        self._masks.bit_generator.state = copy.deepcopy(state.masks)


def _moved(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    return tuple(_moved(part, device) for part in batch)
