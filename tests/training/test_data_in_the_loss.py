"""Rows that are trained on, read by the loss beside its batch, are refused; public tensors are used as before."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.errors import UnsupportedModel
from decrescendo.training import Run, train

from .conftest import ROWS, make_model, make_plan, sgd

Pair = tuple[Tensor, Tensor]

OUTSIDE = {
    "the tensor": lambda x: x[0],
    "a view made before": lambda x, view=None: x.view(-1, 3)[:1].sum(0),
    "the array that it was made of": lambda x: torch.from_numpy(x.numpy())[0],
    "a number of it": lambda x: torch.ones(3) * x[0, 0].item(),
    "a list of it": lambda x: torch.tensor(x[0].tolist()),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_loss_that_reads_the_data_beside_its_batch_is_refused(name: str) -> None:
    x, y, model = torch.randn(ROWS, 3), torch.arange(ROWS) % 2, make_model()

    def centred(m: nn.Module, batch: Pair) -> Tensor:
        return nn.functional.cross_entropy(m(batch[0] - OUTSIDE[name](x)), batch[1], reduction="none")

    with pytest.raises(UnsupportedModel, match="data"):
        train(model, centred, (x, y), make_plan(), sgd(model), seed=0)


def test_so_is_one_that_reads_an_array_that_is_the_data() -> None:
    array, model = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32"), nn.Linear(3, 1)

    def centred(m: nn.Module, batch: Tensor) -> Tensor:
        return m(batch - torch.from_numpy(array[3:4])).square().sum(1)

    with pytest.raises(UnsupportedModel, match="holds the data beside the batch"):
        train(model, centred, array, make_plan(), sgd(model), seed=0)


def test_rows_of_the_same_tensor_that_are_not_trained_on_are_used_as_before() -> None:
    both, y = torch.randn(ROWS + 9, 3), torch.arange(ROWS) % 2

    def centred(part: Tensor) -> Any:
        def loss_of(m: nn.Module, batch: Pair) -> Tensor:
            return nn.functional.cross_entropy(m(batch[0] - part.mean(0)), batch[1], reduction="none")

        return loss_of

    def run(part: Tensor) -> Run:
        model = make_model()
        return train(model, centred(part), (both[:ROWS], y), make_plan(), sgd(model), seed=0)

    for public in (both[ROWS:], both.t()[:, ROWS:].t(), both[ROWS + 9 :].new_zeros(1, 3)):
        assert [one.code for one in run(public).assumptions] == ["tensors-read"]
    for private in (both, both[ROWS - 1 :], both.flatten()[3 * ROWS - 1 :].view(-1, 1)):
        with pytest.raises(UnsupportedModel, match="holds the data beside the batch"):
            run(private)


def test_public_tensors_are_used_as_before() -> None:
    x, y, model, public = torch.randn(ROWS, 3), torch.arange(ROWS) % 2, make_model(), torch.randn(9, 3)

    def centred(m: nn.Module, batch: Pair) -> Tensor:
        return nn.functional.cross_entropy(m(batch[0] - public.mean(0)), batch[1], reduction="none")

    run = train(model, centred, (x, y), make_plan(), sgd(model), seed=0)
    assert [one.code for one in run.assumptions] == ["tensors-read"]
