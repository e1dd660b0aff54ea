"""What a model holds is what torch's own walks find, in their order."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from decrescendo.clipping.inventory import Inventory


class Tied(nn.Module):
    """A parameter, a module and a buffer that are there twice, entries that are None, and a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.again = self.first
        self.nothing = None
        self.register_module("empty", None)
        self.norm = nn.BatchNorm1d(2).eval()
        self.register_buffer("mean", self.norm.running_mean)
        self.own = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.list = nn.ModuleList([nn.Sequential(nn.PReLU(), nn.Dropout()), nn.GRU(2, 2)])


class Renamed(nn.Linear):
    """Says its own names."""

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield f"my_{name}", parameter


def test_what_is_found_is_what_torch_lists() -> None:
    for model in (
        Tied(),
        nn.Sequential(Tied(), Tied()).eval(),
        nn.Transformer(4, 2, 1, 1, 4, batch_first=True),
    ):
        held = Inventory.of(model)
        for found, expected in (
            (held.parameters, list(model.named_parameters())),
            (held.buffers, list(model.named_buffers())),
        ):
            assert list(found) == [name for name, _ in expected]
            assert all(found[name] is tensor for name, tensor in expected)
        assert held.mode == tuple(module.training for module in model.modules())


def test_modules_with_names_of_their_own_are_asked() -> None:
    assert list(Inventory.of(Renamed(1, 1)).parameters) == ["my_weight", "my_bias"]


def test_scripted_modules_are_found() -> None:
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.script"):
        model = torch.jit.script(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    held = Inventory.of(model)
    assert list(held.parameters) == [name for name, _ in model.named_parameters()]
    assert list(held.buffers) == [name for name, _ in model.named_buffers()]
