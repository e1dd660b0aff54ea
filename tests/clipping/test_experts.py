"""Mixtures of experts as they are written in many places: each expert computes the rows that are sent to it."""

from collections.abc import Callable

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, Reference

WIDTH, LENGTH, EXPERTS = 6, 4, 3


def _mask(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    out[sent] = expert(flat[sent]) * weights[sent].unsqueeze(1)


def _mask_added(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    out[sent] += expert(flat[sent]) * weights[sent].unsqueeze(1)


def _if_any(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    if sent.any():
        _mask(out, flat, sent, expert, weights)


def _where(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    rows = torch.where(sent)[0]
    out[rows] = expert(flat[rows]) * weights[rows].unsqueeze(1)


def _where_added(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    rows = torch.where(sent)[0]
    out[rows] += expert(flat[rows]) * weights[rows].unsqueeze(1)


def _index_add(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    rows = sent.nonzero(as_tuple=True)[0]
    out.index_add_(0, rows, expert(flat[rows]) * weights[rows].unsqueeze(1))


def _selected(out: Tensor, flat: Tensor, sent: Tensor, expert: nn.Module, weights: Tensor) -> None:
    rows = sent.nonzero().squeeze(1)
    taken = expert(flat.index_select(0, rows)) * weights.index_select(0, rows).unsqueeze(1)
    out.index_copy_(0, rows, taken)


Send = Callable[[Tensor, Tensor, Tensor, nn.Module, Tensor], None]
WAYS: list[Send] = [_mask, _mask_added, _if_any, _where, _where_added, _index_add, _selected]


class Switch(nn.Module):
    """Each position is sent to one of three experts, which may get all of them, one, or none."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self.send, self.gate, self.head = send, nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.gate(flat).softmax(1).max(1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            self.send(out, flat, chosen == number, expert, weights)
        return self.head(out.view(x.shape).mean(1))


class TopTwo(nn.Module):
    """As Mixtral's are computed: each position goes to two experts, and comes back with a weight from each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.gate(flat).softmax(1).topk(2, dim=1)
        sent = functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rank, rows = torch.where(sent[number])
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, rank].unsqueeze(1))
        return self.head(out.view(x.shape).mean(1))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def check(model: nn.Module, seed: int) -> set[int]:
    """Batches of many sizes, one after the other, against the slow loop; how many rows experts got."""
    engine, got = Engine(model, loss), set[int]()
    generator = torch.Generator().manual_seed(seed)
    for count in (5, 2, 9, 1, 3):
        x = torch.randn(count, LENGTH, WIDTH, generator=generator)
        batch = (x, torch.randint(2, (count,), generator=generator))
        with torch.no_grad():
            chosen = model.gate(x.reshape(-1, WIDTH)).argmax(1)
        got |= set(torch.bincount(chosen, minlength=EXPERTS).tolist())
        found, expected = engine.clipped_sum(batch, 0.5), Reference(model, loss).clipped_sum(batch, 0.5)
        torch.testing.assert_close(dict(found.gradients), dict(expected.gradients), rtol=1e-4, atol=1e-5)
    assert not engine.assumptions
    return got


@pytest.mark.parametrize("send", some(WAYS, 1), ids=lambda send: send.__name__.strip("_"))
def test_a_switch_is_exact_whatever_an_expert_gets(send: Send) -> None:
    got = set[int]()
    for seed in range(3):
        torch.manual_seed(seed)
        got |= check(Switch(send), seed)
    assert {0, 1, 2} <= got


@pytest.mark.slow
def test_positions_that_go_to_two_experts() -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        check(TopTwo(), seed)
