"""Averages of the weights over the steps of a run, by torch's own `AveragedModel`: post-processing, without cost."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from decrescendo.errors import check_instance, check_integer, check_real


@runtime_checkable
class HasStep(Protocol):
    """What a callback is given: at least the number of steps taken."""

    @property
    def step(self) -> int:
        """Steps taken, from 1."""
        ...


def averaged(model: nn.Module, *, decay: float | None = None) -> AveragedModel:
    """A second model that will hold an average of ``model``'s weights; its first update copies them.

    Args:
        model: copied, never changed.
        decay: d in (0, 1) for the exponential average a_t = d a_{t-1} + (1 - d) w_t; ``None`` for the uniform average
            of all updates.

    Returns:
        torch's ``AveragedModel``; the copy to evaluate and to save, with the model's own names, is its ``module``.

    Guarantee:
        post-processing of the released weights: it costs no privacy. Buffers are the model's latest.

    Raises:
        InvalidType: no module. InvalidValue: a decay outside (0, 1).

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = averaged(model, decay=0.9)
    >>> for weight in (1.0, 2.0):
    ...     _ = model.weight.data.fill_(weight)
    ...     average.update_parameters(model)
    >>> round(average.module.weight.item(), 6)
    1.1
    """
    check_instance("model", model, nn.Module)
    if decay is None:
        return AveragedModel(model)
    return AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(check_real("decay", decay, above=0, below=1))
    )


def following(average: AveragedModel, model: nn.Module, *, start: int = 1) -> Callable[[HasStep], None]:
    """A callback for `decrescendo.training.train` that updates ``average`` after every step from ``start`` on.

    Args:
        average: from `averaged`; before step ``start`` it holds the weights that it was made with.
        model: the model that is trained.
        start: the first step whose weights count, >= 1; for the average of a run's tail.

    >>> from types import SimpleNamespace
    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = averaged(model)
    >>> update = following(average, model, start=3)
    >>> for step in range(1, 6):
    ...     _ = model.weight.data.fill_(step)
    ...     update(SimpleNamespace(step=step))
    >>> average.module.weight.item(), int(average.n_averaged)  # of 3, 4, 5
    (4.0, 3)
    """
    check_instance("average", average, AveragedModel)
    check_instance("model", model, nn.Module)
    first = check_integer("start", start, at_least=1)

    def update(progress: HasStep) -> None:
        if progress.step >= first:
            average.update_parameters(model)

    return update
