"""Frozen teachers: in inference mode, and one that the student is still a copy of."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def test_a_teacher_of_a_librarys_code_is_listed() -> None:
    """Its innermost line is not the user's: no line was listed, and nothing bounds what its private rows moved."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    teacher = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, intermediate_size=4)).eval()
    model, tokens = nn.Embedding(9, 2), torch.randint(9, (ROWS, 3))

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        with torch.no_grad():
            soft = teacher(input_ids=rows).logits.softmax(1)
        return -(soft * model(rows).mean(1).log_softmax(1)).sum(1)

    engine = Engine(model, loss)
    engine.clipped_sum(tokens, 0.5)
    read = [str(one) for one in engine.assumptions if one.code == "tensors-read"]
    assert any(f"test_teachers.py:{loss.__code__.co_firstlineno + 2}" in one for one in read)


def test_a_line_that_was_typed_is_listed() -> None:
    """As in a shell, with ``-c`` or in IPython: such code has no file."""
    typed = "def loss(model, x):\n    return (model(x) * weights).sum(1)\n"
    names: dict[str, Any] = {"__name__": "__main__", "weights": torch.rand(2)}
    exec(compile(typed, "<stdin>", "exec"), names)
    engine = Engine(nn.Linear(3, 2), names["loss"])
    engine.clipped_sum(data(), 0.5)
    assert [str(one) for one in engine.assumptions if "<stdin>:2" in str(one)]


@pytest.mark.parametrize("teacher", ["dense", "attention", "recurrent"])
def test_a_teacher_in_inference_mode_is_seen_as_any_other(teacher: str) -> None:
    """It was refused: nothing takes operations apart there that are made of others."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    lstm = nn.LSTM(3, 3, batch_first=True).requires_grad_(False)
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "dense": nn.Linear(3, 3),
        "attention": lambda x: nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
        "recurrent": lambda x: lstm(x[:, None])[0][:, 0],
    }  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.inference_mode():
            soft = kinds[teacher](x).softmax(1)
        return -(soft.clone() * model(x).log_softmax(1)).sum(1)

    def mixing(model: nn.Module, x: Tensor) -> Tensor:
        with torch.inference_mode():
            soft = kinds[teacher](x - x.mean(0)).softmax(1)
        return -(soft.clone() * model(x).log_softmax(1)).sum(1)

    engine = Engine(model, loss)
    found, expected = engine.clipped_sum(data(), 0.5), Reference(model, loss).clipped_sum(data(), 0.5)
    torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"])
    assert [one.code for one in engine.assumptions if teacher != "attention"] == ["tensors-read"] * (
        teacher != "attention"
    )
    with pytest.raises(UnsupportedModel, match=r"depend on another|several examples are put together"):
        Engine(model, mixing).clipped_sum(data(), 0.5)


class Student(nn.Module):
    """Starts as its frozen teacher: losses and gradients cancel to what rounding leaves."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
        self.student = nn.Sequential(*layers)
        self.teacher = copy.deepcopy(self.student).requires_grad_(requires_grad=False)


def _distilled(m: Student, x: Tensor) -> Tensor:
    return (m.student(x) - m.teacher(x)).square().sum(1)


def _byol(m: Student, x: Tensor) -> Tensor:
    return 2 - 2 * functional.cosine_similarity(m.student(x), m.teacher(x))


def _normalised(m: Student, x: Tensor) -> Tensor:
    return m.student[:2](x).flatten(1).sum(1)  # without its bias a sum of zeros


@pytest.mark.slow
@pytest.mark.parametrize("loss", some([_distilled, _byol, _normalised], 1))
def test_losses_that_cancel_to_rounding_are_taken(loss: Any) -> None:
    """The recorded group norm rounds otherwise than torch's: of a loss of zero that was all of it, and refused."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = Student()
        before = copy.deepcopy(model.state_dict())
        Engine(model, loss).clipped_sum(torch.randn(5, 2, 6), 1.0)
        assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
