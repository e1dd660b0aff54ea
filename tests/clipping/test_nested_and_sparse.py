"""Nested and compressed tensors are refused in words."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import DecrescendoError, UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def test_nested_tensors_are_refused_in_words() -> None:
    """It was torch's own error, about tensors without data."""

    def used(m: Any, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor_from_jagged(x.reshape(-1, 3), torch.arange(len(x) + 1))
        return m(rows).to_padded_tensor(0.0).sum((1, 2))

    def beside(m: Any, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor(x[:, None], layout=torch.jagged)
        return m(x).sum(1) * rows.to_padded_tensor(0.0).sum((1, 2))

    for loss, words in (
        (used, "and a nested one"),
        (beside, "no rule for aten::_jagged_to_padded_dense_forward"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            Engine(nn.Linear(3, 4), loss).clipped_sum(data(), 1.0)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:no pass is captured:UserWarning")
def test_nested_and_compressed_tensors_are_no_foreign_errors() -> None:
    model = nn.Linear(4, 1)
    model.register_buffer("n", torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]))

    def compressed(m: Any, batch: Tensor) -> Tensor:
        return m(batch @ torch.eye(4).to_sparse_csr().to_dense()).squeeze(1)

    for loss in (lambda m, batch: m(batch).squeeze(1), compressed):
        for capture in (False, True):
            engine = Engine(model, loss, EngineSettings(capture=capture))
            try:
                for _ in range(4):
                    engine.clipped_sum(torch.randn(5, 4), 1.0)
            except DecrescendoError:
                pass
