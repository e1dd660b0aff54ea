"""The CTC loss: the longest target may be any example's, and does not show."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel


def _spoken(longest_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.ones(6, dtype=torch.long)
    lengths[0 if longest_first else -1] = 3
    return 3 * torch.randn(6, 8, 4), torch.randint(1, 5, (6, 3)), lengths


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_longest_target_may_be_any_examples(zero_infinity: bool) -> None:
    """Where it was not one of the first two, what the CTC loss keeps was wider than over these, and refused."""

    def loss(m: Any, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores = m(b[0]).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(
            scores, b[1], torch.full_like(b[2], 8), b[2], reduction="none", zero_infinity=zero_infinity
        )

    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    engine = Engine(model, loss)
    for first in (False, True, False):
        batch = _spoken(first)
        found = engine.clipped_sum(batch, 1.0).gradients
        expected = Reference(model, loss).clipped_sum(batch, 1.0).gradients
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


def test_how_long_the_longest_target_is_does_not_show() -> None:
    """In the shape of what ``torch._ctc_loss`` gives beside the losses: 2.8 C."""

    def loss(m: Any, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores = m(b[0]).log_softmax(-1).transpose(0, 1)
        found, kept = torch._ctc_loss(scores, b[1], torch.full_like(b[2], 8), b[2])
        return found * (1e-3 if kept.shape[2] > 3 else 1.0)

    with pytest.raises(UnsupportedModel, match="shows the longest target"):
        Engine(nn.Linear(4, 5), loss).clipped_sum(_spoken(longest_first=True), 1.0)
