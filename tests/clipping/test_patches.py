"""Convolutions whose patches are copied: the form that is taken without a C compiler."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.rules import compiled
from decrescendo.clipping.rules.conv import ConvKernel
from decrescendo.clipping.rules.patches import Geometry, unfold
from decrescendo.clipping.workspace import Workspace


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    channels=st.integers(1, 3),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_patches_are_those_of_torch(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    channels: int,
    pad: tuple[int, int],
) -> None:
    images = torch.randn(2, channels, 9, 8)
    found = unfold(images, Geometry(kernel, stride, dilation, (pad[1], pad[1], pad[0], pad[0]), 1))
    expected = functional.unfold(images, kernel, dilation, pad, stride)
    assert torch.equal(found.permute(0, 3, 2, 1).flatten(1, 2), expected)


CONVOLUTIONS = {
    "paper": lambda: nn.Conv2d(1, 16, 8, stride=2, padding=3),
    "five high": lambda: nn.Conv2d(4, 3, 5, padding=2),
    "uneven": lambda: nn.Conv2d(3, 2, (6, 4), stride=(2, 1), padding=(1, 0)),
    "no bias": lambda: nn.Conv2d(1, 5, (3, 17), padding=(1, 8), bias=False),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("precise", [False, True])
def test_sums_equal_the_reference(name: str, layout: torch.memory_format, precise: bool, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(compiled, "library", lambda: None)  # the form that is taken without a C compiler

    model = nn.Sequential(CONVOLUTIONS[name](), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.LazyLinear(3))
    batch = torch.randn(9, model[0].in_channels, 20, 22)
    batch[4, 0, 0, 0] = torch.inf
    model(batch)
    model = model.to(memory_format=layout)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum(1)

    norms = Reference(model, loss).per_example_norms(batch)
    finite = norms[norms.isfinite()].sort()[0]
    limit = float(finite[3] + finite[4]) / 2
    found = Engine(model, loss, EngineSettings(accumulate="float64" if precise else "float32")).clipped_sum(
        batch, limit
    )
    expected = Reference(model, loss).clipped_sum(batch, limit)
    for key, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[key].float(), gradient, rtol=2e-5, atol=2e-5 * limit)
    assert found.diagnostics.clipped == expected.diagnostics.clipped
    assert found.diagnostics.nonfinite == expected.diagnostics.nonfinite == 1


def test_kept_gradients_lie_in_the_memory_that_was_taken() -> None:
    weight = torch.randn(16, 1, 8, 8)
    geometry = Geometry((8, 8), (2, 2), (1, 1), (3, 3, 3, 3), 1)
    images, d = torch.randn(300, 1, 28, 28), torch.randn(300, 16, 14, 14)
    kernel = ConvKernel(("weight",), (weight,), (), images, 300, (16, 1, 8, 8), geometry, Workspace(2**24))
    squares = kernel.squared_norms(0, d)
    whole = kernel.per_example(0, d).double()
    assert kernel.product is not None
    assert kernel.product.numel() == 300 * math.prod((16, 1, 8, 8))
    assert bool((squares >= whole.square().sum((1, 2, 3, 4))).all())
    torch.testing.assert_close(squares, whole.square().sum((1, 2, 3, 4)), rtol=1e-5, atol=0)
    weights = torch.rand(300)
    direct = torch.nn.grad.conv2d_weight(
        images.double(), (16, 1, 8, 8), d.double() * weights.double().reshape(-1, 1, 1, 1), 2, 3
    )
    torch.testing.assert_close(kernel.scaled_sum(0, d, weights).double(), direct, rtol=1e-5, atol=1e-3)
