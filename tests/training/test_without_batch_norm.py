"""One call makes a model without BatchNorm: groups of several channels, the same weights, the same places."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.training import train, without_batch_norm

from .conftest import loss, make_plan, sgd


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6)
    )


def test_each_layer_is_replaced_with_its_weights() -> None:
    model: Any = images()
    held = list(model.parameters())
    nn.init.normal_(model[1].weight)
    assert without_batch_norm(model) is model
    assert list(map(id, model.parameters())) == list(map(id, held))  # an optimiser made before is right
    assert not list(model.buffers())
    assert [(type(model[at]), model[at].num_groups) for at in (1, 5)] == [
        (nn.GroupNorm, 8),
        (nn.GroupNorm, 1),
    ]


@pytest.mark.parametrize("channels", range(2, 40))
def test_no_group_is_one_channel(channels: int) -> None:
    """Each row would come out as the bias: the table's columns are erased."""
    torch.manual_seed(0)
    made: Any = without_batch_norm(nn.BatchNorm1d(channels))
    assert channels // made.num_groups >= 2
    rows = made(torch.randn(6, channels))
    assert not torch.allclose(rows[0], rows[1])


def test_settings_and_mode_are_carried_over() -> None:
    made: Any = without_batch_norm(nn.BatchNorm2d(8, eps=0.1, affine=False).eval())
    assert (made.eps, made.affine, made.training) == (0.1, False, False)
    made = without_batch_norm(nn.BatchNorm2d(64), groups=2)
    assert made.num_groups == 2
    with pytest.raises(InvalidValue, match="groups must be >= 1"):
        without_batch_norm(nn.BatchNorm2d(64), groups=0)


def test_a_layer_that_is_used_twice_stays_one() -> None:
    layer = nn.BatchNorm1d(4)
    model: Any = without_batch_norm(nn.Sequential(layer, nn.Sequential(nn.Linear(4, 4), layer)))
    assert model[0] is model[1][1]


def test_what_cannot_be_replaced_rightly_is_refused_and_nothing_is_changed() -> None:
    class Fused(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).relu()

    cases: list[tuple[nn.Module, type[Exception], str]] = [
        (Fused(4), UnsupportedModel, "1 .Fused., whose forward does something else"),
        (nn.BatchNorm1d(1), UnsupportedModel, "several channels, got 1 with num_features=1"),
        (nn.LazyBatchNorm1d(), InvalidValue, "must have their shapes, got 1 .LazyBatchNorm1d."),
    ]
    for layer, error, words in cases:
        model: Any = nn.Sequential(nn.BatchNorm1d(8), layer)
        with pytest.raises(error, match=words):
            without_batch_norm(model)
        assert isinstance(model[0], nn.BatchNorm1d)


def test_the_way_out_that_the_refusal_shows_works(data: tuple[Tensor, Tensor]) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(UnsupportedModel, match=r"without_batch_norm\(model\).*public statistics"):
        Engine(model, loss).check(data)
    model = without_batch_norm(model)
    assert not train(model, loss, data, make_plan(), sgd(model), seed=0).assumptions
