"""Checkpoints, tensors saved on the CPU, hooks of modules and the CTC loss: what torch calls by itself is taken."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

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


def test_a_checkpoint_that_keeps_listed_operations_is_proven() -> None:
    kept: Any = [torch.ops.aten.addmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts).tanh().square().mean(1)

    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(6, 4)
    engine = Engine(model, loss)
    found, expected = (made.clipped_sum(x, 0.5).gradients for made in (engine, Reference(model, loss)))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    assert engine.assumptions == ()
