"""Attention whose mask is trained (a position bias), with dropout: the masks are those of the pass, drawn once."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.rules.decompose import attention
from decrescendo.clipping.rules.fallback import FallbackKernel
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import UnsupportedModel

ROWS, LENGTH, WIDTH = 6, 8, 4


class Biased(nn.Module):
    """One head with a learned bias of the scores; only the bias and the output are trained."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, WIDTH, dropout=dropout, batch_first=True)
        self.attention.requires_grad_(False)
        self.attention.in_proj_weight.mul_(3)
        self.bias = nn.Parameter(torch.zeros(LENGTH, LENGTH))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x, x, x, attn_mask=self.bias, need_weights=False)
        return self.out(seen[:, 0]).squeeze(-1)


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, LENGTH, WIDTH), 3 * torch.randn(ROWS)


def norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in gradients.values()))


@pytest.mark.parametrize("settings", [{"cache_bytes": 0}, {}, {"memory": "low"}])
def test_one_example_adds_at_most_the_clip_norm_whatever_is_kept(settings: dict[str, object]) -> None:
    x, y = batch()
    model, seeds = Biased(0.5).train(), itertools.count(1)
    engine = Engine(model, squares, EngineSettings(**settings), seeds=lambda: next(seeds))
    nn.init.zeros_(model.out.weight)  # gradients that are zero in the compared passes hide nothing
    engine.clipped_sum((x, y), 1.0)
    nn.init.constant_(model.out.weight, 3.0)
    norms = [norm(dict(engine.clipped_sum((x[at : at + 1], y[at : at + 1]), 1.0).gradients)) for at in range(ROWS)]
    assert max(norms) <= 1.0
    assert max(norms) > 0.99  # there is something to clip


def test_masks_come_from_the_seeds_of_the_run_alone() -> None:
    rows, model = batch(), Biased(0.5).train()
    engine = Engine(model, squares, EngineSettings(capture=False), seeds=lambda: 7)
    sums = []
    for other in (1, 2):
        torch.manual_seed(other)
        sums.append(engine.clipped_sum(rows, 1.0).gradients)
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0])


def test_without_dropout_it_is_the_reference() -> None:
    rows, model = tuple(part.double() for part in batch()), Biased(0.0).double()
    found = Engine(model, squares).clipped_sum(rows, 0.5).gradients
    for name, expected in Reference(model, squares).clipped_sum(rows, 0.5).gradients.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-12)


def test_it_computes_what_torchs_own_does() -> None:
    query, key = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6)
    value, every = torch.randn(2, 2, 7, 3), torch.rand(2, 4, 5, 7) < 0.5
    every[0, 0, 0] = False  # looks at nothing
    for given in (
        {"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}, {"enable_gqa": True, "attn_mask": every},
        {"enable_gqa": True, "attn_mask": torch.randn(5, 7), "scale": 0.3},
    ):  # fmt: skip
        expected = functional.scaled_dot_product_attention(query, key, value, **given)
        torch.testing.assert_close(attention(query, key, value, **given), expected)


def test_half_types_are_computed_in_float32_as_torch_does() -> None:
    query, key, value = (300 * torch.randn(2, 4, 5, 64, dtype=torch.float16) for _ in range(3))
    expected = functional.scaled_dot_product_attention(query, key, value / 300)
    found = attention(query, key, value / 300)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, expected)


def test_it_is_clipped_under_autocast_too() -> None:
    x, y = batch()
    model = Biased(0.5).train()
    nn.init.constant_(model.out.weight, 3.0)

    def cast(model: nn.Module, rows: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squares(model, rows).float()

    found = Engine(model, cast, EngineSettings(cache_bytes=0), seeds=lambda: 7).clipped_sum((x[:1], y[:1]), 1.0)
    assert 0.9 < norm(dict(found.gradients)) <= 1.0


def test_an_operation_that_would_draw_again_is_refused() -> None:
    weight, rows = torch.ones(3, requires_grad=True), torch.randn(ROWS, 3)
    kernel = FallbackKernel(
        "drops", lambda weights, given: functional.dropout(given[0] * weights[0]), (weight,), (), [rows],
        [(1, 3)], Workspace(0), ("weight",),
    )  # fmt: skip
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedModel, match="must be drawn once, got drops with weight"):
        kernel.squared_norms(0, torch.ones(ROWS, 3))
    assert not torch.equal(before, torch.get_rng_state())
