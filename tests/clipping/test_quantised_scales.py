"""Scales and zero points that are learned: the first of several is that of all."""

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


class TestQuantised:
    @staticmethod
    def quantised(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -128, 127, 1.0)

    @pytest.mark.parametrize("which", ["scale", "zero point"])
    def test_the_first_of_several_scales_is_that_of_all(self, which: str) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            own, same = x[:, 0], torch.ones(len(x))
            made = self.quantised(own, own, same) if which == "scale" else self.quantised(own, same, own)
            return (model(x) * made[:, None]).sum(1)

        with pytest.raises(UnsupportedModel, match="several examples are put together"):
            Engine(nn.Linear(3, 1), loss).per_example_norms(data())

    def test_one_that_is_public_is_fine(self) -> None:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            return model(self.quantised(x, torch.tensor([0.25]), torch.tensor([0.0]))).sum(1)

        model = nn.Linear(3, 1)
        engine = Engine(model, loss)
        torch.testing.assert_close(engine.per_example_norms(data()), Reference(model, loss).per_example_norms(data()))
        assert [one.code for one in engine.assumptions] == ["tensors-read"]
