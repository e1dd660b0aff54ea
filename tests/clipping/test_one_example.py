"""One example a pass: any model whose examples cannot be passed as a batch, clipped alone."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from one_example_cases import cases
from one_example_models import Case, Graph
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.base.batches import OneByOne
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel
from decrescendo.row_independence.tracing import drawing

ONE = EngineSettings(one_example_a_pass=True)
NAMED = "one_example_a_pass=True"


class Seeded:
    """A loss that begins each pass at the seed that the engine gave it: what makes the reference draw the same."""

    def __init__(self, loss: Any, seeds: list[int]) -> None:
        self.loss, self.seeds = loss, iter(seeds)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        with drawing({torch.device("cpu")}, next(self.seeds)):
            return self.loss(model, batch)


@cases
def test_the_sum_is_the_references(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    case = make()
    model, loss, batch = case.model, case.loss, case.batch
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    engine = Engine(model, loss, ONE, seeds=Seeds.of(7))
    norms = engine.per_example_norms(batch)
    limit = float(norms.median())
    engine = Engine(model, loss, ONE, seeds=Seeds.of(7))
    clipped = engine.clipped_sum(batch, limit)
    seeds = Seeds.of(7)
    numbers = [seeds() for _ in batch.examples]
    expected = Reference(model, Seeded(loss, numbers)).clipped_sum(batch, limit)
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(clipped.gradients[name], gradient, rtol=1e-4, atol=1e-6)
    assert clipped.diagnostics.examples == batch.rows
    assert 0 < clipped.diagnostics.clipped < batch.rows
    assert clipped.diagnostics.loss_sum == pytest.approx(expected.diagnostics.loss_sum, rel=1e-5)
    assert engine.rows_independent
    assert engine.assumptions == ()
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


@cases
def test_adding_an_example_moves_the_sum_by_its_own_clipped_gradient_alone(make: Callable[[], Case]) -> None:
    torch.manual_seed(1)
    case = make()
    model, loss, batch = case.model, case.loss, case.batch
    first = OneByOne(batch.examples[:1])
    limit = float(Engine(model, loss, ONE, seeds=lambda: 5).per_example_norms(first)) / 2
    whole = Engine(model, loss, ONE, seeds=lambda: 5).clipped_sum(batch, limit).gradients
    rest = Engine(model, loss, ONE, seeds=lambda: 5).clipped_sum(OneByOne(batch.examples[1:]), limit).gradients
    moved = torch.cat([(whole[name] - rest[name]).flatten() for name in whole]).norm()
    assert float(moved) == pytest.approx(limit, rel=1e-3)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def test_rows_of_tensors_are_passed_one_by_one_and_a_mean_is_each_examples_own() -> None:
    model, x = linear(), torch.randn(5, 3)
    found = Engine(model, squares, ONE).per_example_norms(x)
    each = Engine(model, lambda m, b: m(b).square().squeeze(1)).per_example_norms(x)
    torch.testing.assert_close(found, each)


def test_sums_in_float64_and_automatic_clipping() -> None:
    model, x = linear(), torch.randn(5, 3)
    wide = EngineSettings(one_example_a_pass=True, accumulate="float64", gamma=0.1)
    found = Engine(model, squares, wide).clipped_sum(x, 1.0)
    expected = Reference(model, squares, gamma=0.1).clipped_sum(x, 1.0)
    assert found.gradients["weight"].dtype == torch.float64
    torch.testing.assert_close(found.gradients["weight"].float(), expected.gradients["weight"], rtol=1e-5, atol=1e-6)


def test_an_example_without_anything_to_learn_counts_as_zero() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).sum() if bool(batch[0, 0] > 0) else torch.zeros(())

    model, x = linear(), torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]])
    clipped = Engine(model, loss, ONE).clipped_sum(x, 10.0)
    torch.testing.assert_close(clipped.gradients["weight"], torch.tensor([[1.0, 0, 0]]))
    assert (clipped.diagnostics.examples, clipped.diagnostics.nonfinite) == (2, 0)
    with pytest.raises(UnsupportedModel, match="must depend on a trainable parameter"):
        Engine(model, lambda m, b: m(b).detach().sum(), ONE).clipped_sum(x, 1.0)


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    model, x = linear(), torch.randn(3, 3)
    x[1] = math.inf
    clipped = Engine(model, squares, ONE).clipped_sum(x, 1.0)
    expected = Engine(model, squares, ONE).clipped_sum(x[[0, 2]], 1.0)
    torch.testing.assert_close(clipped.gradients["weight"], expected.gradients["weight"])
    assert clipped.diagnostics.nonfinite == 1


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


@pytest.mark.parametrize("length", [1, 4])
def test_running_statistics_are_refused_with_the_words_of_the_batch(length: int) -> None:
    """Of one row torch itself raises an error, after it has counted the batch."""
    x = torch.randn(4, length, 3)
    with pytest.raises(UnsupportedModel, match="eplace BatchNorm by GroupNorm"):
        Engine(Norm(), lambda m, b: m(b[0]).square().mean(), ONE).clipped_sum(x, 1.0)


class Keeps(nn.Module):
    """What a pass leaves behind, and how the next one is led by it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(3, 1)
        self.calls, self.mean, self.kept, self.last = 0, 0.0, [], None
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).square().mean()
        self.calls += 1
        if self.way == "count of calls":
            h = h / self.calls
        elif self.way == "running mean":
            self.mean = 0.9 * self.mean + 0.1 * h.item()
            h = h / (1 + self.mean)
        elif self.way == "bank of features":
            h = h + sum(((h - other).square() for other in self.kept), torch.zeros(()))
            self.kept.append(h.detach())
        elif self.way == "last features":
            h = h if self.last is None else h + (h - self.last).square()
            self.last = h.detach()
        elif self.way == "own generator":
            h = h * torch.rand((), generator=self.generator)
        elif self.way == "log of losses":
            self.kept.append(h.item())
        return h


