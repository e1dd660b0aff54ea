"""A refusal gives the reason that is the reason, and a way that works; and what is no reason is none."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.labels import NO_RULE, Mixed
from decrescendo.row_independence.refusals import refusal


def _equal_to_reference(model: nn.Module, loss: Any, batch: Any) -> None:
    engine = Engine(model, loss)
    for _ in range(2):
        found = engine.clipped_sum(batch, 1.0).gradients
    torch.testing.assert_close(found, Reference(model, loss).clipped_sum(batch, 1.0).gradients)


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

    with pytest.raises(UnsupportedModel, match=r"torch's default generator.*test_reasons\.py.*Leave generator= out"):
        Engine(Noisy(4, 2), squares, seeds=lambda: 1).check(torch.randn(5, 4))


def test_a_constant_laid_along_the_rows_is_so_beside_no_generator() -> None:
    steps = torch.arange(5.0)[:, None]
    with pytest.raises(UnsupportedModel, match="laid along the examples"):
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


def _slope(model: nn.Module, at: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
    return slope


def _slope_of_backward(model: nn.Module, at: Tensor) -> Tensor:
    torch.autograd.backward(model(at).sum(), inputs=[at], create_graph=True)
    assert at.grad is not None
    return at.grad


def _slope_of_func(model: nn.Module, at: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda row: model(row[None]).sum()))(at)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("slope", [_slope, _slope_of_backward, _slope_of_func])
@pytest.mark.parametrize("between", [nn.Identity, nn.Tanh, lambda: nn.LayerNorm(8)])
def test_a_gradient_penalty_is_told_to_be_a_second_derivative(
    slope: Callable[[nn.Module, Tensor], Tensor], between: Callable[[], nn.Module]
) -> None:
    """As WGAN-GP has one, between examples and noise; also of a critic without a bend, whose second pass is linear."""

    def penalised(model: nn.Module, real: Tensor) -> Tensor:
        share = torch.rand(len(real), 1)
        at = (share * real + (1 - share) * torch.randn_like(real)).requires_grad_(True)
        return (slope(model, at).norm(dim=1) - 1).square() - model(real).squeeze(1)

    critic = nn.Sequential(nn.Linear(4, 8), between(), nn.Linear(8, 1))
    with pytest.raises(UnsupportedModel, match="second derivative"):
        Engine(critic, penalised, seeds=lambda: 1).check(torch.randn(5, 4))


def test_the_ways_out_of_a_gradient_penalty_work() -> None:
    torch.manual_seed(0)
    batch = torch.randn(5, 4)
    critic = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 1))
    _equal_to_reference(critic, lambda m, x: m(x).squeeze(1), batch)

    def penalised(model: nn.Module, real: Tensor) -> Tensor:
        return (_slope(model, real.clone().requires_grad_(True)).norm(dim=1) - 1).square()

    sums = Reference(critic, penalised).clipped_sum(batch, 1.0).gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in sums.values())


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


def _weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))


def test_weights_that_are_computed_once_a_pass_are_exact() -> None:
    def once(model: nn.Module, batch: Tensor) -> Tensor:
        with parametrize.cached():
            return (model(batch) + model(2 * batch)).square().sum(1)

    _equal_to_reference(_weight_norm(), once, torch.randn(5, 4))


def test_weights_that_are_computed_once_for_several_passes_are_computed_in_each() -> None:
    """`parametrize.cached()` round the steps: what it keeps is of the graph of one pass."""
    model, batch = _weight_norm(), torch.randn(5, 4)
    engine, expected = Engine(model, squares), Reference(model, squares).clipped_sum(batch, 1.0).gradients
    with parametrize.cached():
        kept = model[0].weight
        for _ in range(2):
            torch.testing.assert_close(engine.clipped_sum(batch, 1.0).gradients, expected)
        assert model[0].weight is kept
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    expected = Reference(model, squares).clipped_sum(batch, 1.0).gradients
    torch.testing.assert_close(engine.clipped_sum(batch, 1.0).gradients, expected)


def test_spectral_norm_in_training_mode_has_a_way_out_that_works() -> None:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModel, match="Spectral norm renews them") as caught:
        Engine(model, squares).clipped_sum(torch.randn(5, 4), 1.0)
    assert "BatchNorm" not in str(caught.value)
    model[0].parametrizations.eval()
    _equal_to_reference(model, squares, torch.randn(5, 4))


class Tagged(Tensor):
    """A tensor of another class that does nothing but be one."""


class TaggedAgain(Tagged):
    """A class of that class."""


class Wrapping(Tensor):
    """A tensor without memory of its own, round another."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapping":
        made: Any = torch.Tensor._make_wrapper_subclass
        return made(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Wrapping, lambda one: one.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, func(*args, **kwargs))


MADE_INSIDE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the examples": lambda m, x: m(x.as_subclass(Tagged)),
    "the outputs": lambda m, x: m(x).as_subclass(Tagged),
    "a weight": lambda m, x: functional.linear(x, m.weight.as_subclass(Tagged), m.bias),
    "a weight on its side": lambda m, x: x @ m.weight.T.as_subclass(Tagged) + m.bias,
    "a weight of another class, as yet another": lambda m, x: functional.linear(
        x, m.weight.as_subclass(Tagged).as_subclass(TaggedAgain), m.bias
    ),
    "what is made of a weight": lambda m, x: functional.linear(x, (2 * m.weight).as_subclass(Tagged), m.bias),
    "a part of a weight": lambda m, x: x[:, :2] @ m.weight.as_subclass(Tagged)[:, :2].T,
    "a weight and itself": lambda m, x: functional.linear(x, m.weight.as_subclass(Tagged) * 2, m.bias) + m(x),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_tensors_that_are_made_of_another_class_inside_of_the_forward_pass_are_exact(name: str) -> None:
    _equal_to_reference(nn.Linear(4, 3), lambda m, x: MADE_INSIDE[name](m, x).square().sum(1), torch.randn(5, 4))


