"""What is *not* seen or prevented, pinned: the pages say so, and must be changed when it changes."""

import shutil
from pathlib import Path
from typing import cast

import torch
from fuzzing.federated_files import _server
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.data import digits
from decrescendo.federated import Server
from decrescendo.statement import Declaration


class MixesWhenBig(nn.Module):
    """Takes the mean of the batch off, but only of more than ten rows; the operations are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.layer(x - (len(x) > 10) * x.mean(0)))


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_mixing_that_begins_in_bigger_batches_in_the_same_form_is_not_seen() -> None:
    torch.manual_seed(0)
    engine = Engine(MixesWhenBig(), _loss)
    rows, labels = torch.randn(30, 4), torch.arange(30) % 3
    engine.clipped_sum((rows[:8], labels[:8]), 1.0)  # checked, rightly found clean
    engine.clipped_sum((rows, labels), 1.0)  # mixes, and is not refused


def _next_round(server: Server) -> tuple[tuple[int, ...], bytes]:
    cohort = server.open().cohort
    server.close()
    weights = b"".join(value.numpy().tobytes() for value in server.weights().values())
    server.stop()
    return cohort, weights


def test_a_journal_that_is_copied_goes_on_twice_with_the_same_noise(tmp_path: Path) -> None:
    """Of two sums released so, the difference has no noise: a copy cannot be told from the original."""
    first = _server(tmp_path / "run")
    first.open()
    first.close()
    first.stop()
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    assert _next_round(_server(tmp_path / "run")) == _next_round(_server(tmp_path / "backup"))


def test_who_is_behind_a_row_is_for_the_owner_to_say() -> None:
    """Rows do not say whose they are: statements show it as not stated until somebody does."""
    assert "not stated" in Declaration().stated()["person"]
    assert "hides an image, not a person" in " ".join((digits.__doc__ or "").split())
