"""The papers' tasks as the library's command line takes them: ``decrescendo train decrescendo_papers.tasks:mnist``."""

import functools

from torch import nn

from decrescendo.training import Task, accuracy, cross_entropy
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments.tasks import PAPER, TASKS, find_task


@functools.cache
def _loaded(name: str) -> Dataset:
    """Once a process: other processes are given the name, and load by themselves."""
    return find_task(name).load()


def as_task(name: str, half: int | None = None) -> Task:
    """The paper's task called ``name``, with the paper's model and settings; nothing is loaded before it is needed.

    ``half``: of the public test rows only those at even places (0) or at odd ones (1) are scored, so that what is
    chosen on one half can be reported on the other.

    >>> as_task("mnist").count, as_task("mnist").expected_batch
    (60000, 250)
    """
    known = find_task(name)

    def build(seed: int) -> nn.Module:
        return known.build(PAPER, seed)

    def score(model: nn.Module) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, *_loaded(name).test)}

    def score_half(model: nn.Module) -> dict[str, float]:
        inputs, targets = _loaded(name).test
        return {"test_accuracy": accuracy(model, inputs[half::2], targets[half::2])}

    return Task(
        model=build, loss=cross_entropy, data=lambda: _loaded(name).train, rows=known.rows,
        score=score if half is None else score_half, batch=known.batch, epochs=known.epochs, clip=known.clip,
        optimizer=known.optimizer, learning_rate=known.learning_rate,
    )  # fmt: skip


def __getattr__(name: str) -> functools.partial[Task]:
    if (known := name.replace("_", "-")) in TASKS:
        return functools.partial(as_task, known)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
