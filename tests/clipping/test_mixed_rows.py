"""Whether the loss of a batch is a sum of one part an example: who is shown the way of one example a pass."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.base.batches import OneByOne, slice_rows
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.clipping.mixed_rows import mixes_rows
from decrescendo.errors import UnsupportedModel

Batch = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[Any, Batch], Tensor]
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
cross = functional.cross_entropy


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(seed: int, rows: int = 8) -> Batch:
    """Features, classes of which no one is missing, and masks."""
    generator = torch.Generator().manual_seed(seed)
    x, order = torch.randn(rows, 6, generator=generator), torch.randperm(rows, generator=generator)
    return x, order % 3, (torch.rand(rows, 6, generator=generator) > 0.4).float()


def each(m: Any, b: Batch, x: Tensor | None = None) -> Tensor:
    return cross(m(b[0] if x is None else x), b[1], reduction="none")


def errors(m: Any, b: Batch) -> Tensor:
    return (m(b[0]).sum(1, keepdim=True) - b[0]).square()


def mixup(m: Any, b: Batch) -> Tensor:
    order, share = torch.randperm(len(b[0])), float(np.random.beta(1, 1))
    x = share * b[0] + (1 - share) * b[0][order]
    return share * each(m, b, x) + (1 - share) * cross(m(x), b[1][order], reduction="none")


def contrastive(m: Any, b: Batch) -> Tensor:
    one, two = (functional.normalize(m(b[0] + 0.1 * torch.randn_like(b[0])), dim=1) for _ in range(2))
    return cross(one @ two.T / 0.5, torch.arange(len(one)), reduction="none")


MIXED: dict[str, Loss] = {
    "class weights": lambda m, b: cross(m(b[0]), b[1], weight=WEIGHTS),
    "class weights behind a branch": lambda m, b: (
        cross(m(b[0]), b[1], weight=WEIGHTS) if (b[1] >= 0).any() else m(b[0]).sum() * 0
    ),
    "weights by their sum": lambda m, b: each(m, b) * WEIGHTS[b[1]] / WEIGHTS[b[1]].sum(),
    "a masked mean": lambda m, b: (errors(m, b) * b[2]).sum() / b[2].sum(),
    "a masked mean by a number of Python": lambda m, b: (errors(m, b) * b[2]).sum() / b[2].sum().item(),
    "a masked mean by a whole number": lambda m, b: (errors(m, b) * b[2]).sum() / int(b[2].sum()),
    "a selected mean": lambda m, b: errors(m, b)[b[2].bool()].mean(),
    "ignored classes": lambda m, b: cross(m(b[0]), torch.where(b[1] == 2, -100, b[1])),
    "mixup with the row before": lambda m, b: each(m, b, 0.6 * b[0] + 0.4 * b[0].roll(1, 0)),
    "mixup with a random row": mixup,
    "contrastive": contrastive,
    "triplets": lambda m, b: functional.triplet_margin_loss(
        m(b[0]), m(b[0].roll(1, 0)), m(b[0].roll(2, 0)), reduction="none"
    ),
    "distance from the mean": lambda m, b: (m(b[0]) - m(b[0]).mean(0)).square().sum(1),
    "standardised by the batch": lambda m, b: each(m, b, (b[0] - b[0].mean(0)) / (b[0].std(0) + 1e-3)),
    "the largest": lambda m, b: each(m, b).max(),
    "softmax over rows": lambda m, b: m(b[0]).softmax(0).square().sum(1),
    "balance of the batch": lambda m, b: each(m, b) + m(b[0]).softmax(1).mean(0).square().sum(),
    "batch norm": lambda m, b: each(m, b, functional.batch_norm(b[0], None, None, training=True)),
}
OWN: dict[str, Loss] = {
    "a mean": lambda m, b: cross(m(b[0]), b[1]),
    "a sum by the number of rows": lambda m, b: each(m, b).sum() / len(b[0]),
    "class weights by no sum": lambda m, b: cross(m(b[0]), b[1], weight=WEIGHTS, reduction="none").mean(),
    "a loop with branches": lambda m, b: torch.stack(
        [cross(m(x[None]), y[None]) * (2 if x.sum() > 0 else 1) for x, y in zip(b[0], b[1], strict=True)]
    ),
    "a branch for all rows": lambda m, b: each(m, b) * (2 if b[0].sum() > 0 else 1),
    "a branch for all rows by a number": lambda m, b: each(m, b) * (2 if float(b[0].sum()) > 0 else 1),
    "shapes by the data": lambda m, b: torch.stack(
        [m(x[keep > 0].sum().expand(1, 6)).square().sum() for x, keep in zip(b[0], b[2], strict=True)]
    ),
    "cropped": lambda m, b: m((b[0] * b[2])[:, : int(b[2].sum(1).max()) + 6]).square().mean(),
    "packed": lambda m, b: torch.zeros(len(b[0])).index_add(
        0, b[2].nonzero()[:, 0], m(b[0])[b[2].nonzero()[:, 0], b[2].nonzero()[:, 1] % 3]
    ),
    "dropout": lambda m, b: functional.dropout(each(m, b), 0.5).mean(),
    "NumPy's numbers": lambda m, b: (each(m, b) * torch.from_numpy(np.random.rand(len(b[0])))).mean(),
    "numbers by the data": lambda m, b: (each(m, b) * torch.rand(int(b[2].sum()))[0]).mean(),
}


@pytest.mark.parametrize("loss", MIXED.values(), ids=MIXED)
def test_a_loss_that_mixes_rows_is_not_offered_one_example_a_pass(loss: Loss) -> None:
    assert all(mixes_rows(model(seed), loss, batch(seed)) for seed in range(5))
    with pytest.raises(UnsupportedModel) as refused:
        Engine(model(), loss, seeds=Seeds.of(0)).clipped_sum(batch(0), 1.0)
    assert "What it computes mixes rows" in str(refused.value)
    assert "one_example_a_pass" not in str(refused.value)


@pytest.mark.parametrize("loss", OWN.values(), ids=OWN)
def test_a_loss_that_is_a_sum_of_parts_is_offered_it_and_uses_it_without_a_warning(loss: Loss) -> None:
    assert not any(mixes_rows(model(seed), loss, batch(seed)) for seed in range(5))
    with pytest.raises(UnsupportedModel, match="one_example_a_pass=True"):
        Engine(model(), loss, seeds=Seeds.of(0)).clipped_sum(batch(0), 1.0)
    engine = Engine(model(), loss, EngineSettings(one_example_a_pass=True), seeds=Seeds.of(0))
    engine.clipped_sum(batch(0), 1.0)
    assert engine.rows_independent


@pytest.mark.parametrize("form", ["rows", "one by one"])
def test_one_example_a_pass_warns_once_that_another_loss_is_trained(form: str) -> None:
    engine = Engine(model(), MIXED["class weights"], EngineSettings(one_example_a_pass=True))
    rows = [batch(seed) for seed in range(4)]
    given: list[Any] = [
        part if form == "rows" else OneByOne(tuple(slice_rows(part, at, at + 1) for at in range(8))) for part in rows
    ]
    with pytest.warns(UserWarning, match=r"trains another loss.*divide weights and masks by a constant"):
        engine.clipped_sum(given[0], 1.0)
    for part in given[1:]:
        engine.clipped_sum(part, 1.0)


def test_only_the_first_batches_are_passed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def noted(_model: object, _loss: object, given: Tensor) -> bool:
        compared.append(len(given))
        return False

    monkeypatch.setattr("decrescendo.clipping.one_example.mixes_rows", noted)
    engine = Engine(nn.Linear(3, 1), lambda m, b: m(b).mean(), EngineSettings(one_example_a_pass=True))
    for rows in (1, 2, 3, 4, 5, 6):
        engine.clipped_sum(torch.randn(rows, 3), 1.0)
    assert compared == [2, 3, 4]


def test_nothing_is_left_behind() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    seen: list[int] = []

    def loss(m: Any, b: Batch) -> Tensor:
        seen.append(len(b[0]))
        return each(m, b)

    before = {name: value.clone() for name, value in net.state_dict().items()}
    torchs, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert mixes_rows(net, loss, batch(0))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert seen == []
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), torchs)
    assert np.array_equal(np.random.get_state()[1], numpys)


def test_what_cannot_be_compared_is_not_called_mixed() -> None:
    def fails(m: Any, b: Batch) -> Tensor:
        raise ValueError

    calls: list[int] = []

    def counts(m: Any, b: Batch) -> Tensor:
        calls.append(1)
        return cross(m(b[0]), b[1], weight=WEIGHTS) / (1 + torch.rand((), generator=own))

    own = torch.Generator().manual_seed(0)
    images = OneByOne(tuple([torch.randn(3, 4, 4)] for _ in range(4)))
    for loss, given in (
        (fails, batch(0)),
        (counts, batch(0)),
        (MIXED["contrastive"], batch(0, rows=1)),
        (lambda m, b: torch.tensor(math.nan), batch(0)),
        (lambda m, b: torch.stack(b).std(), images),
    ):
        assert not mixes_rows(model(), loss, given)