@pytest.mark.parametrize(
    "way",
    ["count of calls", "running mean", "bank of features", "last features", "own generator", "log of losses"],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_one_example_leaves_for_the_next_is_refused(way: str, rows: int) -> None:
    torch.manual_seed(0)
    engine = Engine(Keeps(way), lambda model, batch: model(batch), ONE, seeds=Seeds.of(0))
    with pytest.raises(UnsupportedModel, match=r"must have the same loss|must store no number|pass before"):
        engine.clipped_sum(torch.randn(rows, 3), 1.0)


def test_a_counter_that_changes_nothing_is_assumed_to_go_on_so() -> None:
    torch.manual_seed(0)
    engine = Engine(Keeps("nothing"), lambda model, batch: model(batch), ONE)
    engine.clipped_sum(torch.randn(4, 3), 1.0)
    assert [found.code for found in engine.assumptions] == ["stored-count"]
    assert engine.rows_independent


def test_caches_by_shape_are_no_state() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.masks, self.longest = nn.Linear(3, 1), {}, 0

        def forward(self, x: Tensor) -> Tensor:
            size = x.shape[1]
            self.longest = max(self.longest, size)
            if size not in self.masks:
                self.masks[size] = torch.linspace(0, 1, size)
            return (self.layer(x).squeeze(2) * self.masks[size]).square().mean()

    batch = OneByOne(tuple(torch.randn(1, 2 + at % 3, 3) for at in range(6)))
    engine = Engine(Cached(), lambda model, one: model(one), ONE)
    engine.clipped_sum(batch, 1.0)
    engine.clipped_sum(OneByOne(batch.examples[:1]), 1.0)
    assert engine.assumptions == ()


def test_hooks_that_the_first_pass_installs_are_installed_once() -> None:
    """As Transformers does to collect hidden states: a flag on the model, and a hook that torch keeps."""

    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.found, self.hooked = nn.Linear(3, 1), list[Tensor](), False

        def forward(self, x: Tensor) -> Tensor:
            if not self.hooked:
                self.layer.register_forward_hook(lambda _, __, output: self.found.append(output))
                self.hooked = True
            self.found.clear()
            self.layer(x)
            (found,) = self.found
            return found.square().mean()

    model, x = Collects(), torch.randn(4, 3)
    found = Engine(model, lambda m, b: m(b), ONE).clipped_sum(x, 1.0).gradients["layer.weight"]
    expected = Reference(model, lambda m, b: m(b)).clipped_sum(x, 1.0).gradients["layer.weight"]
    torch.testing.assert_close(found, expected)
    assert len(model.layer._forward_hooks) == 1


def test_a_model_with_buffers_takes_rows_of_tensors() -> None:
    """Its rows are also passed together, after which buffers are as they were."""
    model = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Linear(3, 1))
    x = torch.randn(4, 3)
    found = Engine(model, squares, ONE).clipped_sum(x, 1.0).gradients["1.weight"]
    torch.testing.assert_close(found, Reference(model, squares).clipped_sum(x, 1.0).gradients["1.weight"])


