"""What a model holds is found as torch lists it, and is as it was afterwards: nothing is wrapped, hooked or drawn."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from clipping_cases import CASES, loss
from torch import nn
from untouched import portrait

from decrescendo.clipping import Engine
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import UnsupportedModel


@pytest.mark.parametrize(
    "name",
    [
        "deep",
        "tied embedding",
        "batch norm in evaluation",
        "frozen first",
        "weight norm",
        "transformer layer",
    ],
)
def test_a_step_leaves_no_trace_on_the_model_or_the_global_generator(name: str) -> None:
    model, batch = CASES[name].make(torch.float32, 6)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    before, state = portrait(model), torch.get_rng_state()
    engine = Engine(model, loss)
    engine.check(batch)
    engine.clipped_sum(batch, 1.0)
    engine.per_example_norms(batch)
    assert portrait(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(values[key], value) for key, value in model.state_dict().items())


def test_a_refusal_leaves_no_trace_either() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before, state = model.state_dict(), torch.get_rng_state()
    before = {key: value.clone() for key, value in before.items()}
    with pytest.raises(UnsupportedModel):
        Engine(model, loss).clipped_sum((torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)), 1.0)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_already_on_the_parameters_are_left_alone() -> None:
    model, batch = CASES["deep"].make(torch.float32, 6)
    loss(model, batch).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    Engine(model, loss).clipped_sum(batch, 1.0)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_a_batch_that_the_model_overwrites_stays_as_it_came() -> None:
    """A pass gets rows in memory of its own: the user's are left alone."""
    model = nn.Linear(4, 3)
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)

    def scaling(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model, (batch[0].mul_(2), batch[1]))

    fresh = x.clone()
    Engine(model, scaling).clipped_sum((fresh, y), 1.0)
    assert torch.equal(fresh, x)


def test_no_graph_is_kept_alive_by_the_engine_or_its_result() -> None:
    import gc
    import weakref

    model, batch = CASES["weight norm"].make(torch.float32, 6)
    engine = Engine(model, loss)
    kept: list[weakref.ref[torch.Tensor]] = []

    def remembering(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = loss(model, batch)
        kept.append(weakref.ref(losses))
        return losses

    engine = Engine(model, remembering)
    clipped = engine.clipped_sum(batch, 1.0)
    gc.collect()
    assert [ref for ref in kept if ref() is not None] == []
    assert all(not gradient.requires_grad for gradient in clipped.gradients.values())


def test_a_call_inside_no_grad_works() -> None:
    model, batch = CASES["deep"].make(torch.float32, 6)
    with torch.no_grad():
        inside = Engine(model, loss).clipped_sum(batch, 1.0).gradients
    outside = Engine(model, loss).clipped_sum(batch, 1.0).gradients
    assert all(torch.equal(inside[name], outside[name]) for name in outside)


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
    with pytest.warns((DeprecationWarning, FutureWarning), match=r"torch\.jit\.script"):
        model = torch.jit.script(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    held = Inventory.of(model)
    assert list(held.parameters) == [name for name, _ in model.named_parameters()]
    assert list(held.buffers) == [name for name, _ in model.named_buffers()]
