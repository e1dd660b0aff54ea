"""Facts: accuracy counts right answers whatever the batching, and leaves the model as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decrescendo.errors import InvalidValue
from decrescendo.training.tasks.evaluate import accuracy


@given(rows=st.integers(1, 40), right=st.integers(0, 40), batch_size=st.integers(1, 50))
def test_the_share_of_right_answers_does_not_depend_on_batching(rows: int, right: int, batch_size: int) -> None:
    right = min(rows, right)
    targets = torch.arange(rows) % 3
    answers = torch.where(torch.arange(rows) < right, targets, (targets + 1) % 3)
    outputs = nn.functional.one_hot(answers, 3).float()
    assert accuracy(nn.Identity(), outputs, targets, batch_size) == right / rows


def test_eval_mode_inside_and_every_flag_back_outside() -> None:
    seen: list[tuple[bool, bool]] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.frozen = nn.Linear(2, 2), nn.Dropout()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((self.frozen.training, torch.is_grad_enabled()))
            return self.layer(x)

    model = Spy().train()
    model.frozen.eval()
    accuracy(model, torch.zeros(2, 2), torch.tensor([0, 1]))
    assert seen == [(False, False)]
    assert (model.training, model.layer.training, model.frozen.training) == (True, True, False)


def test_flags_come_back_after_an_error_too() -> None:
    model = nn.Linear(2, 2).train()
    with pytest.raises(RuntimeError):
        accuracy(model, torch.zeros(2, 3), torch.tensor([0, 1]))
    assert model.training


def test_the_accuracy_over_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one row"):
        accuracy(nn.Identity(), torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
