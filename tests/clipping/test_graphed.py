"""The fixed program against the engine: padding, zero weights, static buffers; on CUDA also the recorded graph."""

import math
from typing import Any

import pytest
import torch
from clipping_cases import CASES, loss
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.clipping import Engine, EngineSettings, GraphedEngine
from decrescendo.clipping.batches import map_rows
from decrescendo.clipping.graphed import _Program
from decrescendo.errors import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
devices = pytest.mark.parametrize("device", ["cpu", GPU])


def moved(model: nn.Module, batch: Any, device: str) -> tuple[nn.Module, Any]:
    return model.to(device), map_rows(lambda rows: rows.to(device), batch)


def same(one: Any, other: Any, tolerance: float = 1e-10) -> None:
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in other.gradients.items():
        torch.testing.assert_close(one.gradients[name], gradient, rtol=tolerance, atol=tolerance)
    assert (one.diagnostics.examples, one.diagnostics.nonfinite, one.diagnostics.clipped) == (
        other.diagnostics.examples, other.diagnostics.nonfinite, other.diagnostics.clipped,
    )  # fmt: skip
    assert one.diagnostics.loss_sum == pytest.approx(other.diagnostics.loss_sum)


# Where shapes come from the data itself.
RAGGED = [name for name in CASES if name.startswith("bag of") or "packed" in name]
# What is laid along the examples (weights repeated for each) is looked at, so that CUDA graphs cannot record it.
STATIC = [name for name in CASES if name not in (*RAGGED, "instance norm")]


@pytest.mark.parametrize("name", RAGGED)
def test_what_has_shapes_from_values_is_refused_before_the_first_step(name: str) -> None:
    model, batch = CASES[name].make(torch.float64, 6)
    with pytest.raises(UnsupportedModel, match="shapes that do not depend on the data"):
        GraphedEngine(model, loss, 6).clipped_sum(batch, 1.0)


@devices
@pytest.mark.parametrize("name", STATIC)
def test_padded_chunks_equal_the_engine(name: str, device: str) -> None:
    """Seven rows in chunks of five: the second chunk is filled up; then one row, four fillers."""
    model, batch = moved(*CASES[name].make(torch.float64, 7), device)
    plain, graphed = Engine(model, loss), GraphedEngine(model, loss, 5)
    for rows in (7, 1, 5):
        part = map_rows(lambda r, rows=rows: r[:rows], batch)
        limit = max(1.01 * float(plain.per_example_norms(part).median()), 1e-6)
        same(graphed.clipped_sum(part, limit), plain.clipped_sum(part, limit))


@devices
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e200])
def test_fillers_and_rows_that_are_not_finite_contribute_exactly_zero(poison: float, device: str) -> None:
    """The first row fills up: if it is the poisoned one, so are the fillers, and they are not counted."""
    model, batch = moved(*CASES["deep"].make(torch.float64, 7), device)
    graphed = GraphedEngine(model, loss, 5)
    graphed.clipped_sum(batch, 0.5)
    batch[0][5, 0] = poison
    found = graphed.clipped_sum(batch, 0.5)
    same(found, Engine(model, loss).clipped_sum(batch, 0.5))
    assert found.diagnostics.nonfinite == 1


@devices
def test_a_chunk_of_nothing_but_fillers_adds_no_bit(device: str) -> None:
    model, batch = moved(*CASES["embedding"].make(torch.float32, 6), device)
    graphed = GraphedEngine(model, loss, 6)
    graphed.clipped_sum(batch, 0.5)
    (program,) = graphed._programs.values()
    program.clear(0.5)
    program.present.zero_()
    program.replay()
    assert all(float(total.abs().max()) == 0.0 for total in program.totals.values())


