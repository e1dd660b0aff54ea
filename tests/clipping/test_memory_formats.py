"""A batch may lie in memory in any order: the passes that are compared keep the order within a row, all the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.base.batches import copy_rows, memory_order
from decrescendo.clipping import Engine, EngineSettings, Reference

FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed rows": lambda x: x.mT.contiguous().mT,
    "permuted rows": lambda x: x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
    "one channel, channels last": lambda x: x[:, :1].to(memory_format=torch.channels_last),
    "expanded channels": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "expanded and transposed": lambda x: x[:, :1].mT.contiguous().mT.expand(-1, 3, -1, -1),
    "every second column": lambda x: torch.cat([x, x], 3)[..., ::2],
    "rows that are strewn": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "one row many times": lambda x: x[:1].expand(len(x), -1, -1, -1),
}


def _square(model: Any, batch: Tensor) -> Tensor:
    out = model(batch).flatten(1)
    return (out * torch.linspace(-1, 1.3, out.shape[1], dtype=out.dtype) + 0.1 * out * out).sum(1)


def _images(rows: int) -> Tensor:
    return torch.randn(rows, 3, 6, 5, dtype=torch.float64)


def _network(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    ).double()


def _check(model: nn.Module, batches: list[Tensor], settings: EngineSettings | None = None) -> None:
    engine, slow = Engine(model, _square, settings or EngineSettings()), Reference(model, _square)
    for batch in batches:
        found, expected = engine.clipped_sum(batch, 0.5), slow.clipped_sum(batch, 0.5)
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_in_any_memory_format_is_taken_and_exact(name: str) -> None:
    batches = [FORMATS[name](_images(rows)) for rows in (5, 1, 2, 7)]
    _check(_network(batches[0].shape[1]), batches)


def test_sequences_whose_time_and_features_are_exchanged_are_taken() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.GRU(6, 4, batch_first=True), nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x)[0].flatten(1))

    sequences = [torch.randn(rows, 6, 5, dtype=torch.float64).mT for rows in (4, 1, 3)]
    _check(Recurrent().double(), sequences)


def test_a_view_that_the_memory_format_allows_is_allowed_in_a_pass() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(30, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mT.view(len(x), -1))

    _check(Viewed().double(), [torch.randn(rows, 6, 5, dtype=torch.float64).mT for rows in (4, 1)])


def test_memory_formats_may_change_from_batch_to_batch_and_parts_of_one_keep_theirs() -> None:
    model = _network(3)
    batches = [FORMATS[name](_images(5)) for name in ("channels last", "expanded channels", "permuted rows")]
    _check(model, batches * 2, EngineSettings(microbatch_size=2))
    engine = Engine(model, _square)
    for batch in batches * 2:
        engine.clipped_sum(batch, 1.0)
    assert not engine.assumptions


@pytest.mark.parametrize("name", FORMATS)
def test_copies_of_rows_have_one_memory_format_however_many_there_are(name: str) -> None:
    rows = FORMATS[name](_images(4))
    own, two, one = (copy_rows(rows, index) for index in (None, torch.tensor([0, 1]), torch.tensor([0])))
    assert own.stride() == two.stride() == one.stride()
    assert torch.equal(own, rows)
    assert torch.equal(two, rows[:2])
    assert memory_order(own) == memory_order(rows)