def test_examples_in_a_tensor_without_memory_are_refused_and_the_tensor_is_named() -> None:
    """The process ended with a fault of memory."""
    with pytest.raises(UnsupportedModel, match="got a Wrapping, which wraps the examples"):
        Engine(nn.Linear(4, 3), lambda m, x: m(Wrapping(x)).square().sum(1)).clipped_sum(torch.randn(5, 4), 1.0)
    with pytest.raises(UnsupportedModel, match="Return the plain tensor inside of it"):
        Engine(nn.Linear(4, 3), lambda m, x: Wrapping(m(x).square().sum(1))).clipped_sum(torch.randn(5, 4), 1.0)
    _equal_to_reference(nn.Linear(4, 3), lambda m, x: m(Wrapping(x).inner).square().sum(1), torch.randn(5, 4))
    with pytest.raises(UnsupportedModel, match=r"torch's own, but Wrapping.__torch_dispatch__ runs"):
        Engine(nn.Linear(4, 3), lambda m, x: m((Wrapping(x) * 2).inner).square().sum(1)).clipped_sum(
            torch.randn(5, 4), 1.0
        )


def test_a_weight_that_is_made_a_plain_tensor_is_told_to_be_used_itself() -> None:
    def plain(model: Any, x: Tensor) -> Tensor:
        return functional.linear(x, model.weight.as_subclass(Tensor), model.bias).square().sum(1)

    with pytest.raises(UnsupportedModel, match="Use the parameter itself"):
        Engine(nn.Linear(4, 3), plain).clipped_sum(torch.randn(5, 4), 1.0)


@pytest.mark.parametrize("mode", ["train", "without statistics", "eval"])
def test_a_generator_with_batch_norm_inside_of_the_loss(mode: str) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6, track_running_stats=mode != "without statistics")
    generator = nn.Sequential(nn.Linear(3, 6), norm, nn.ReLU(), nn.Linear(6, 4)).train(mode != "eval")
    for parameter in generator.parameters():
        parameter.requires_grad_(False)

    def adversarial(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, noise = batch
        return functional.softplus(-model(real)).squeeze(1) + functional.softplus(model(generator(noise))).squeeze(1)

    batch, critic = (torch.randn(5, 4), torch.randn(5, 3)), nn.Linear(4, 1)
    if mode == "eval":
        _equal_to_reference(critic, adversarial, batch)
        return
    expected = {"train": r"Call \.eval\(\) on it", "without statistics": "Replace BatchNorm by GroupNorm"}[mode]
    with pytest.raises(UnsupportedModel, match=expected):
        Engine(critic, adversarial).clipped_sum(batch, 1.0)


@pytest.mark.skipif(not hasattr(functional, "linear_cross_entropy"), reason="torch 2.13 has it")
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cross_entropy_in_chunks_of_rows_is_exact(trained: bool, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 9, bias=bias))
    model[1].requires_grad_(trained)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None)

    def loss(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        hidden, head = m[0](batch[0]).tanh(), m[1]
        return functional.linear_cross_entropy(
            hidden, head.weight, batch[1], linear_bias=head.bias, reduction="none", options=options
        )

    _equal_to_reference(model, loss, (torch.randn(5, 4), torch.randint(9, (5,))))


def test_a_seed_an_example_is_refused_and_told_what_draws_for_each_example() -> None:
    def drawn(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, seeds = batch
        rows = [torch.randn(4, generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
        return m(x + torch.stack(rows)).square().sum(1)

    model, batch = nn.Linear(4, 3), (torch.randn(5, 4), torch.arange(5) * 7)
    with pytest.raises(UnsupportedModel, match=r"torch\.randn_like"):
        Engine(model, drawn).clipped_sum(batch, 1.0)
    engine = Engine(model, lambda m, b: m(b[0] + torch.randn_like(b[0])).square().sum(1), seeds=lambda: 1)
    engine.clipped_sum(batch, 1.0)


@pytest.mark.parametrize(
    ("name", "way"),
    [("_philox_normal_", "torch.randn_like"), ("_philox_key_split", "torch.randn_like"),
     ("roi_align", "one-stage head"), ("nms", "one-stage head"), ("scatter_add", "gather"), ("index_add_", "gather")],
)  # fmt: skip
def test_what_is_refused_by_its_operation_names_what_works(name: str, way: str) -> None:
    assert way in str(refusal(Mixed(f"{NO_RULE}aten::{name}", name), "loss"))


@pytest.mark.parametrize("draw", [lambda n: np.random.rand(n, 1), lambda n: [[random.random()] for _ in range(n)]])
def test_random_numbers_of_other_libraries_are_named_where_they_lie_along_the_examples(
    draw: Callable[[int], Any],
) -> None:
    """As SpecAugment of Transformers draws its masks."""

    for share in (0.0, 0.5):  # all come out alike, or not

        def augmented(m: nn.Module, x: Tensor, share: float = share) -> Tensor:
            return m(torch.where(torch.tensor(draw(len(x))) < share, 0.0, x)).square().sum(1)

        with pytest.raises(UnsupportedModel, match=r"NumPy or Python.*apply_spec_augment = False"):
            Engine(nn.Linear(4, 3), augmented, seeds=lambda: 1).clipped_sum(torch.randn(5, 4), 1.0)
