"""What a pass may not do to the model, which is as before a pass that was refused or broke off."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def test_statistics_are_not_left_in_a_model() -> None:
    class Statistics(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            torch.batch_norm_update_stats(x, self.mean, torch.ones(3), 1.0)
            return super().forward(x)

    with pytest.raises(UnsupportedModel, match=r"must see what writes to memory|keeps statistics"):
        Engine(Statistics(), lambda model, x: model(x).sum(1)).per_example_norms(data())


def test_a_pass_that_freezes_a_parameter_is_refused_and_it_is_trained_afterwards() -> None:
    def loss(m: Any, x: Tensor) -> Tensor:
        losses = m(x).square().sum(1)
        m.bias.requires_grad_(requires_grad=len(x) < 8)
        return losses

    model = nn.Linear(3, 1)
    engine = Engine(model, loss)
    engine.clipped_sum(data()[:7], 1.0)
    with pytest.raises(UnsupportedModel, match=r"whether bias is trained"):
        engine.clipped_sum(data(), 1.0)
    assert model.bias.requires_grad


@pytest.mark.parametrize("raises", [False, True], ids=["refused", "broken off"])
def test_the_model_is_as_before_a_pass_that_keeps_a_row(raises: bool) -> None:
    def other(m: Any, row: Tensor) -> None:
        m.b = row.clone()

    def memory(m: Any, row: Tensor) -> None:
        m.b.data = row.clone()

    def gone(m: Any, _: Tensor) -> None:
        del m.b

    def sparse(m: Any, row: Tensor) -> None:
        m.s.data = (torch.eye(4) * row).to_sparse()

    def new(m: Any, row: Tensor) -> None:
        m.register_buffer("n", row.clone())
        m.p = nn.Parameter(row.clone())

    for change in (other, memory, gone, sparse, new):
        model: Any = nn.Linear(4, 1)
        model.register_buffer("b", torch.zeros(4))
        model.register_buffer("s", torch.eye(4).to_sparse())

        def keeping(m: Any, batch: Tensor) -> Tensor:
            change(m, batch.detach()[0])  # noqa: B023
            if raises:
                raise ValueError("of the program's own")
            return m(batch).square().squeeze(1)

        with pytest.raises((UnsupportedModel, ValueError)):
            Engine(model, keeping).clipped_sum(torch.randn(5, 4) + 3, 1.0)
        assert torch.equal(model.b, torch.zeros(4))
        assert torch.equal(model.s.to_dense(), torch.eye(4))
        assert sorted(name for name, _ in model.named_buffers()) == ["b", "s"]
        assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
        Engine(model, lambda m, batch: m(batch).square().squeeze(1)).clipped_sum(torch.randn(5, 4), 1.0)


def test_a_view_of_a_parameter_where_gradients_are_off_is_refused_in_words() -> None:
    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        with torch.no_grad():
            view = model.weight.view(3)
        return (x * (view + model.weight.view(3))).sum(1)

    with pytest.raises(UnsupportedModel, match="must not be made where gradients are off"):
        Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)


class _Sign(torch.autograd.Function):
    """Signs, with the gradient of what they are signs of."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_a_weight_behind_a_function_of_ones_own_is_refused_and_the_way_out_is_the_same() -> None:
    def refused(model: nn.Module, x: Tensor) -> Tensor:
        return functional.linear(x, _Sign.apply(model.weight), model.bias).square().sum(1)

    def taken(model: nn.Module, x: Tensor) -> Tensor:
        w = cast("Tensor", model.weight)
        return functional.linear(x, w + (w.sign() - w).detach(), model.bias).square().sum(1)

    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    with pytest.raises(UnsupportedModel, match=r"w \+ \(q\(w\) - w\)\.detach\(\)"):
        Engine(model, refused).clipped_sum(x, 1.0)
    found, expected = (made(model, taken).clipped_sum(x, 1.0).gradients for made in (Engine, Reference))
    plain = Reference(model, refused).clipped_sum(x, 1.0).gradients
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
        torch.testing.assert_close(gradient, plain[name])
