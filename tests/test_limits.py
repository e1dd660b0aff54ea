"""What is *not* seen or prevented, pinned: the pages say so, and must be changed when it changes."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from fuzzing.federated_files import _server
from torch import Tensor, nn

from decrescendo.accounting.budget import Budget
from decrescendo.base.batches import OneByOne
from decrescendo.base.rng import Secure
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import UnsupportedModel
from decrescendo.federated import Server
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer
from decrescendo.training.digits import digits
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.statement import Declaration

WIDTH = 8  # of noise as small as the test's least difference in one coordinate there is one in thirty; in eight, none


class MixesWhenBig(nn.Module):
    """Takes the mean of the batch off, but only of more than ten rows; the operations are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.layer(x - (len(x) > 10) * x.mean(0)))


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_mixing_that_begins_in_bigger_batches_in_the_same_form_is_refused() -> None:
    torch.manual_seed(0)
    engine = Engine(MixesWhenBig(), _loss)
    rows, labels = torch.randn(30, 4), torch.arange(30) % 3
    for some in (8, 30):  # the operation that can mix is there in both
        with pytest.raises(UnsupportedModel):
            engine.clipped_sum((rows[:some], labels[:some]), 1.0)


def test_what_rows_were_filled_in_with_is_not_seen() -> None:
    """The mean of a private column in the place of a missing value: a row like any other."""
    rows, labels = torch.randn(30, 4), torch.arange(30) % 3
    rows[3, 1] = torch.nan
    filled = torch.where(torch.isnan(rows), rows.nanmean(0), rows)
    plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(30, 10), steps=2, privacy=constant(1.0), clip=constant(1.0))
    model = nn.Linear(4, 3)
    trainer = Trainer(model, _loss, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    for batch in trainer.batches((filled, labels)):
        trainer.step(batch)
    assert not trainer.finish().assumptions


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


def test_a_folder_of_checkpoints_that_is_copied_goes_on_twice_with_the_same_noise(tmp_path: Path) -> None:
    """On other data in the copy: the difference of the two releases is that of two sums, without noise."""
    plan = calibrate(Budget(1.0, 1e-5), PoissonSampling(20, 20), steps=2, privacy=constant(1.0), clip=constant(1.0))
    rows = torch.linspace(-1.0, 1.0, 20)[:, None]

    def step(folder: Path, data: Tensor) -> tuple[Tensor, Tensor]:
        """The next release, from the same weights, and what its sum would have been without noise."""
        model = nn.Linear(1, WIDTH, bias=False)
        model.weight.data.zero_()
        trainer = Trainer(
            model, lambda model, batch: (model(batch) - 3 * batch).square().sum(1), plan,
            torch.optim.SGD(model.parameters(), lr=1.0), seed=Secure(), checkpoints=Checkpoints(folder, resume=True),
        )  # fmt: skip
        batch = next(trainer.batches(data))
        clipped = trainer._engine.clipped_sum(batch, 1.0).gradients["weight"] / 20
        trainer.step(batch)
        return -model.weight.detach(), clipped

    original, copy = tmp_path / "kept", tmp_path / "copy"
    first = nn.Linear(1, WIDTH, bias=False)
    Trainer(
        first, lambda model, batch: model(batch)[:, 0], plan, torch.optim.SGD(first.parameters(), lr=1.0),
        seed=Secure(), checkpoints=Checkpoints(original),
    )  # fmt: skip
    shutil.copytree(original, copy)
    changed = rows.clone()
    changed[3] = 0.0
    (first, first_sum), (second, second_sum) = step(original, rows), step(copy, changed)
    assert torch.allclose(first - second, first_sum - second_sum, atol=1e-5)
    assert float((first_sum - second_sum).norm()) > 0.01
    assert float((first - first_sum).norm()) > 0.01  # the noise there was, of deviation 0.3 a coordinate


def test_who_is_behind_a_row_is_for_the_owner_to_say() -> None:
    """Rows do not say whose they are: statements show it as not stated until somebody does."""
    assert "not stated" in Declaration().stated()["person"]
    assert "hides an image, not a person" in " ".join((digits.__doc__ or "").split())


@dataclass
class Node:
    """A node of a graph that all records hold."""

    place: int
    features: Tensor


def test_what_records_share_is_for_the_owner_to_say() -> None:
    """A record is what the list has at its place: rows of others in it are a part of it, and are not protected."""
    features, model = torch.eye(4, 3), nn.Linear(3, 1)
    engine = Engine(
        model, lambda m, node: m(node.features[[node.place]] + node.features.mean(0)).square().sum(1),
        EngineSettings(one_example_a_pass=True),
    )  # fmt: skip
    found = engine.clipped_sum(OneByOne(tuple(Node(place, features) for place in range(4))), 1.0)
    assert float(found.gradients["weight"].abs().sum()) > 0
    assert engine.assumptions == ()


def _takes(loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    engine = Engine(nn.Linear(4, 1), loss, seeds=lambda: 3)
    for rows in (5, 6, 5):
        engine.clipped_sum(torch.randn(rows, 4), 1.0)


def test_random_numbers_that_are_drawn_twice_in_a_pass_are_not_seen() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            first = torch.rand(len(x))
        return cast("Tensor", model(x))[:, 0] * (first - torch.rand(len(x), 2)[:, 0])

    _takes(loss)


def test_what_numpy_writes_in_a_pass_to_a_shared_constant_is_not_seen() -> None:
    array = np.ones(1, np.float32)
    shared = torch.from_numpy(array)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        array[0] = 1 / len(x)
        return cast("Tensor", model(x))[:, 0] * shared

    _takes(loss)


def test_global_settings_that_a_pass_changes_are_not_seen() -> None:
    threads = torch.get_num_threads()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        torch.set_num_threads(1 + torch.get_num_threads() % 2)
        return cast("Tensor", model(x))[:, 0]

    try:
        _takes(loss)
    finally:
        torch.set_num_threads(threads)


def test_sizes_that_a_node_of_autograd_shows_are_not_seen() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chosen = cast("Tensor", model(x[x[:, 0] > 0]))
        rows: int = cast("Any", chosen.grad_fn)._input_metadata[0].shape[0]
        return cast("Tensor", model(x))[:, 0] * (1.0 if rows > 100 else -1.0)

    _takes(loss)
