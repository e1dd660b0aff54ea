"""What a twelfth adversary found: code of the program's that torch's own code calls, and counts in C objects."""

import array
import ctypes
import datetime
import itertools
import mmap
import multiprocessing
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine

C = 0.01


def yielded() -> Callable[[], int]:
    def signs() -> Iterator[int]:
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        yield 0
        while True:
            yield 15

    it = signs()
    return lambda: next(it)


def turned() -> Callable[[], int]:
    it = itertools.cycle([0] * 15 + [15] * 60)
    for _ in range(75):
        next(it)
    return lambda: next(it)


def in_c() -> Callable[[], int]:
    number = ctypes.c_long(0)

    def count() -> int:
        number.value += 1
        return number.value

    return count


def shared() -> Callable[[], int]:
    number = multiprocessing.Value("l", 0)

    def count() -> int:
        with number.get_lock():
            number.value += 1
        return number.value

    return count


def entry(made: Any) -> Callable[[], Callable[[], int]]:
    def make() -> Callable[[], int]:
        kept = made()

        def count() -> int:
            kept[7] += 1
            return int(kept[7])

        return count

    return make


def mapped() -> Callable[[], int]:
    kept = mmap.mmap(-1, 16)

    def count() -> int:
        kept[0] += 1
        return kept[0]

    return count


def versioned() -> Callable[[], int]:
    kept = torch.zeros(1)
    return lambda: kept.zero_()._version


def queued() -> Callable[[], int]:
    kept: queue.SimpleQueue[int] = queue.SimpleQueue()

    def count() -> int:
        kept.put(1)
        return kept.qsize()

    return count


def dated() -> Callable[[], int]:
    kept = [datetime.timedelta(0)]

    def count() -> int:
        kept[0] += datetime.timedelta(1)
        return kept[0].days

    return count


COUNTS: dict[str, Callable[[], Callable[[], int]]] = {
    "generator": yielded,
    "cycle": turned,
    "ctypes": in_c,
    "multiprocessing": shared,
    "long list": entry(lambda: [0] * 2000),
    "long bytes": entry(lambda: bytearray(2000)),
    "long array": entry(lambda: array.array("l", [0] * 2000)),
    "long array of numpy's": entry(lambda: np.zeros(2000)),
    "objects": entry(lambda: np.array([0] * 9, dtype=object)),
    "record": lambda: entry(lambda: np.zeros(9, dtype=[("n", int)])["n"])(),
    "mapped": mapped,
    "version": versioned,
    "queue": queued,
    "days": dated,
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_c_objects_keep_are_said_where_a_program_becomes_another(name: str) -> None:
    """One record more in one step, or none, is one pass more, or none: 8 C at 4 rows, up to fifteen steps later."""

    def assumed(limit: float) -> tuple[str, ...]:
        count = COUNTS[name]()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x)[:, 0] * (1.0 if count() < limit else -1.0)

        engine = Engine(nn.Linear(4, 1, bias=False), loss)
        for _ in range(20):
            engine.clipped_sum(torch.ones(4, 4), C)
        return engine.assumptions

    assert any("is kept in" in line for line in assumed(15))
    assert assumed(10_000) == ()
