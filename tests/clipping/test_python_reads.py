"""Python reads the data in a pass: in the loss, in hooks, in functions that torch calls, by errors that it catches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from decrescendo.clipping import Engine
from decrescendo.errors import DecrescendoError, UnsupportedModel


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)


def test_a_true_number_does_not_stay_in_python() -> None:
    """What a program reads is NaN in every pass, also in those that only compare."""
    seen: list[float] = []

    def reading(m: Any, x: Tensor) -> Tensor:
        seen.append(float(x.sum()))
        return m.layer(x).sum(1)

    Engine(Small(), reading).clipped_sum(torch.randn(6, 4), 1.0)
    assert seen
    assert all(value != value or abs(value) in (0.0, 1e30) for value in seen)


def _caught(m: Any, x: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky(torch.diag_embed(10 - x))
    except torch.linalg.LinAlgError:
        return -m.layer(x).sum(1)
    return m.layer(x).sum(1)


def test_an_error_that_is_caught_is_refused() -> None:
    batch = torch.randn(6, 4)
    batch[0] = 11
    with pytest.raises(DecrescendoError):
        Engine(Small(), _caught).clipped_sum(batch, 0.1)


def _flipped_by_an_error(m: Any, x: Tensor) -> Tensor:
    """An operation that raises by the data must not make the engine try the other answer."""
    if bool(x.sum() > 0):
        return -m.layer(x).sum(1)
    torch.linalg.cholesky(torch.diag_embed(10 - x))
    return m.layer(x).sum(1)


def test_an_error_of_the_data_changes_no_answer() -> None:
    torch.manual_seed(0)
    batch = torch.randn(6, 4)
    engine = Engine(Small(), _flipped_by_an_error)
    answers = engine.memory.answers
    with pytest.raises(DecrescendoError):
        engine.clipped_sum(batch + 1, 0.1)
    before = dict(answers)
    batch[0] = 11
    with pytest.raises((DecrescendoError, RuntimeError)):
        engine.clipped_sum(batch, 0.1)
    assert answers == before


def _called_back(m: Any, x: Tensor) -> Tensor:
    seen: list[float] = []

    def distance(a: Tensor, b: Tensor) -> Tensor:
        seen.append(x.tolist()[0][0])
        return (a - b).square().sum(1)

    fn.triplet_margin_with_distance_loss(x, x, x, distance_function=distance, reduction="none")
    return m.layer(x).sum(1) * (1.0 if seen[0] > 0 else -1.0)


def _read_in_a_hook(m: Any, x: Tensor) -> Tensor:
    out = m.layer(x)
    out.register_hook(lambda g: g * (1.0 if g.tolist()[0][0] > 0 else -1.0))
    return out.square().sum(1)


class _Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (1.0 if ctx.saved_tensors[0].tolist()[0][0] > 0 else -1.0)


def _read_in_an_inner_pass(m: Any, x: Tensor) -> Tensor:
    inner, seen = x.detach().requires_grad_(), [0.0]
    out = inner * 1

    def note(g: Tensor) -> None:
        seen[0] = x.tolist()[0][0]

    out.register_hook(note)
    torch.autograd.grad(out.sum(), inner)
    return m.layer(x).sum(1) * (1.0 if seen[0] > 0 else -1.0)


@pytest.mark.parametrize(
    "program",
    [
        _called_back,
        _read_in_a_hook,
        lambda m, x: _Reads.apply(m.layer(x)).square().sum(1),
        _read_in_an_inner_pass,
    ],
    ids=["a callback", "a hook", "a function of one's own", "a backward pass inside the loss"],
)
def test_code_that_torch_calls_reads_no_data(program: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(DecrescendoError, match="tolist"):
        Engine(Small(), program).clipped_sum(torch.randn(6, 4), 0.1)


def test_an_operation_that_runs_functions_of_the_program_is_refused_in_words() -> None:
    def program(m: nn.Module, x: Tensor) -> Tensor:
        turned = torch.ops.higher_order.cond(x.detach().mean() > 0, lambda v: 2 * v, lambda v: -v, (x,))
        return m(turned).squeeze(1)

    with pytest.raises(UnsupportedModel, match=r"but cond runs functions of the model"):
        Engine(nn.Linear(6, 1), program).check(torch.randn(5, 6))


@pytest.mark.parametrize("start", [torch.autograd.backward, Tensor.backward])
def test_what_hooks_read_in_a_backward_pass_inside_the_loss_is_refused(start: Any) -> None:
    def loss(model: Any, x: Tensor) -> Tensor:
        seen: list[float] = []
        squared = x.clone().requires_grad_().square()
        squared.register_hook(lambda g: seen.extend(g.flatten().tolist()))
        start(squared.square().sum())
        return model.layer(x).square().mean(1) * (-1.0 if any(number > 4 for number in seen) else 1.0)

    with pytest.raises(UnsupportedModel, match="takes them out by tolist"):
        Engine(Small(), loss).clipped_sum(torch.ones(6, 4), 0.1)


def test_a_range_that_a_kernel_finds_over_a_batch_is_refused() -> None:
    """It is no operation that shows, but other rows have another range."""

    def program(m: Any, x: Tensor) -> Tensor:
        greatest: Any = torch.choose_qparams_optimized(x.flatten(), x.numel(), 10, 0.5, 8)[0]
        return m.layer(x).sum(1) * greatest

    with pytest.raises(UnsupportedModel, match="must do the same for any number of examples"):
        Engine(Small(), program).clipped_sum(torch.randn(5, 4), 1.0)
