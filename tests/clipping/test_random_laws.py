"""Random numbers drawn by laws that are the same for each example are its own; those of other laws are not."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.inputs import drawing

CHANCE = torch.distributions
Program = Callable[[Any, Tensor], Tensor]


class Words(nn.Module):
    """Seven words of four numbers, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def _negatives(m: Any, ids: Tensor, x: Tensor) -> Tensor:
    return (m.table(ids).sum(1) * m(x)).sum(1)


def _masked(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = m(x).unsqueeze(2).repeat(1, 1, 4)
    h[mask] = m.table.weight[0]
    return m(nn.functional.dropout(m(nn.functional.dropout(h, 0.3)), 0.3)).square().sum((1, 2))


OWN: Mapping[str, Program] = {
    "a beta law": lambda m, x: (m(x) * CHANCE.Beta(2.0, 3.0).sample((len(x), 1))).sum(1),
    "a beta law of tensors": lambda m, x: (
        m(x) * CHANCE.Beta(torch.tensor([2.0]), torch.tensor([3.0])).sample((len(x),))
    ).sum(1),
    "a law of Dirichlet": lambda m, x: (m(x) * CHANCE.Dirichlet(torch.arange(1.0, 5)).sample((len(x),))).sum(1),
    "a law for each column": lambda m, x: (m(x) * CHANCE.Normal(torch.arange(4.0), 1.0).sample((len(x),))).sum(1),
    "choices from one law": lambda m, x: _negatives(
        m, torch.multinomial(torch.arange(1.0, 8), len(x) * 3, replacement=True).view(len(x), 3), x
    ),
    "choices from a law for each": lambda m, x: _negatives(
        m, torch.multinomial(torch.arange(1.0, 8).expand(len(x), 7), 3, replacement=False), x
    ),
    "noise like the examples": lambda m, x: m(x).sum(1) + m(torch.randn_like(x)).square().sum(1),
    "noise like some columns": lambda m, x: m(x).sum(1) + m(torch.rand_like(x[:, :2]).repeat(1, 2)).square().sum(1),
    "noise like the examples on their side": lambda m, x: m(x).sum(1) + m(torch.randn_like(x.T).T).square().sum(1),
    "whole numbers like the examples": lambda m, x: m(x).sum(1) + m(torch.randint_like(x, 7)).square().sum(1),
    "noise written into new memory": lambda m, x: m(x).sum(1) + m(torch.empty(len(x), 4).normal_()).square().sum(1),
    "noise written over zeros like the examples": lambda m, x: (
        m(x).sum(1) + m(torch.zeros_like(x).uniform_()).square().sum(1)
    ),
    "a weight set by each example's mask, then noise twice": lambda m, x: _masked(m, x, x > 0.3),
    "a weight set by a random mask, then noise twice": lambda m, x: _masked(m, x, torch.rand(x.shape) < 0.3),
    "whole numbers in a line": lambda m, x: _negatives(m, torch.randint(7, (len(x) * 3,)).view(len(x), 3), x),
    "looked up in a line": lambda m, x: (m.table(torch.randint(7, (len(x) * 3,))).view(len(x), 3, 4).sum(1) * m(x)).sum(
        1
    ),
}
_PLACES = torch.arange(1.0, 65)
OTHERS: Mapping[str, Program] = {
    "a probability by place": lambda m, x: (m(x) * torch.bernoulli((_PLACES / 65)[: len(x), None])).sum(1),
    "a law of Dirichlet by place": lambda m, x: (
        m(x) * torch._sample_dirichlet(_PLACES[: len(x), None] * torch.ones(1, 4))
    ).sum(1),
    "one draw over all examples": lambda m, x: (m(x) * torch._sample_dirichlet(torch.ones(4, len(x))).T).sum(1),
    "draws cut at other places": lambda m, x: (
        m(x) * torch._sample_dirichlet(torch.ones(1, 4).expand(len(x), 4)).T.reshape(len(x), 4)
    ).sum(1),
    "a law of how many there are": lambda m, x: (
        m(x) * torch._sample_dirichlet((torch.ones(1, 4) * len(x)).expand(len(x), 4))
    ).sum(1),
    "noise like the examples, averaged": lambda m, x: m(x + torch.randn_like(x).mean(0)).sum(1),
    "noise like the examples, added up": lambda m, x: (m(x) * torch.rand_like(x).cumsum(0)).sum(1),
    "noise like the examples, the greatest": lambda m, x: (m(x) * torch.rand_like(x).amax()).sum(1),
    "noise like the examples, by other examples' order": lambda m, x: (
        m(x).sum(1) + m(torch.randn_like(x)[torch.randn_like(x[:, 0]).argsort()]).sum(1)
    ),
    "noise like the examples, times the place": lambda m, x: m(torch.randn_like(x) * _PLACES[: len(x), None]).sum(1),
    "noise written into new memory, averaged": lambda m, x: m(x + torch.empty(len(x), 4).normal_().mean(0)).sum(1),
    "noise of a law of how many there are": lambda m, x: m(x + torch.empty_like(x).normal_(0.0, len(x))).sum(1),
    "noise like the examples, bounded by them": lambda m, x: m(x + torch.randint_like(x, int(x.abs().max()) + 2)).sum(
        1
    ),
    "a weight set by a mask of the batch, then noise twice": lambda m, x: _masked(m, x, x > x.mean(0)),
    "a weight set by a mask of the place, then noise twice": lambda m, x: _masked(
        m, x, (_PLACES[: len(x), None] > 2).expand(len(x), 4)
    ),
    "choices without repetition": lambda m, x: _negatives(
        m, torch.multinomial(torch.ones(64), len(x), replacement=False).view(-1, 1) % 7, x
    ),
    "choices of one law over all": lambda m, x: (
        m(x) * torch.multinomial(torch.ones(4, 7), len(x), replacement=True).T
    ).sum(1),
    "numbers in a line, moved on": lambda m, x: _negatives(
        m, torch.randint(7, (len(x) * 3,)).roll(1).view(len(x), 3), x
    ),
    "numbers in a line, sorted": lambda m, x: _negatives(
        m, torch.randint(7, (len(x) * 3,)).sort().values.view(len(x), 3), x
    ),
    "numbers of a generator": lambda m, x: (
        m(x) * torch._sample_dirichlet(torch.ones(1, 4).expand(len(x), 4), generator=torch.Generator().manual_seed(1))
    ).sum(1),
}


def an_engine(program: Program) -> Engine:
    torch.manual_seed(0)
    seeds = count()
    return Engine(Words(), program, seeds=lambda: next(seeds))


@pytest.mark.parametrize("name", OWN)
def test_numbers_of_one_law_are_each_examples_own(name: str) -> None:
    engine = an_engine(OWN[name])
    for rows in (5, 6, 1, 3, 12):
        batch = torch.randn(rows, 4)
        sums = [engine.clipped_sum(batch, 0.5).gradients["layer.weight"] for _ in range(2)]
        assert not torch.equal(*sums)
    assert engine.assumptions == ()


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_of_other_laws_are_refused(name: str) -> None:
    engine = an_engine(OTHERS[name])
    for rows in (5, 4):
        with pytest.raises(UnsupportedModel):
            engine.clipped_sum(torch.randn(rows, 4), 0.5)


def _adversarial(m: Any, noise: Tensor, real: Tensor) -> Tensor:
    return nn.functional.softplus(-m(real)).sum(1) + nn.functional.softplus(m(noise)).sum(1)


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_the_loss_of_a_discriminator_with_noise_like_its_examples_is_each_examples_own(rows: int) -> None:
    torch.manual_seed(0)
    model, batch = Words(), torch.randn(rows, 4)
    engine = Engine(model, lambda m, x: _adversarial(m, torch.randn_like(x), x), seeds=lambda: 7)
    found = engine.clipped_sum(batch, 0.5).gradients
    with drawing({torch.device("cpu")}, 7):  # one row is passed as two
        noise = torch.randn(max(rows, 2), 4)[:rows]
    alone = Reference(model, lambda m, b: _adversarial(m, *b)).clipped_sum((noise, batch), 0.5).gradients
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", [None, 1, 2])
def test_a_weight_set_by_a_mask_draws_what_where_draws(part: int | None) -> None:
    """As masked prediction does (wav2vec2, HuBERT, WavLM): what is drawn later is what it is without selected rows."""
    torch.manual_seed(0)
    model, batch = Words(), torch.randn(5, 4)

    def chosen(m: Any, x: Tensor) -> Tensor:
        h = m(x).unsqueeze(2).repeat(1, 1, 4)
        h = torch.where((x > 0.3)[:, :, None], m.table.weight[0], h)
        return m(nn.functional.dropout(m(nn.functional.dropout(h, 0.3)), 0.3)).square().sum((1, 2))

    def sums(loss: Program) -> Any:
        engine = Engine(model, loss, EngineSettings(microbatch_size=part), seeds=lambda: 3)
        return engine.clipped_sum(batch, 0.5).gradients

    torch.testing.assert_close(sums(lambda m, x: _masked(m, x, x > 0.3)), sums(chosen), rtol=1e-4, atol=1e-5)


def _negatives_of(ids: Tensor, m: Any, x: Tensor) -> Tensor:
    return _negatives(m, ids, x)


def _common(m: Any, x: Tensor) -> Tensor:
    return _negatives(m, torch.randint(7, (60,)).view(1, 60).expand(len(x), 60), x)


@pytest.mark.parametrize("first", [4, 5, 6, 12])
def test_a_constant_number_of_draws_is_not_taken_for_the_examples(first: int) -> None:
    """As many as a multiple of the batch, by coincidence: all examples have them in common, as each has alone."""
    torch.manual_seed(0)
    model, seeds = Words(), count(3)
    last = [0]

    def seed() -> int:
        last[0] = next(seeds)
        return last[0]

    engine = Engine(model, _common, seeds=seed)
    for rows in (first, 4, 5, 6, 7, 12):
        batch = torch.randn(rows, 4)
        found = engine.clipped_sum(batch, 0.5).gradients
        with drawing({torch.device("cpu")}, last[0]):
            numbers = torch.randint(7, (60,)).view(1, 60)
        alone = Reference(model, partial(_negatives_of, numbers))
        for name, gradient in alone.clipped_sum(batch, 0.5).gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


OF_EACH_ROW: Mapping[str, Program] = {
    "a mask of one probability": lambda m, x: m(x.masked_fill(torch.bernoulli(torch.full(x.shape, 0.5)).bool(), 0)),
    "dropped rows": lambda m, x: m(x * nn.functional.dropout(torch.ones(len(x), 1), 0.5)),
    "leaky by chance": lambda m, x: m(nn.functional.rrelu(x, training=True)),
    "of a normal law": lambda m, x: m(x * torch.distributions.Normal(1.0, 0.5).sample((len(x), 1))),
    "of a gamma law": lambda m, x: m(x * torch.distributions.Gamma(0.4, 2.0).sample((len(x), 1))),
    "of coins": lambda m, x: m(x * torch.distributions.Bernoulli(0.5).sample((len(x), 1))),
    "of a law made on the way": lambda m, x: m(
        x * torch.normal(torch.tensor(1.0).expand(len(x), 1) / 2, torch.tensor([0.5]).exp().expand(len(x), 1))
    ),
}


@pytest.mark.parametrize("name", OF_EACH_ROW)
def test_random_numbers_of_each_row_are_taken(name: str) -> None:
    torch.manual_seed(0)
    seeds = iter(range(100))
    engine = Engine(_Layer(), OF_EACH_ROW[name], seeds=lambda: next(seeds))
    batch = torch.randn(5, 6)
    sums = [engine.clipped_sum(batch, 1e6).gradients["layer.weight"] for _ in range(2)]
    assert not torch.equal(*sums)


def _seeded(m: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return m(x + torch.randn_like(x))


def _set(m: Any, x: Tensor) -> Tensor:
    torch.set_rng_state(BEFORE)
    return m(x + torch.randn_like(x))


BEFORE = torch.get_rng_state()


@pytest.mark.parametrize("program", [_seeded, _set])
def test_a_loss_that_seeds_the_global_generator_is_refused(program: Program) -> None:
    """Numbers that are known tell examples by their place."""
    with pytest.raises(UnsupportedModel, match="Leave out manual_seed and set_rng_state"):
        Engine(_Layer(), program, seeds=lambda: 3).clipped_sum(torch.randn(5, 6), 1.0)
