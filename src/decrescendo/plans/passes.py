"""Translates a plan's arguments: expected passes over the data to steps, a share of delta to a largest batch size."""

import math
from numbers import Real

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.overflow import smallest_cap
from decrescendo.errors import InvalidValue, check_real
from decrescendo.plans.curves import Curve, evaluate
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, RandomAllocation, Sampling
from decrescendo.plans.schedule import LARGEST_STEPS, check_steps


def steps_of(sampling: Sampling, steps: object, epochs: object, batch: CurveOrValues | None = None) -> int:
    """The number of steps: ``steps``, or those of ``epochs`` expected passes over the data; one of them is ``None``.

    >>> from decrescendo.plans.curves import linear
    >>> steps_of(PoissonSampling(1_000, 100), None, 2.5)
    25
    >>> steps_of(PoissonSampling(1_000, 100), None, 3, batch=linear(100, 300))
    15
    """
    if (steps is None) == (epochs is None):
        given = "neither" if steps is None else "both"
        raise InvalidValue(f"exactly one of steps and epochs must be given, got {given}")
    if epochs is None:
        return _of_whole_epochs(sampling, check_steps(steps))
    if isinstance(sampling, RandomAllocation):
        whole = check_real("epochs", epochs, above=0)
        if whole != round(whole):
            raise InvalidValue(
                "epochs must be a whole number where each record takes part once an epoch, got "
                f"epochs={whole:g}. Take {math.ceil(whole)}"
            )
        return check_steps(round(whole) * sampling.steps_per_epoch)
    if isinstance(sampling, BatchSchedule) or not (batch is None or callable(batch) or isinstance(batch, Real)):
        raise InvalidValue(
            "epochs must be given with one batch size or a curve of them, got an array, which has a value for each "
            "step. Give steps, their number"
        )
    size, count = sampling.dataset_size, 100
    for _ in range(20 if callable(batch) else 1):
        sizes = sampling.sizes(1) if batch is None else evaluate("batch", batch, count)
        each = float(sizes.mean()) / size
        hint = f"A schedule has a value for each step, and at most {LARGEST_STEPS:,}"
        passes = check_real("epochs", epochs, above=0, at_most=LARGEST_STEPS * each, hint=hint)
        count, before = max(1, round(passes / each)), count
        if count == before:
            break
    return count


def _of_whole_epochs(sampling: Sampling, steps: int) -> int:
    """``steps``, or an error where each record takes part once an epoch and the last epoch is cut."""
    if isinstance(sampling, RandomAllocation) and steps % sampling.steps_per_epoch:
        raise InvalidValue(
            f"steps must be of whole epochs of {sampling.steps_per_epoch} steps, got steps={steps}. The theorem is "
            f"for epochs in which every record takes part: take {sampling.whole(steps)}"
        )
    return steps


def usual_cap(sampling: PoissonSampling, steps: int, budget: Budget, batch: Curve | None = None) -> int | None:
    """The ``max_batch_size`` that costs 1 % of a budget's delta; ``None`` if no batch would be truncated.

    Args:
        batch: curve of expected batch sizes, if they move.

    >>> usual_cap(PoissonSampling(60_000, 250), 500, Budget(1.2, 1e-6))
    347
    """
    sizes = sampling.sizes(steps) if batch is None else evaluate("batch", batch, steps)
    drawn = Ledger.of(sizes, sizes / sampling.dataset_size)  # any noise: it is not used
    found = smallest_cap(drawn, sampling.dataset_size, budget.epsilon, budget.delta)
    return None if found > sampling.dataset_size else found
