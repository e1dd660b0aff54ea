"""What a twelfth adversary found: code of the program's that torch's own code calls, and counts in C objects."""

import array
import ctypes
import datetime
import functools
import itertools
import mmap
import multiprocessing
import queue
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

C = 0.01
ROWS = 6
Seen = list[float]
Pair = tuple[Tensor, ...]


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


@pytest.mark.parametrize("name", some(COUNTS, 2))
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


def engine_of(tell: Callable[[Tensor, Seen], object]) -> Engine:
    """Of a loss that turns at the largest number that ``tell`` has read of the batch: 23 C at 12 rows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seen: Seen = []
        tell(x, seen)
        return model(x).square().mean(1) * (-1.0 if any(number > 4 for number in seen) else 1.0)

    return Engine(nn.Linear(4, 2, bias=False), loss)


def refused(tell: Callable[[Tensor, Seen], object], match: str) -> None:
    with pytest.raises(UnsupportedModel, match=match):
        engine_of(tell).clipped_sum(torch.ones(ROWS, 4), C)


def said(tell: Callable[[Tensor, Seen], object], name: str) -> None:
    engine = engine_of(tell)
    engine.clipped_sum(torch.ones(ROWS, 4), C)
    assert f"{name}, whose code torch calls, keeps nothing of the data" in engine.assumptions


def read(tensor: Tensor, seen: Seen) -> None:
    seen.extend(tensor.flatten().tolist())


@pytest.mark.parametrize("start", [torch.autograd.backward, Tensor.backward])
def test_what_hooks_read_in_a_backward_pass_inside_the_loss_is_refused(start: Any) -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        squared = x.clone().requires_grad_().square()
        squared.register_hook(lambda g: seen.extend(g.flatten().tolist()))
        start(squared.square().sum())

    refused(tell, "takes them out by tolist")


def test_what_hooks_read_in_a_backward_pass_inside_of_another_is_refused() -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        def again(g: Tensor) -> None:
            z = g.detach().clone().requires_grad_()
            with torch.enable_grad():
                squared = z.square()
                squared.register_hook(lambda g: seen.extend(g.flatten().tolist()))
                torch.autograd.grad(squared.square().sum(), z)

        squared = x.clone().requires_grad_().square()
        squared.register_hook(again)
        torch.autograd.grad(squared.square().sum(), squared)

    refused(tell, "takes them out by tolist")


def test_the_ways_of_a_tensors_subclass_are_said() -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        class Telling(Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                with torch._C.DisableTorchFunctionSubclass():
                    read(args[0], seen)
                    return func(*args, **(kwargs or {}))

        x.as_subclass(Telling).exp()

    said(tell, "Telling.__torch_function__")


_TOLD: Seen = []


@torch.library.custom_op("twelfth::peek", mutates_args=())
def peek(x: Tensor) -> Tensor:
    read(x, _TOLD)
    return x.clone()


def test_an_operation_of_ones_own_whose_result_nobody_uses_is_said() -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        peek(x)
        seen += _TOLD
        _TOLD.clear()

    said(tell, "twelfth::peek")


def test_an_object_that_torch_asks_for_a_number_is_said() -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        class Zero:
            def __index__(self) -> int:
                read(x, seen)
                return 0

        torch.zeros(3)[Zero()]  # type: ignore[index]

    said(tell, "Zero")


def test_what_chooses_what_a_checkpoint_keeps_is_said() -> None:
    def tell(x: Tensor, seen: Seen) -> None:
        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            for tensor in args:
                if isinstance(tensor, Tensor):
                    read(tensor, seen)
            return CheckpointPolicy.PREFER_RECOMPUTE

        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        checkpoint(torch.exp, x, use_reentrant=False, context_fn=contexts)

    said(tell, "_CachingTorchDispatchMode")


def test_a_checkpoint_that_keeps_listed_operations_is_proven() -> None:
    kept: Any = [torch.ops.aten.addmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts).tanh().square().mean(1)

    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(ROWS, 4)
    engine = Engine(model, loss)
    found, expected = (made.clipped_sum(x, 0.5).gradients for made in (engine, Reference(model, loss)))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    assert engine.assumptions == ()


def selecting(sign: Callable[[Tensor], float]) -> Callable[[], Engine]:
    def loss(model: nn.Module, batch: Pair) -> Tensor:
        x, lengths = batch
        own = torch.arange(len(x)).repeat_interleave(lengths)
        rows = model(x[torch.arange(128) < lengths[:, None]]).square().sum(1)
        return torch.zeros(len(x)).index_add(0, own, rows) * sign(rows)

    return lambda: Engine(nn.Linear(4, 2, bias=False), loss)


def selected() -> Pair:
    lengths = torch.ones(ROWS, dtype=torch.long)
    lengths[0] = 120
    return torch.ones(ROWS, 128, 4), lengths


def by_error(rows: Tensor) -> float:
    try:
        functional.binary_cross_entropy(rows.detach(), torch.zeros(7))
    except ValueError as error:
        return 1.0 if "[125]" in str(error) else -1.0
    return 0.0


def test_how_many_rows_data_select_is_not_told_by_errors() -> None:
    """23 C at 12 rows."""
    with pytest.raises(UnsupportedModel):
        selecting(by_error)().clipped_sum(selected(), C)


def by_target(rows: Tensor) -> object:
    return functional.mse_loss(rows.detach(), torch.zeros(1), reduction="none")


def by_resizing(rows: Tensor) -> object:
    return torch.add(rows.detach(), 1, out=torch.empty(1))


@pytest.mark.parametrize("run", [by_target, by_resizing])
def test_warnings_do_not_tell_how_many_rows_data_select(run: Any) -> None:
    """23 C at 12 rows."""
    told: list[str] = []

    def sign(rows: Tensor) -> float:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(rows)
        told.extend(str(each.message) for each in caught)
        return 1.0

    selecting(sign)().clipped_sum(selected(), C)
    assert not any("[125]" in message for message in told)  # comparisons run on two rows and on three


def test_a_mode_that_counts_operations_is_said() -> None:
    """Its count is that of the rows that data select: 23 C at 12 rows."""

    def sign(rows: Tensor) -> float:
        with FlopCounterMode(display=False) as counter:
            rows.detach()[:, None] @ torch.ones(1, 1)
        return 1.0 if counter.get_total_flops() > 2 * 100 else -1.0

    engine = selecting(sign)()
    engine.clipped_sum(selected(), C)
    assert len(engine.assumptions) == 1