@devices
def test_parameters_updated_in_place_and_a_moving_clip_norm_are_followed(device: str) -> None:
    model, batch = moved(*CASES["transformer layer"].make(torch.float64, 6), device)
    graphed = GraphedEngine(model, loss, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for limit in (1.0, 0.3, 0.01, math.inf):
        found = graphed.clipped_sum(batch, limit)
        same(found, Engine(model, loss).clipped_sum(batch, limit))
        for name, parameter in model.named_parameters():
            parameter.grad = found.gradients[name]
        optimizer.step()
        optimizer.zero_grad()
    assert len(graphed._programs) == 1


@devices
def test_what_was_recorded_for_parameters_elsewhere_is_not_replayed(device: str) -> None:
    model, batch = moved(*CASES["deep"].make(torch.float64, 6), device)
    graphed = GraphedEngine(model, loss, 4)
    graphed.clipped_sum(batch, 0.5)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() + 1
    same(graphed.clipped_sum(batch, 0.5), Engine(model, loss).clipped_sum(batch, 0.5))
    model[0].weight.requires_grad_(False)
    found = graphed.clipped_sum(batch, 0.5)
    same(found, Engine(model, loss).clipped_sum(batch, 0.5))
    assert "0.weight" not in found.gradients
    assert len(graphed._programs) == 1


@devices
def test_sums_handed_out_are_not_overwritten_by_the_next_step(device: str) -> None:
    model, batch = moved(*CASES["deep"].make(torch.float64, 6), device)
    graphed = GraphedEngine(model, loss, 4)
    first = graphed.clipped_sum(batch, 0.5).gradients["0.weight"]
    kept = first.clone()
    graphed.clipped_sum(map_rows(lambda rows: rows[:2], batch), 0.5)
    assert torch.equal(first, kept)


def test_an_empty_batch_and_precise_sums() -> None:
    model, batch = CASES["conv2d"].make(torch.float32, 6)
    settings = EngineSettings(precise=True)
    graphed = GraphedEngine(model, loss, 4, settings)
    for part in (batch, None):
        found = graphed.clipped_sum(part, 0.1)
        assert {gradient.dtype for gradient in found.gradients.values()} == {torch.float64}
    same(graphed.clipped_sum(batch, 0.1), Engine(model, loss, settings).clipped_sum(batch, 0.1), 1e-6)


def test_a_model_that_mixes_its_batch_is_refused_before_anything_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModel, match="GroupNorm"):
        GraphedEngine(model, loss, 4).clipped_sum((torch.randn(6, 5), torch.zeros(6, dtype=torch.long)), 1.0)


def test_operations_that_change_with_the_values_are_refused() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if float(x.sum()) > 0 else self.a(x) + self.b(x)

    graphed = GraphedEngine(Choosing(), loss, 4)
    labels = torch.zeros(4, dtype=torch.long)
    with pytest.raises(UnsupportedModel, match="must not steer"):
        graphed.clipped_sum((torch.ones(4, 5), labels), 1.0)


class NoLooks(TorchDispatchMode):
    """Refuses what a CUDA graph cannot record: values brought to the host, and shapes made from values."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "equal",
        "repeat_interleave.Tensor",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        assert name.split(".")[0] not in self.FORBIDDEN, f"{name} looks at values"
        assert name not in self.FORBIDDEN, f"{name} looks at values"
        if name.startswith("index.") and any(a is not None and a.dtype == torch.bool for a in args[1]):
            raise AssertionError("indexing by a mask makes shapes from values")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", STATIC)
def test_no_rule_looks_at_values_inside_the_recorded_step(name: str) -> None:
    model, batch = CASES[name].make(torch.bfloat16 if name == "matmul of a transposed" else torch.float32, 6)
    graphed = GraphedEngine(model, loss, 6)
    graphed.clipped_sum(batch, 0.5)
    (program,) = graphed._programs.values()
    with NoLooks():
        _Program.step(program, 1)


def test_that_look_would_be_seen() -> None:
    model, batch = CASES["embedding"].make(torch.float32, 6)
    engine = Engine(model, loss)
    engine.clipped_sum(batch, 0.5)
    with NoLooks(), pytest.raises(AssertionError, match="looks at values"):
        engine.clipped_sum(batch, 0.5)


@pytest.mark.gpu
def test_a_replayed_graph_launches_once_and_draws_fresh_dropout() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3)).cuda()
    batch = (torch.randn(8, 5, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda"))
    graphed = GraphedEngine(model, loss, 8)
    sums = [graphed.clipped_sum(batch, 1.0).gradients["2.weight"] for _ in range(3)]
    (program,) = graphed._programs.values()
    assert program.graph is not None
    assert not torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[1], sums[2])
