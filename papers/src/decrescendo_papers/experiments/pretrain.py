"""Weights to start from that were trained on public data.

The guarantee of a private run stays as it is. It is about the noisy means that the run publishes, holds for every
initial weight vector that does not depend on the private data, and these do not: they are a function of the task's
name, of public rows and of the seed. No private row is opened here, and nothing is chosen by looking at one. (A
stand-in is public because somebody declared it so; a guarantee for people whose rows are in it is not given.)
"""

import functools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo import Streams
from decrescendo.training import accuracy, cross_entropy
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import check_untested, find_stand_in, public_rows
from decrescendo_papers.experiments.tasks import find_task

# Fixed, so that there is nothing to search: usual values, the same for every stand-in.
RATE, BATCH = 1e-3, 250
EPOCHS_IMAGES, EPOCHS_OTHERS = 5, 10


def check_start(spec: Spec) -> None:
    """Refuse a start that the run may not have; nothing is loaded.

    Raises:
        InvalidValue: an unknown stand-in, one of another shape than the task's data, or one with rows that the run
            is tested on.
    """
    task = find_task(spec.task)
    known = find_stand_in(spec.start, task, "start")
    if not spec.stand_in:
        check_untested(known, task, "start")


def load_pretrained(model: nn.Module, spec: Spec) -> None:
    """Give ``model``, fresh from the task of ``spec``, the weights that its start stands for.

    Raises:
        InvalidValue: as `check_start` does.
    """
    check_start(spec)
    model.load_state_dict(pretrained(spec.task, spec.model, spec.start, spec.seed))


@functools.lru_cache(maxsize=8)
def pretrained(task: str, model: str, start: str, seed: int) -> Mapping[str, Tensor]:
    """Weights of the task's model after Adam at 1e-3, batches of 250, on the stand-in ``start`` without its scored
    rows: 5 passes over images, 10 over anything else. On the CPU; kept in this process, to be copied, not changed.

    Initial weights are those of a run with this ``seed``, and so differ from seed to seed, as does the order of rows.
    The same arguments give the same weights on one machine with the same number of threads.

    Args:
        task: a key of `experiments.tasks.TASKS`; only its models are used, not its data.
        model: a key of the task's models.
        start: a stand-in for the task.
        seed: whole number >= 0.

    Raises:
        InvalidValue: an unknown task, model or stand-in, or one of another shape than the task's data.
    """
    known = find_task(task)
    network = known.build(model, seed)
    if known.images:  # as in `perform`: the same function, faster pooling
        cast("Any", network).to(memory_format=torch.channels_last)
    data = _rows(task, start)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    # A seed of its own, public whatever the run's is worth: derived by SHA-256, under a purpose that no run reads.
    order = Streams(seed).torch("pretraining")
    for _ in range(EPOCHS_IMAGES if known.images else EPOCHS_OTHERS):
        for chosen in torch.randperm(len(data), generator=order).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(network, data.batch(chosen)).mean().backward()
            optimizer.step()
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def start_accuracy(task: str, model: str, start: str, seed: int) -> float:
    """Accuracy of `pretrained` weights on the stand-in's own scored rows."""
    network = find_task(task).build(model, seed)
    network.load_state_dict(pretrained(task, model, start, seed))
    return accuracy(network, *_rows(task, start).test)


@functools.lru_cache(maxsize=1)
def _rows(task: str, start: str) -> Dataset:
    return public_rows(start, find_task(task))
