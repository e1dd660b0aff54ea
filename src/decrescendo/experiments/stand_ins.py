"""Public data that stand in for a task's own while settings are searched: nothing here touches the private data."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from decrescendo.data import Dataset, fashion_mnist, mnist
from decrescendo.errors import InvalidValue
from decrescendo.experiments.tasks import Task

# Rows of a stand-in that are scored in place of a test set.
SCORED = 10_000


@dataclass(frozen=True, slots=True)
class StandIn:
    """Public data for some task.

    Args:
        name: as the command line says it.
        load: fetches it.
        tasks: for which tasks it has the right shape.
        what: in words.
    """

    name: str
    load: Callable[[], Dataset]
    tasks: tuple[str, ...]
    what: str


STAND_INS: dict[str, StandIn] = {
    stand_in.name: stand_in
    for stand_in in (
        StandIn(
            "fashion-mnist", fashion_mnist, ("mnist",), "Fashion-MNIST's training images, declared public"
        ),
        StandIn("mnist", mnist, ("fashion-mnist",), "MNIST's training images, declared public"),
    )
}


def find_stand_in(name: str, task: Task) -> StandIn:
    """The stand-in called ``name``, which must be one for ``task``; nothing is loaded.

    Raises:
        InvalidValue: an unknown stand-in, or one of another shape than the task's data.
    """
    known = STAND_INS.get(name)
    if known is None or task.name not in known.tasks:
        fitting = [item.name for item in STAND_INS.values() if task.name in item.tasks]
        raise InvalidValue(
            f"stand_in for {task.name} must be one of {', '.join(fitting) or 'none so far'}, got stand_in={name!r}"
        )
    return known


def load_stand_in(name: str, task: Task) -> Dataset:
    """The stand-in with as many training rows as ``task`` has, and a part of its own kept for scores.

    The last rows are scored; the others are repeated in order until there are as many as in the task, so that sample
    rate, steps and noise are those of the task. The stand-in's own test set is not touched.

    Raises:
        InvalidValue: an unknown stand-in, or one of another shape than the task's data.
    """
    data = find_stand_in(name, task).load()
    scored = min(SCORED, len(data) // 5)
    train = len(data) - scored
    chosen = torch.arange(task.rows) % train
    return replace(
        data,
        name=f"{name} for {task.name}",
        train_inputs=data.train_inputs[:train][chosen],
        train_targets=data.train_targets[:train][chosen],
        test_inputs=data.train_inputs[train:],
        test_targets=data.train_targets[train:],
    )
