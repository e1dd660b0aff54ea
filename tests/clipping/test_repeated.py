"""Parameters that several operations use: closed forms equal the slow loop, and nothing is materialised."""

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.repeated import inner_products


class Tied(nn.Module):
    """A language model whose embedding is also its output layer."""

    def __init__(self, words: int, dim: int, *, padding: int | None = None, twice: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim, padding_idx=padding)
        self.hidden = nn.Linear(dim, dim)
        self.twice = twice

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        if self.twice:
            rows = rows + self.embedding(ids.flip(1)) * 0.5
        hidden = self.hidden(rows).tanh()
        return functional.linear(hidden, self.embedding.weight)


class Unrolled(nn.Module):
    """A recurrence in plain Python: every weight is used once a step."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.into = nn.Linear(features, hidden)
        self.again = nn.Linear(hidden, hidden, bias=False)
        self.turned = nn.Parameter(torch.randn(hidden, 2))

    def forward(self, rows: Tensor) -> Tensor:
        state = torch.zeros(rows.shape[0], self.again.in_features, dtype=rows.dtype)
        out = torch.zeros(rows.shape[0], 2, dtype=rows.dtype)
        for step in rows.unbind(1):
            state = (self.into(step) + self.again(state)).tanh()
            out = out + state @ self.turned
        return out


def words_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean over positions of the cross entropy of the next word."""
    return functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def rows_loss(model: nn.Module, rows: Tensor) -> Tensor:
    """Something that is not linear in the output."""
    return model(rows).square().sum(1)


def check(model: nn.Module, loss, batch: Tensor, dtype: torch.dtype, settings: EngineSettings) -> None:
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    engine, slow = Engine(model, loss, settings), Reference(model, loss)
    norms = slow.per_example_norms(batch)
    torch.testing.assert_close(engine.per_example_norms(batch), norms, rtol=10 * tolerance, atol=0)
    clip = float(norms.median())
    found, expected = engine.clipped_sum(batch, clip), slow.clipped_sum(batch, clip)
    for name, gradient in expected.gradients.items():
        scale = float(gradient.norm()) + 1e-300
        # The two shrink by different bounds on their rounding.
        assert float((found.gradients[name] - gradient).norm()) <= (tolerance + 2e-5) * scale, name


SETTINGS = [EngineSettings(), EngineSettings(cache_bytes=0)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "nothing kept"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", some([None, 3], 1))
@pytest.mark.parametrize("twice", [False, True])
def test_a_tied_embedding(padding: int | None, twice: bool, dtype: torch.dtype, settings: EngineSettings) -> None:
    torch.manual_seed(0)
    model = Tied(11, 6, padding=padding, twice=twice).to(dtype)
    check(model, words_loss, torch.randint(11, (7, 9)), dtype, settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "nothing kept"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_unrolled_recurrence(dtype: torch.dtype, settings: EngineSettings) -> None:
    torch.manual_seed(1)
    check(Unrolled(3, 5).to(dtype), rows_loss, torch.randn(6, 8, 3, dtype=dtype), dtype, settings)


def test_a_tied_embedding_never_holds_a_matrix_for_every_example() -> None:
    """64 gradients of 200,000 x 64 would be 3.3 GB a use; so would 64 logits of 16 positions be 0.8 GB."""
    model = Tied(20_000, 64)
    engine = Engine(model, words_loss, EngineSettings(cache_bytes=0))
    largest = 0

    class Tracer(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    with Tracer():
        engine.clipped_sum(torch.randint(20_000, (16, 5)), 1.0)
    assert largest <= 16 * 5 * 20_000  # the logits, not 16 x 20,000 x 64


def test_products_that_nearly_cancel_are_rounded_upwards() -> None:
    """A lookup that takes away what the product gives: the norm must not come out below the true one."""
    torch.manual_seed(2)
    for _ in range(50):
        a, e = torch.randn(4, 3, 5), torch.randn(4, 2, 5)
        d = torch.randn(4, 3, 7)
        ids = torch.randint(7, (4, 2))
        found, bound = inner_products(a, d, ids, e)
        wide = torch.zeros(4, 7, 5, dtype=torch.float64)
        for row in range(4):
            for place in range(2):
                wide[row, ids[row, place]] += e[row, place].double()
        products = torch.einsum("bso,bsf->bof", d.double(), a.double())
        exact = (wide * products).sum((1, 2))
        assert bool(((found.double() - exact).abs() <= 4e-7 * bound.double()).all())
