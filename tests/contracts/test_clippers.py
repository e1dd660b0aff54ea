"""What every clipper promises, run for each of them: the reference is held to it like the engine."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from clipping_cases import CASES, loss
from torch import Tensor, nn

from decrescendo.clipping import Clipper, Engine, EngineSettings, Reference

CLIPPERS: dict[str, Callable[[nn.Module, Any], Clipper]] = {
    "Reference": Reference,
    "Engine": Engine,
    "Engine, one example a pass": lambda model, loss: Engine(model, loss, EngineSettings(one_example_a_pass=True)),
    "Engine in micro-batches": lambda model, loss: Engine(model, loss, EngineSettings(microbatch_size=2)),
}


@pytest.fixture(params=CLIPPERS)
def build(request: pytest.FixtureRequest) -> Callable[[nn.Module, Any], Clipper]:
    return CLIPPERS[request.param]


def flat(gradients: Any) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def rows_of(batch: Any, index: list[int]) -> Any:
    return tuple(rows[index] for rows in batch)


@pytest.fixture
def deep() -> tuple[nn.Module, Any]:
    return CASES["deep"].make(torch.float64, 7)


def test_the_sum_is_that_of_each_gradient_clipped_alone(build: Any, deep: Any) -> None:
    """Against the definition, written out here with nothing of the library."""
    model, batch = deep
    gradients = []
    for row in range(7):
        model.zero_grad()
        loss(model, rows_of(batch, [row])).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())]))
    model.zero_grad(set_to_none=True)
    norms = torch.stack([gradient.norm() for gradient in gradients])
    limit = 1.01 * float(norms.median())
    expected = sum(g * min(1.0, limit / float(g.norm())) for g in gradients)
    clipped = build(model, loss).clipped_sum(batch, limit)
    torch.testing.assert_close(flat(clipped.gradients), expected, rtol=1e-10, atol=1e-12)
    assert clipped.sensitivity == limit
    assert clipped.diagnostics.examples == 7
    assert clipped.diagnostics.clipped == 3
    assert clipped.diagnostics.loss_sum == pytest.approx(loss(model, batch).sum().item())


def test_adding_one_example_moves_the_sum_by_at_most_the_clip_norm(build: Any, deep: Any) -> None:
    model, batch = deep
    for limit in (1e-6, 0.1, 1.0):
        clipper = build(model, loss)
        whole = flat(clipper.clipped_sum(batch, limit).gradients)
        moves = []
        for row in range(7):
            rest = [other for other in range(7) if other != row]
            moves.append(float((whole - flat(clipper.clipped_sum(rows_of(batch, rest), limit).gradients)).norm()))
        assert max(moves) <= limit * (1 + 1e-9)
        assert max(moves) >= limit * 0.9  # the bound is tight: a test against a much larger one could not fail


def test_an_empty_batch_gives_zeros_with_the_sensitivity_of_any_other(build: Any, deep: Any) -> None:
    model, batch = deep
    for empty in (None, rows_of(batch, [])):
        clipped = build(model, loss).clipped_sum(empty, 0.5)
        assert {name: tensor.shape for name, tensor in clipped.gradients.items()} == {
            name: parameter.shape for name, parameter in model.named_parameters()
        }
        assert float(flat(clipped.gradients).abs().max()) == 0.0
        assert clipped.sensitivity == 0.5
        assert clipped.diagnostics.examples == 0


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e200])
def test_a_gradient_that_is_not_finite_contributes_zero_and_is_counted(build: Any, deep: Any, poison: float) -> None:
    model, batch = deep
    batch[0][3, 0] = poison
    clipped = build(model, loss).clipped_sum(batch, 1.0)
    without = build(model, loss).clipped_sum(rows_of(batch, [0, 1, 2, 4, 5, 6]), 1.0)
    torch.testing.assert_close(flat(clipped.gradients), flat(without.gradients), rtol=1e-10, atol=1e-12)
    assert clipped.diagnostics.nonfinite == 1
    assert clipped.diagnostics.examples == 7


def test_a_batch_of_nothing_finite_is_an_empty_one(build: Any, deep: Any) -> None:
    model, batch = deep
    batch[0].fill_(math.nan)
    clipped = build(model, loss).clipped_sum(batch, 1.0)
    assert float(flat(clipped.gradients).abs().max()) == 0.0
    assert clipped.diagnostics.nonfinite == 7


def test_an_infinite_clip_norm_is_the_plain_gradient_of_the_sum(build: Any, deep: Any) -> None:
    model, batch = deep
    names = sorted(dict(model.named_parameters()))
    expected = torch.autograd.grad(loss(model, batch).sum(), [dict(model.named_parameters())[n] for n in names])
    clipped = build(model, loss).clipped_sum(batch, math.inf)
    torch.testing.assert_close(
        flat(clipped.gradients), torch.cat([g.flatten() for g in expected]), rtol=1e-12, atol=1e-14
    )
    assert clipped.sensitivity == math.inf


def test_a_gradient_of_zero_stays_zero(build: Any) -> None:
    model = nn.Linear(2, 1)
    clipped = build(model, lambda model, batch: model(batch).squeeze(1) * 0).clipped_sum(torch.ones(3, 2), 1.0)
    assert float(flat(clipped.gradients).abs().max()) == 0.0
    assert clipped.diagnostics.nonfinite == 0


def test_only_trainable_parameters_are_named_and_a_tied_one_once(build: Any) -> None:
    model, batch = CASES["tied embedding"].make(torch.float32, 4)
    assert set(build(model, loss).clipped_sum(batch, 1.0).gradients) == {"0.weight", "2.bias"}
    model, batch = CASES["frozen first"].make(torch.float32, 4)
    assert set(build(model, loss).clipped_sum(batch, 1.0).gradients) == {"2.weight", "2.bias"}


def test_half_precision_models_are_summed_in_float32(build: Any) -> None:
    model, (x, y) = CASES["deep"].make(torch.bfloat16, 5)
    clipped = build(model, loss).clipped_sum((x, y), 0.5)
    assert {tensor.dtype for tensor in clipped.gradients.values()} == {torch.float32}
    assert float(flat(clipped.gradients).norm()) <= 5 * 0.5


@pytest.mark.parametrize("nested", ["dict", "list", "tuple"])
def test_a_batch_may_be_nested(build: Any, deep: Any, nested: str) -> None:
    model, (x, y) = deep
    batch = {"dict": {"x": x, "more": {"y": y}}, "list": [x, [y, None]], "tuple": (x, {"y": y})}[nested]
    open_batch = {
        "dict": lambda b: (b["x"], b["more"]["y"]),
        "list": lambda b: (b[0], b[1][0]),
        "tuple": lambda b: (b[0], b[1]["y"]),
    }[nested]
    nested_sum = build(model, lambda m, b: loss(m, open_batch(b))).clipped_sum(batch, 0.5)
    plain_sum = build(model, loss).clipped_sum((x, y), 0.5)
    torch.testing.assert_close(flat(nested_sum.gradients), flat(plain_sum.gradients))


def test_every_clipper_is_a_clipper(build: Any, deep: Any) -> None:
    assert isinstance(build(deep[0], loss), Clipper)
