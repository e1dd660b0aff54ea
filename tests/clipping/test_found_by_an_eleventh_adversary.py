"""What an eleventh adversary found: what autograd shows of sizes and saved tensors, and state that C code keeps."""

import collections
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, Reference

Pair = tuple[Tensor, ...]
SIZES = (2, 5, 12)
C = 0.01


def saved(model: nn.Module, x: Tensor) -> Tensor:
    with save_on_cpu():
        return model(x).tanh().square().mean(1)


def recomputed(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(model, x, use_reentrant=False).tanh().square().mean(1)


@pytest.mark.parametrize("loss", [saved, recomputed])
@pytest.mark.parametrize("rows", SIZES)
def test_torchs_own_hooks_are_taken(loss: Any, rows: int) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(rows, 4)
    found, expected = (made(model, loss).clipped_sum(x, 0.5).gradients for made in (Engine, Reference))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


def ctc(model: nn.Module, batch: Pair) -> Tensor:
    x, lengths, targets = batch
    p = model(x).log_softmax(-1).transpose(0, 1)
    whole = torch.full((len(x),), x.shape[1])
    return functional.ctc_loss(p, targets, whole, lengths, reduction="none")


@pytest.mark.parametrize("rows", SIZES)
def test_ctc_losses_with_targets_of_any_length_are_exact(rows: int) -> None:
    lengths = torch.ones(rows, dtype=torch.long)
    lengths[0] = 3
    batch = torch.randn(rows, 6, 4), lengths, torch.ones(rows, 3, dtype=torch.long)
    model = nn.Linear(4, 5, bias=False)
    found, expected = (made(model, ctc).clipped_sum(batch, C).gradients for made in (Engine, Reference))
    torch.testing.assert_close(found["weight"], expected["weight"])


def test_hooks_on_modules_are_taken_where_data_select_rows() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), []
    handle = model[1].register_full_backward_hook(lambda *given: seen.append(len(given)))

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        x, mask = batch
        own = torch.arange(len(x))[:, None].expand(mask.shape)[mask]
        return torch.zeros(len(x)).index_add(0, own, model(x[mask]).square().sum(1))

    batch = torch.randn(5, 3, 4), torch.tensor([[True, False, True]] * 5)
    found = Engine(model, loss).clipped_sum(batch, 0.5).gradients
    handle.remove()
    expected = Reference(model, loss).clipped_sum(batch, 0.5).gradients
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    assert seen


def cached() -> Callable[[], int]:
    @functools.lru_cache(None)
    def kept(key: int) -> int:
        return key

    def count() -> int:
        kept(kept.cache_info().currsize)
        return kept.cache_info().currsize

    return count


def in_memory() -> Callable[[], int]:
    file = io.BytesIO()
    return lambda: file.write(b"x") and file.tell()


def as_text() -> Callable[[], int]:
    file = io.StringIO()
    return lambda: file.write("x") and file.tell()


def reseeded() -> Callable[[], int]:
    generator = torch.Generator().manual_seed(0)
    return lambda: generator.manual_seed(generator.initial_seed() + 1).initial_seed()


def drawn() -> Callable[[], int]:
    state = np.random.RandomState(0)

    def count() -> int:
        state.random_sample()
        return int(state.get_state(legacy=True)[2]) // 2 % 312  # type: ignore[index]

    return count


def bits() -> Callable[[], int]:
    source, left = np.random.PCG64(0), [np.random.PCG64(0).jumped(0).state["state"]["state"]]

    def count() -> int:
        source.random_raw()
        step = np.random.PCG64(0)
        for made in range(1, 100):
            step.random_raw()
            if step.state == source.state:
                return made
        return len(left)

    return count


def flat() -> Callable[[], int]:
    entries = np.arange(30_000).flat
    return lambda: int(next(entries))


def queued() -> Callable[[], int]:
    entries = iter(collections.deque(range(30_000)))
    return lambda: next(entries)


@pytest.mark.parametrize("make", some([cached, in_memory, as_text, reseeded, drawn, bits, flat, queued], 4))
def test_state_that_c_code_keeps_is_said_where_a_program_becomes_another(make: Any) -> None:
    """One record more in one step, or none, is one pass more, or none: 24 C fifteen steps later."""

    def assumed(limit: float) -> tuple[str, ...]:
        count = make()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(x)[:, 0] * (1.0 if count() < limit else -1.0)

        engine = Engine(nn.Linear(4, 1, bias=False), loss)
        for _ in range(20):
            engine.clipped_sum(torch.ones(4, 4), C)
        return engine.assumptions

    assert any("is kept in" in line for line in assumed(15))
    assert assumed(10_000) == ()


def test_a_closed_file_is_no_error() -> None:
    file = io.BytesIO()
    file.close()

    def entries() -> Iterator[object]:
        yield file

    model = nn.Linear(4, 1)
    model.kept = list(entries())
    Engine(model, lambda model, x: model(x)[:, 0]).clipped_sum(torch.ones(4, 4), C)