def test_a_pass_that_reads_other_training_data_is_refused() -> None:
    model, x = linear(), torch.randn(5, 3)
    reads: list[Any] = [
        lambda m, b: m(b - x.mean(0)).square().mean(),
        lambda m, b: (m(x) * (x == b).all(1, keepdim=True)).square().sum(),
    ]
    for loss in reads:
        engine = Engine(model, loss, ONE)
        engine.withhold([x])
        with pytest.raises(UnsupportedModel, match="no training data but its own"):
            engine.clipped_sum(x, 1.0)
    engine = Engine(model, lambda m, b: m(b[0].x).square().mean(), ONE)
    engine.withhold([x])
    engine.clipped_sum(OneByOne(tuple((Graph(row[None], row, row, row),) for row in x)), 1.0)


def test_a_loss_that_writes_to_its_example_leaves_the_callers_as_it_is() -> None:
    def loss(model: nn.Module, graph: Graph) -> Tensor:
        graph.edges = graph.x * 2
        return model(graph.edges).square().mean()

    def written(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return model(batch[0].mul_(2)).square().mean()

    def masked(model: nn.Module, graph: Graph) -> Tensor:
        return model(graph.x.mul_(2)).square().mean()

    x = torch.randn(1, 3)
    graph = Graph(x, x, x, x)
    Engine(linear(), loss, ONE).clipped_sum(OneByOne((graph,)), 1.0)
    assert graph.edges is x
    kept = x.clone()
    Engine(linear(), written, ONE).clipped_sum(OneByOne(([x],)), 1.0)
    Engine(linear(), masked, ONE).clipped_sum(OneByOne((graph, graph)), 1.0)
    assert torch.equal(x, kept)


def test_random_numbers_need_a_stream_and_repeat_with_it() -> None:
    def torchs(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.dropout(model(batch), 0.5).sum()

    def hosts(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).sum() * float(np.random.rand())

    x = torch.randn(6, 3)
    with pytest.raises(UnsupportedModel, match="must come from a stream of the run's own"):
        Engine(linear(), torchs, ONE).clipped_sum(x, 1.0)
    for loss in (torchs, hosts):
        one, two, other = (Engine(linear(), loss, ONE, seeds=Seeds.of(seed)).per_example_norms(x) for seed in (1, 1, 2))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        # Each example has numbers of its own.
        alike = Engine(linear(), loss, ONE, seeds=Seeds.of(1)).per_example_norms(x[:1].expand(20, 3))
        assert len(alike.unique()) > 1


def test_losses_that_are_not_one_number_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"one loss per example, shape \(1,\), got \(3,\)"):
        Engine(linear(), lambda m, b: b[0] * m(b)[0], ONE).clipped_sum(torch.randn(2, 3), 1.0)


def test_a_backward_pass_inside_of_the_loss_is_refused() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        model(batch).sum().backward()
        return model(batch).sum()

    with pytest.raises(UnsupportedModel, match=r"must leave \.grad as it is"):
        Engine(linear(), loss, ONE).clipped_sum(torch.randn(2, 3), 1.0)


def test_a_gradient_penalty_is_each_examples_own() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        x = batch.requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square()

    model, x = linear(), torch.randn(4, 3)
    with pytest.raises(UnsupportedModel, match=NAMED):
        Engine(model, loss).clipped_sum(x, 1.0)
    found = Engine(model, loss, ONE).clipped_sum(x, 1.0).gradients["weight"]
    torch.testing.assert_close(found, Reference(model, loss).clipped_sum(x, 1.0).gradients["weight"])


def test_a_refusal_names_this_way_where_an_example_alone_has_its_part_of_the_loss() -> None:
    model, x = linear(), torch.randn(4, 3)
    technical: list[Any] = [
        lambda m, b: m(b).squeeze(1) / len(b),
        lambda m, b: m(b).squeeze(1) * (1 if float(b[0, 0]) > 0 else 2),
        lambda m, b: m(b[b[:, 0] > 0]).sum().expand(len(b)),
        lambda m, b: m(b).squeeze(1) * torch.tensor([float(len(row.nonzero())) for row in b]),
    ]
    for loss in technical:
        with pytest.raises(UnsupportedModel) as refused:
            Engine(model, loss).clipped_sum(x, 1.0)
        assert str(refused.value).count(NAMED) == 1
    kept = torch.zeros(3)
    others: list[Any] = [
        lambda m, b: (m(b) + kept.add_(b.sum(0)).sum() * 0).squeeze(1),
        lambda m, b: m(b).detach().squeeze(1),
        lambda m, b: functional.dropout(m(b)).squeeze(1),
        lambda m, b: (m(b) - m(b).mean()).square().squeeze(1),
    ]
    for loss in others:
        with pytest.raises(UnsupportedModel) as refused:
            Engine(model, loss).clipped_sum(x, 1.0)
        assert NAMED not in str(refused.value)
    with pytest.raises(InvalidType, match=NAMED):
        Engine(model, squares).clipped_sum(OneByOne((x,)), 1.0)


@pytest.mark.parametrize(
    "others",
    [{"microbatch_size": 1}, {"memory": "low"}, {"capture": True}, {"memory_limit": 5}, {"declared": ("a",)}],
)
def test_settings_of_batches_are_refused_with_it(others: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="must be left out with one_example_a_pass=True"):
        EngineSettings(one_example_a_pass=True, **others)
    with pytest.raises(InvalidType, match="one_example_a_pass"):
        EngineSettings(one_example_a_pass=1)  # type: ignore[arg-type]


def test_check_warns_of_rows_that_are_lost() -> None:
    with pytest.warns(UserWarning, match="1 of 2 rows given"):
        Engine(linear(), squares, ONE).check(torch.tensor([[1.0, 0, 0], [math.nan, 0, 0]]))


def test_what_stands_beside_the_sum_is_the_references() -> None:
    def scored(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        found = model(batch).squeeze()
        return found.square(), found > 0

    settings = Telemetry(norms=4, loss=True, accuracy=True)
    model, x = linear(), torch.randn(6, 3)
    engine = Engine(model, scored, ONE, telemetry=settings)
    found = engine.clipped_sum(x, 1.0)
    expected = Reference(model, scored, telemetry=settings).clipped_sum(x, 1.0)
    assert found.extra_coordinates is not None
    assert expected.extra_coordinates is not None
    torch.testing.assert_close(found.extra_coordinates, expected.extra_coordinates, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"], rtol=1e-5, atol=1e-6)
    assert "each example was passed by itself" in engine.passes


def _maximum(kept: list[Tensor], x: Tensor) -> Tensor:
    kept[0] = torch.maximum(kept[0], x.detach().abs().max())
    return x / kept[0]


def _maximum_in_its_place(kept: list[Tensor], x: Tensor) -> Tensor:
    return x / kept[0].copy_(torch.maximum(kept[0], x.detach().abs().max()))


def _minimum(kept: list[Tensor], x: Tensor) -> Tensor:
    kept[0] = torch.minimum(kept[0], -x.detach().abs().max())
    return x * kept[0]


def _first_features(kept: list[Tensor], x: Tensor) -> Tensor:
    if float(kept[0]) == 0:
        kept[0] = x.detach().abs().max()
    kept[0] = torch.where(kept[0] > 0, kept[0], x.detach().abs().max())
    return x / kept[0]


@pytest.mark.parametrize("scale", [_maximum, _maximum_in_its_place, _minimum, _first_features])
@pytest.mark.parametrize("order", [(9.0, 1.0, 2.0), (1.0, 2.0, 9.0), (1.0, 9.0, 2.0), (9.0,)])
def test_state_whose_values_no_later_example_moves_is_refused(scale: Any, order: tuple[float, ...]) -> None:
    kept = [torch.zeros(())]
    engine = Engine(linear(), lambda m, b: m(scale(kept, b)).square().mean(), ONE)
    with pytest.raises(UnsupportedModel, match=r"must read nothing that an earlier pass|must have the same loss"):
        engine.clipped_sum(torch.tensor(order)[:, None] * torch.tensor([1.0, 0.5, 0.25]), 1.0)


class Buffered(nn.Module):
    """What passes keep, and no later one reads: a loss beside the main one, a buffer that is filled anew, a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.beside = nn.Linear(3, 1), torch.zeros(())
        self.room, self.masks = torch.zeros(1, 3), dict[int, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.masks:
            self.masks[x.shape[1]] = torch.ones_like(x)
        self.room.copy_(x)
        h = self.layer(self.room * self.masks[x.shape[1]])
        self.beside = h.abs().mean()
        return h.square().mean() + self.beside


def test_what_a_pass_keeps_and_no_later_one_reads_is_no_state() -> None:
    model, x = Buffered(), torch.randn(4, 3)
    engine = Engine(model, lambda m, b: m(b), ONE)
    for _ in range(2):
        engine.clipped_sum(x, 1.0)
    assert engine.assumptions == ()


class _Prototypes:
    """Keeps something of the first example of each class, which pulls later ones."""

    def __init__(self, way: str) -> None:
        self.way, self.first, self.warm = way, dict[int, Any](), list[Tensor]()

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        y, h = batch[1], model(batch[0])
        if self.way == "bank":  # of a warm-up
            if len(self.warm) < 8:
                self.warm.append(h.detach())
                return h.square().sum(1)
            return (h - torch.cat(self.warm).mean(0)).square().sum(1)
        kept = self.first.setdefault(int(y), h.detach() if self.way == "tensor" else float(h.detach().norm()))
        return (h - kept).square().sum(1)


def test_statistics_beside_the_model_are_seen_where_normalisation_writes_them() -> None:
    mean, var = torch.zeros(2), torch.ones(2)

    def normed(model: nn.Module, x: Tensor) -> Tensor:
        h = model(x)
        nn.functional.batch_norm(h, mean, var, training=True)
        return ((h - mean) / var.sqrt()).square().mean()

    engine = Engine(nn.Sequential(nn.Linear(3, 2)), normed, ONE)
    x = OneByOne(tuple(torch.randn(5, 3) for _ in range(3)))
    with pytest.raises(UnsupportedModel, match="earlier pass computed"):
        engine.clipped_sum(x, 1.0)


@pytest.mark.filterwarnings("ignore:the loss of a batch should be a sum")
@pytest.mark.parametrize("way", ["bank", "tensor", "number"])
def test_what_an_earlier_batch_left_does_not_come_back(way: str) -> None:
    """Found by a first and a last example that meet none of it; one example moved 40 others' sum by 22 C."""
    x, y = torch.randn(40, 3), torch.arange(40)
    engine = Engine(nn.Linear(3, 2), _Prototypes(way), ONE)
    # In each batch after the first, an example of a class that the first one had, between two others.
    batches = [torch.tensor([begin, 0, *range(begin + 1, begin + 4)]) for begin in (0, 4, 8, 12)]

    def train() -> None:
        for rows in (batches[0][1:], *batches[1:]):
            engine.clipped_sum((x[rows], y[rows]), 1.0)

    with pytest.raises(UnsupportedModel, match=r"earlier pass computed|store no number of its example"):
        train()


def test_state_that_only_the_largest_example_changes_is_seen_wherever_that_comes() -> None:
    rows = torch.tensor([[9.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
    for order in ([0, 1, 2], [1, 0, 2], [1, 2, 0]):
        largest = [torch.zeros(())]

        def loss(model: Any, x: Tensor, largest: list[Tensor] = largest) -> Tensor:
            largest[0] = torch.maximum(largest[0], x.abs().max())
            return model(x / largest[0]).square().sum(1)

        engine = Engine(nn.Linear(2, 2), loss, EngineSettings(one_example_a_pass=True))
        with pytest.raises(UnsupportedModel):
            engine.clipped_sum(rows[order], 1.0)


class _Saturates:
    """A loss whose state in Python only a large example changes."""

    def __init__(self, way: str) -> None:
        self.way, self.kept, self.seen, self.array = way, 0.0, list[float](), np.zeros(1)
        self.tensor, self.other = torch.zeros(()), torch.zeros(())

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        size = float(x.detach().abs().max())
        if self.way == "attribute":
            self.kept = max(self.kept, size)
            scale = self.kept
        elif self.way == "list":
            self.seen[:] = sorted([*self.seen, size])[-1:]
            scale = self.seen[0]
        elif self.way == "array":
            np.maximum(self.array, size, out=self.array)
            scale = float(self.array[0])
        elif self.way == "flag":
            self.kept = self.kept or size > 5
            scale = 2.0 if self.kept else 1.0
        elif self.way == "tensor of another pass":
            self.tensor = x.detach().abs().max() if size > float(self.tensor) else self.tensor
            scale = self.tensor
        else:
            if size > float(self.other):
                self.other.copy_(x.detach().abs().max())
            scale = self.other
        return (model(x) / scale).square().mean()


@pytest.mark.parametrize("order", [(9.0, 1.0, 2.0), (1.0, 2.0, 9.0), (2.0, 9.0, 1.0), (9.0, 2.0, 1.0, 3.0)])
@pytest.mark.parametrize("way", ["attribute", "list", "array", "flag", "tensor of another pass", "in its place"])
def test_state_of_python_that_only_a_large_example_changes_is_seen(way: str, order: tuple[float, ...]) -> None:
    engine = Engine(linear(), _Saturates(way), ONE)
    with pytest.raises(UnsupportedModel, match=r"must have the same loss|that the pass before"):
        engine.clipped_sum(torch.tensor(order)[:, None] * torch.tensor([1.0, 0.5, 0.25]), 1.0)


def test_state_of_a_variable_is_put_back_too() -> None:
    largest = 0.0

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, float(x.abs().max()))
        return (model(x) / largest).square().mean()

    for order in ([9.0, 1.0, 2.0], [1.0, 2.0, 9.0]):
        largest = 0.0
        with pytest.raises(UnsupportedModel, match="must have the same loss"):
            Engine(linear(), loss, ONE).clipped_sum(torch.tensor(order)[:, None].expand(3, 3), 1.0)
        assert largest == 9
