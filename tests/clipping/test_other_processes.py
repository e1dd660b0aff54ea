"""A pass is of its own process alone."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def test_other_processes_are_not_asked(tmp_path: Path) -> None:
    """An operation of torch.distributed writes where its schema does not say so: 21 C of another rank's row."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            total = x.detach().sum(1)
            torch.distributed.all_reduce(total)
            return model(x).sum(1) * total

        with pytest.raises(UnsupportedModel, match="must be of its own process alone, but allreduce_"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())
    finally:
        torch.distributed.destroy_process_group()
