"""A refusal gives the reason that is the reason, and a way that works; and what is no reason is none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

DRAWS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "a number each": lambda x, g: x + torch.randn(x.shape, generator=g),
    "a mask": lambda x, g: x * torch.bernoulli(torch.full_like(x, 0.5), generator=g),
    "in place": lambda x, g: x + torch.empty_like(x).normal_(generator=g),
    "one for all": lambda x, g: x + torch.randn(4, generator=g),
    "an order of columns": lambda x, g: x[:, torch.randperm(4, generator=g)],
    "a choice": lambda x, g: x * torch.multinomial(x.softmax(1), 4, generator=g),
    "whole numbers": lambda x, g: x + torch.randint(3, (len(x), 4), generator=g),
    "seeded in the pass": lambda x, g: x + torch.randn(x.shape, generator=g.manual_seed(3)),
}


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().sum(1)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_generator_of_the_programs_own_is_what_is_refused(
    draw: Callable[[Tensor, torch.Generator], Tensor],
) -> None:
    """Three other sentences came, about divisors, positions and orders."""

    class Noisy(nn.Linear):
        own: Any = torch.Generator().manual_seed(1)

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(draw(input, self.own))

    with pytest.raises(
        UnsupportedModel, match=r"torch's default generator.*test_reasons\.py.*Leave generator= out"
    ):
        Engine(Noisy(4, 2), squares, seeds=lambda: 1).check(torch.randn(5, 4))


def test_a_constant_laid_along_the_rows_is_so_beside_no_generator() -> None:
    steps = torch.arange(5.0)[:, None]
    with pytest.raises(UnsupportedModel, match="laid along them"):
        Engine(nn.Linear(4, 2), lambda m, x: squares(m, x + steps[: len(x)])).check(torch.randn(5, 4))


def test_a_weight_that_the_pass_projects_is_told_from_statistics() -> None:
    """OFT with coft=True: .eval() does nothing there."""

    class Projected(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.copy_(self.weight / self.weight.norm())
            return super().forward(input)

    with pytest.raises(UnsupportedModel, match="between steps") as refused:
        Engine(Projected(4, 2), squares).check(torch.randn(5, 4))
    assert ".eval()" not in str(refused.value)


def test_a_checkpointed_model_keeps_nothing_in_what_it_calls_it_by() -> None:
    """As Transformers enables it, by a partial with an argument by name, which notes in C that it was called."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
            self.call: Any = partial(checkpoint, use_reentrant=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.call(self.inner.__call__, x)).mean(1)

    engine = Engine(Checkpointed(), squares)
    for length in (3, 5):
        engine.clipped_sum(torch.randn(4, length, 4), 1.0)
    assert engine.assumptions == ()


def test_a_gradient_penalty_is_told_to_be_a_second_derivative() -> None:
    def penalised(model: nn.Module, batch: Tensor) -> Tensor:
        at = batch.detach().clone().requires_grad_(True)
        score = model(at)
        (slope,) = torch.autograd.grad(score.sum(), at, create_graph=True)
        return score.squeeze(1) + (slope.norm(dim=1) - 1).square()

    with pytest.raises(UnsupportedModel, match="second derivative"):
        Engine(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), penalised).check(torch.randn(5, 4))


def test_a_state_that_is_kept_from_batch_to_batch_is_named() -> None:
    class Carries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.state = nn.GRUCell(4, 3), None

        def forward(self, x: Tensor) -> Tensor:
            fits = self.state is not None and len(self.state) == len(x)
            state = self.cell(x, self.state if fits else None)
            self.state = state.detach()
            return state

    with pytest.raises(UnsupportedModel, match="state from batch to batch"):
        Engine(Carries(), squares).clipped_sum(torch.randn(5, 4), 1.0)


def test_features_that_are_scattered_by_a_mask_of_the_batch_have_a_way_out_that_works() -> None:
    """As LLaVA-like models put features of images among embeddings."""
    torch.manual_seed(0)
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[:, 1:3] = True
    mask[0, 4] = True

    class Merged(nn.Module):
        def __init__(self, *, whole: bool) -> None:
            super().__init__()
            self.words, self.seen, self.whole = nn.Linear(4, 3), nn.Linear(4, 3), whole

        def forward(self, x: Tensor, images: Tensor, mask: Tensor) -> Tensor:
            words, seen = self.words(x), self.seen(images)
            if self.whole:
                return words.masked_scatter(mask[..., None].expand_as(words), seen)
            place = (mask.cumsum(1) - 1).clamp(min=0)[..., None].expand_as(words)
            return torch.where(mask[..., None], seen.gather(1, place), words)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return model(*batch).square().sum((1, 2))

    batch = (torch.randn(5, 6, 4), torch.randn(5, 3, 4), mask)
    with pytest.raises(UnsupportedModel, match=r"features\.gather"):
        Engine(Merged(whole=True), loss).clipped_sum(batch, 1.0)
    model = Merged(whole=False)
    found, expected = (kind(model, loss).clipped_sum(batch, 1.0).gradients for kind in (Engine, Reference))
    torch.testing.assert_close(found, expected)
