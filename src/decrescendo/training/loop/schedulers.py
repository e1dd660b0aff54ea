"""The learning-rate scheduler of a run; detects optimiser settings changed by anything else."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim.several import parts_of
from decrescendo.training.loop.optimizers import inner

# A scheduler, or a function that makes one for the optimiser.
Scheduler: TypeAlias = LRScheduler | Callable[[torch.optim.Optimizer], LRScheduler]
# The settings of each parameter group of an optimiser.
Settings: TypeAlias = list[dict[str, Any]]


def scheduler_of(scheduler: object, optimizer: torch.optim.Optimizer, steps: int | None = None) -> LRScheduler | None:
    """``scheduler``, or what it makes if it is a function of the optimiser; ``None`` for ``None``. Warns of a cosine
    that ends, and rises again, before the ``steps`` of the run do.

    Raises:
        InvalidType: no scheduler of torch's, and no function that returns one.
        InvalidValue: a scheduler whose ``step`` needs a score, that sets the rates of another optimiser, or that has
            an end before that of the run.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> made = scheduler_of(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), optimizer)
    >>> made.get_last_lr()
    [1.0]
    >>> scheduler_of(ReduceLROnPlateau(optimizer), optimizer)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: scheduler must set the rate by the number of steps, got ReduceLROnPlateau, ...
    """
    if scheduler is None:
        return None
    is_function = not isinstance(scheduler, LRScheduler) and callable(scheduler)
    made: object = scheduler(optimizer) if is_function else scheduler
    if not isinstance(made, LRScheduler):
        raise InvalidType(
            "scheduler must be a torch.optim.lr_scheduler.LRScheduler, or a function that makes one of the optimizer, "
            f"got {type(made).__name__}{' from the function' if is_function else ''}. Step one of another kind in a "
            "callback; the run then lists that the rates were set by other code"
        )
    if goes_by_scores(made):
        raise InvalidValue(
            f"scheduler must set the rate by the number of steps, got {type(made).__name__}, which sets it by scores: "
            "scores of private data have no noise, and the rate would carry them into the weights. Take one that goes "
            "by steps (CosineAnnealingLR, OneCycleLR, LambdaLR)"
        )
    held = {id(inner(part)) for part in (optimizer, *parts_of(inner(optimizer)))}
    if id(inner(cast("Any", made).optimizer)) not in held:
        raise InvalidValue(
            "scheduler must set the rates of the optimizer that trains, got one made for another optimizer: the rates "
            "would stay as they are. Make it of the same optimizer, or give a function of the optimizer"
        )
    if steps is not None:
        _check_length(made, steps)
    return made


def _check_length(scheduler: LRScheduler, steps: int) -> None:
    """Numbers of epochs where numbers of steps are meant, by a scheduler that has not taken a step yet."""
    name = type(scheduler).__name__
    if not isinstance(scheduler, OneCycleLR | CosineAnnealingLR) or scheduler.last_epoch:
        return
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
        raise InvalidValue(
            f"scheduler must last for the {steps} steps of the run, got {name} with total_steps="
            f"{scheduler.total_steps}: it is stepped once a step, not once an epoch. Give total_steps={steps}"
        )
    if isinstance(scheduler, CosineAnnealingLR) and scheduler.T_max < steps:
        warnings.warn(
            f"{name} reaches its end after T_max={scheduler.T_max} of the run's {steps} steps, and then rises again: "
            f"it is stepped once a step, not once an epoch. T_max={steps} ends with the run",
            UserWarning, stacklevel=2,
        )  # fmt: skip


def goes_by_scores(scheduler: LRScheduler) -> bool:
    """Whether a scheduler's ``step`` needs a score. (Torch's composite schedulers accept none of these.)

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> goes_by_scores(ReduceLROnPlateau(optimizer))
    True
    >>> goes_by_scores(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    False
    """
    asked = inspect.signature(scheduler.step).parameters.values()
    return isinstance(scheduler, ReduceLROnPlateau) or any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in asked
    )


def assumed_of_scheduler(scheduler: LRScheduler | None) -> tuple[Assumption, ...]:
    """What is assumed about a user-defined scheduler; nothing for classes of torch and Transformers."""
    kind = type(scheduler)
    if scheduler is None or kind.__module__.split(".")[0] in ("torch", "transformers"):
        return ()
    return (assumed("own-scheduler", kind.__name__),)


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The numeric settings of each parameter group, and its number of parameters."""
    return [
        {key: len(value) if key == "params" else _plain(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


# What a scheduler's own steps move.
_COUNTERS = (
    "last_epoch",
    "_step_count",
    "_last_lr",
    "T_cur",
    "T_i",
    "_get_lr_called_within_step",
    "_is_initial",
)


def state_of(scheduler: object, *, counters: bool = True) -> str:
    """All that a scheduler holds, to see whether it is as its last step left it; or all but what its steps move."""
    if not isinstance(scheduler, LRScheduler):
        return repr(scheduler)
    held = {name: value for name, value in vars(scheduler).items() if name != "optimizer" and not callable(value)}
    parts = [
        (name, [state_of(one, counters=counters) for one in value] if name == "_schedulers" else repr(value))
        for name, value in sorted(held.items())
        if counters or name not in _COUNTERS
    ]
    return repr(parts)


def steps_of(scheduler: LRScheduler | None) -> int:
    """How many steps a scheduler has taken; of one that chains others, the first of these."""
    chained = cast("Any", getattr(scheduler, "_schedulers", None))
    return int(getattr(scheduler, "last_epoch", None) or (steps_of(chained[0]) if chained else 0))


def set_by_scheduler(scheduler: LRScheduler, optimizer: torch.optim.Optimizer, before: Settings, now: Settings) -> bool:
    """Whether ``before`` and ``now`` differ only in what a scheduler sets, and the learning rates are those that it
    set last.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    >>> before, _ = settings_of(optimizer), optimizer.step()
    >>> scheduler.step()
    >>> set_by_scheduler(scheduler, optimizer, before, settings_of(optimizer))
    True
    >>> optimizer.param_groups[0]["lr"] = 0.1
    >>> set_by_scheduler(scheduler, optimizer, before, settings_of(optimizer))
    False
    """
    own = cast("Any", scheduler).optimizer.param_groups
    if [_plain(group["lr"]) for group in own] != _plain(list(scheduler.get_last_lr())):
        return False
    moved = {"lr", "initial_lr"} | ({"momentum", "betas"} if getattr(scheduler, "cycle_momentum", False) else set())
    ids = set(map(id, own))
    for group, old, new in zip(optimizer.param_groups, before, now, strict=True):
        skipped = moved if id(group) in ids else set[str]()
        if {key: old[key] for key in old if key not in skipped} != {key: new[key] for key in new if key not in skipped}:
            return False
    return True


def _plain(value: Any) -> Any:
    """Tensors (also in tuples, like betas) as numbers, because tensors can be written to in place."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value
