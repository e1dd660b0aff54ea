"""Parts of a model whose gradients are zero at first say nothing to a check: they are looked at when they wake."""

from collections.abc import Callable

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 16


class Attention(nn.Module):
    """torch's attention puts positions before examples inside: a layout that shapes alone do not tell."""

    def __init__(self, *, gate: float = 1.0, head: float = 1.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gate = nn.Parameter(torch.full((8,), gate))
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            self.head.weight.mul_(head)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        hidden = self.attention(rows, rows, rows, need_weights=False)[0]
        return self.head((rows + mask * self.gate * hidden).mean(1))


class Center(nn.Module):
    """Takes the mean over the batch away: examples see each other."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(0) if self.always or self.training else rows


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def draw(*, mask: float = 1.0, rows: int = ROWS) -> tuple[Tensor, ...]:
    values = torch.randn(rows, 6, 8)
    values[0] *= 30
    return values, torch.full((rows, 1, 1), mask), torch.randint(3, (rows,))


def error(engine: Engine, model: nn.Module, batch: tuple[Tensor, ...]) -> float:
    found = engine.clipped_sum(batch, 0.1).gradients
    expected = Reference(model, loss).clipped_sum(batch, 0.1).gradients
    return max(float((found[name] - gradient).norm() / gradient.norm()) for name, gradient in expected.items())


ENGINES = {
    "engine": lambda model: Engine(model, loss),
    "micro-batches": lambda model: Engine(model, loss, EngineSettings(microbatch_size=5)),
}


@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("what", some(["head", "gate", "mask"], 1))
@pytest.mark.parametrize("single", [False, True])
def test_what_was_zero_on_the_first_batch_is_found_when_it_wakes(
    what: str, single: bool, make: Callable[[nn.Module], Engine]
) -> None:
    """Wrong places for the examples gave sums that one example moved by three times the clip norm."""
    torch.manual_seed(0)
    model = Attention(gate=0.0 if what == "gate" else 1.0, head=0.0 if what == "head" else 1.0)
    engine = make(model)
    engine.clipped_sum(draw(mask=0.0 if what == "mask" else 1.0), 1.0)
    if single:
        engine.clipped_sum(draw(rows=1), 1.0)
    with torch.no_grad():
        model.gate.normal_()
        model.head.weight.normal_()
    for _ in range(2):
        assert error(engine, model, draw()) < 2e-4


@pytest.mark.parametrize("place", ["hidden", "inputs"])
def test_mixing_behind_weights_that_start_at_zero_is_refused(place: str) -> None:
    """No loss depends on another row while the last layer is zero; its gradient does."""
    torch.manual_seed(1)
    last = nn.Linear(8, 3)
    nn.init.zeros_(last.weight)
    before = [nn.Linear(8, 8)] if place == "hidden" else []
    model = nn.Sequential(*before, Center(always=True), last)
    with pytest.raises(UnsupportedModel, match="no example"):
        Engine(model, loss).clipped_sum((torch.randn(64, 8), torch.randint(3, (64,))), 1.0)


def test_mixing_deeper_down_is_refused_before_it_wakes() -> None:
    """Two layers that start at zero: no value of the first batch shows what happens below."""
    torch.manual_seed(2)
    top, last = nn.Linear(8, 8), nn.Linear(8, 3)
    nn.init.zeros_(top.weight)
    nn.init.zeros_(top.bias)
    nn.init.zeros_(last.weight)
    model = nn.Sequential(nn.Linear(8, 8), Center(always=True), nn.Tanh(), top, last)
    engine = Engine(model, loss)
    with pytest.raises(UnsupportedModel, match="no example"):
        engine.clipped_sum((torch.randn(64, 8), torch.randint(3, (64,))), 1.0)


def test_what_mixes_in_training_mode_only_is_refused_when_the_mode_changes() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), Center(always=False), nn.Tanh(), nn.Linear(8, 3)).eval()
    engine, batch = Engine(model, loss), (torch.randn(64, 8), torch.randint(3, (64,)))
    engine.clipped_sum(batch, 1.0)
    model.train()
    with pytest.raises(UnsupportedModel, match="no example"):
        engine.clipped_sum(batch, 1.0)


def test_a_form_of_a_parameter_that_is_overwritten_after_its_use_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, rows: Tensor) -> Tensor:
            weight = self.weight * 1.0
            out = rows @ weight
            if self.training:
                weight.mul_(3.0)
            return out.tanh().square().sum(1)

    model, rows = Scaled().eval(), torch.randn(16, 4)
    engine = Engine(model, lambda model, rows: model(rows))
    engine.clipped_sum(rows, 1.0)
    model.train()
    with pytest.raises(UnsupportedModel, match="must not be overwritten"):
        engine.clipped_sum(rows, 1.0)


def test_a_long_lookup_beside_a_product_of_one_matrix_stays_below_the_clip_norm() -> None:
    """One id 4,096 times: the stored sum of its gradients has more rounding than one addition."""
    torch.manual_seed(5)
    places, width = 4096, 4

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(3, width)
            self.out = nn.Linear(width, 3, bias=False)
            self.out.weight = self.rows.weight

        def forward(self, ids: Tensor, by: Tensor, hidden: Tensor, back: Tensor) -> Tensor:
            return (self.rows(ids) * by).sum((1, 2)) + (self.out(hidden) * back).sum((1, 2))

    engine = Engine(Tied(), lambda model, batch: model(*batch), EngineSettings(microbatch_size=1))
    for factor in (1.0, -0.5, 0.5, 2.0):
        size = 1 + float(torch.rand(()))
        back = torch.zeros(1, 1, 3)
        back[..., 0] = factor
        one = (
            torch.zeros(1, places, dtype=torch.long),
            torch.full((1, places, width), size),
            torch.full((1, 1, width), size * places),
            back,
        )
        gradient = engine.clipped_sum(one, 1.0).gradients["rows.weight"]
        assert 0.99 < float(gradient.double().norm()) <= 1


def test_what_mixes_is_refused_whatever_the_values_are() -> None:
    """Gradients that are not finite told a check nothing; the proof does not look at values."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 8), Center(always=True), nn.Tanh(), nn.Linear(8, 3))
    engine = Engine(model, loss)
    poisoned = torch.full((4, 8), float("nan"))
    with pytest.raises(UnsupportedModel, match="no example"):
        engine.clipped_sum((poisoned, torch.zeros(4, dtype=torch.long)), 1.0)
