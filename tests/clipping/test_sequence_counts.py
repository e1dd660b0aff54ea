"""How many rows a sequence or a part has is read from memory: no dispatch mode sees it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel

ROWS = 8


PUBLIC = torch.arange(1.0, 5.0)[:, None]


GRU = nn.GRU(1, 1).requires_grad_(False)


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def scaled(factor: Callable[[Tensor], Any]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss whose sign, or scale, hangs on one number for all examples."""
    return lambda model, x: model(torch.ones_like(x)).sum(1) * factor(x)


def sizes(x: Tensor) -> Tensor:
    """Of record 0: two steps with (3, 1) or (2, 2) sequences."""
    one = (x[0, 0] > 0.5).long()
    return torch.stack([2 + one, 2 - one])


READS: dict[str, Callable[[Tensor], Any]] = {
    "padded again": lambda x: pad_packed_sequence(PackedSequence(PUBLIC, sizes(x)), True)[0].shape[0],
    "a layer": lambda x: GRU(PackedSequence(PUBLIC, sizes(x)))[1].shape[1],
    "a split": lambda x: torch.tensor_split(PUBLIC, sizes(x))[0].shape[0],
}


@pytest.mark.parametrize("name", READS)
def test_data_are_not_read_for_them(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="where to split, or how many"):
        Engine(nn.Linear(3, 1), scaled(READS[name])).per_example_norms(data())


@pytest.mark.parametrize("enters", ["padded again", "a layer"])
def test_rows_that_are_packed_come_with_the_sizes_that_packing_gave(enters: str) -> None:
    """Other sizes may be another example's: of one sequence more in the second step, or less."""

    def loss(model: Any, x: Tensor) -> Tensor:
        lengths = 2 + (x[:, 0] > 0.5).long()
        packed = pack_padded_sequence(x.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
        other = pack_padded_sequence(
            x.unsqueeze(2), lengths.flip(0), batch_first=True, enforce_sorted=False
        ).batch_sizes
        mixed = packed._replace(batch_sizes=other * 1)
        if enters == "a layer":
            return model(torch.ones_like(x)).sum(1) + GRU(mixed)[1].sum((0, 2))
        return model(torch.ones_like(x)).sum(1) + pad_packed_sequence(mixed, True)[0].sum((1, 2))

    with pytest.raises(UnsupportedModel, match="how many sequences have each step"):
        Engine(nn.Linear(3, 1), loss).per_example_norms(data())


def test_rows_one_example_after_another_are_not_those_of_one_step_after_another() -> None:
    def loss(model: Any, x: Tensor) -> Tensor:
        packed = PackedSequence(x.flatten()[:, None], torch.tensor([len(x)] * 3))
        return model(torch.ones_like(x)).sum(1) + pad_packed_sequence(packed, True)[0].sum((1, 2))

    with pytest.raises(UnsupportedModel, match="not those of the rows"):
        Engine(nn.Linear(3, 1), loss).per_example_norms(data())
