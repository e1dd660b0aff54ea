"""Convolutions whose patches are copied in strips of the kernel: few channels and a tall kernel."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.means import Means
from decrescendo.clipping.rules import compiled
from decrescendo.clipping.rules.conv import ConvKernel
from decrescendo.clipping.rules.patches import Geometry, has_strips, unfold_places, unfold_strips


@settings(max_examples=40)
@given(
    strips=st.integers(1, 4),
    step=st.integers(1, 3),
    wide=st.integers(1, 5),
    along=st.integers(1, 3),
    channels=st.integers(1, 3),
    pad=st.tuples(*[st.integers(0, 3)] * 4),
    more=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_strips_are_the_patches(
    strips: int, step: int, wide: int, along: int, channels: int, pad: tuple[int, ...], more: tuple[int, int]
) -> None:
    """Side by side the strips of a place are its patch, rows of the kernel one after another."""
    high = strips * step
    images = torch.randn(2, channels, high + more[0], wide + more[1])
    geometry = Geometry((high, wide), (step, along), (1, 1), pad, 1)
    assert torch.equal(torch.cat(unfold_strips(images, geometry), 2), unfold_places(images, geometry))


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
    shapes: list[tuple[int, ...]] = []
    plain = ConvKernel._products
    monkeypatch.setattr(compiled, "library", lambda: None)  # the form that is taken without a C compiler

    def watched(kernel: ConvKernel, d: Tensor, found: Tensor | None = None) -> Tensor:
        shapes.append(kernel._product_shape())
        return plain(kernel, d, found)

    monkeypatch.setattr(ConvKernel, "_products", watched)
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
    found = Engine(model, loss, EngineSettings(precise=precise)).clipped_sum(batch, limit)
    expected = Reference(model, loss).clipped_sum(batch, limit)
    for key, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[key].float(), gradient, rtol=2e-5, atol=2e-5 * limit)
    assert found.diagnostics.clipped == expected.diagnostics.clipped
    assert found.diagnostics.nonfinite == expected.diagnostics.nonfinite == 1
    assert any(strips > 1 for strips, *_ in shapes)


def test_kept_gradients_lie_in_the_memory_that_was_taken() -> None:
    weight = torch.randn(16, 1, 8, 8)
    geometry = Geometry((8, 8), (2, 2), (1, 1), (3, 3, 3, 3), 1)
    images, d = torch.randn(300, 1, 28, 28), torch.randn(300, 16, 14, 14)
    kernel = ConvKernel(("weight",), (weight,), (), images, 300, (16, 1, 8, 8), geometry, Means(2**24), False)
    assert kernel._strips() == 4
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
    torch.testing.assert_close(kernel.weighted_sum(0, d, weights).double(), direct, rtol=1e-5, atol=1e-3)


def test_few_or_narrow_strips_are_not_worth_it() -> None:
    assert not has_strips(Geometry((4, 4), (2, 2), (1, 1), (0,) * 4, 1), channels=16)
    assert not has_strips(Geometry((5, 5), (1, 1), (1, 1), (0,) * 4, 1), channels=1)
    assert not has_strips(Geometry((5, 5), (1, 1), (2, 1), (0,) * 4, 1), channels=8)
    assert not has_strips(Geometry((5, 5), (1, 1), (1, 1), (0,) * 4, 2), channels=8)
