"""The training data, used beside the batch that a pass is given, in whatever form."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import decrescendo as dc
from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.known_memory import Memory

# Of torch's own, about storages, sparse layouts and arrays that cannot be written to.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]


def _plan(rows: int) -> dc.Plan:
    return dc.calibrate(
        dc.Budget(3.0, 1e-3),
        dc.PoissonSampling(rows, 4),
        steps=4,
        privacy=dc.curves.constant(1.0),
        clip=dc.curves.constant(1.0),
    )


def _train(data: Any, loss: Any, model: nn.Module | None = None, rows: int = 12, **options: Any) -> dc.Run:
    model = nn.Linear(3, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return dc.train(model, loss, data, _plan(rows), optimizer=optimizer, seed=1, **options)


def _beside(kept: Any) -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - kept().float().mean(0)[:2]).square().sum(1)

    return loss


def _frame() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(12, 3)).astype("float32"), columns=list("abc"))


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "shared": lambda x: x.share_memory_(),
    "shared, as another tensor": lambda x: x.detach().share_memory_(),
}


def test_an_array_that_nobody_can_write_to() -> None:
    array, labels = _frame().to_numpy().copy(), torch.zeros(12)
    array.flags.writeable = False
    view = array.view()

    def kept() -> Tensor:
        return torch.as_tensor(view)

    with pytest.raises(UnsupportedModel, match="beside"):
        _train((array, labels), _beside(kept))


def test_a_data_frame() -> None:
    frame = _frame()
    columns = frame["a"].to_numpy()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        held = torch.from_numpy(columns)
        rows = torch.stack([batch[name] for name in "abc"], 1).float()
        return (model(rows) - held.mean()).square().sum(1)

    with pytest.raises(UnsupportedModel, match="beside"):
        _train(frame, loss)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_tensor_of_the_same_memory(layout: torch.layout) -> None:
    x = torch.rand(12, 3)
    flat = x.view(-1)
    if layout is torch.sparse_coo:
        places = torch.stack([torch.arange(12).repeat_interleave(3), torch.arange(3).repeat(12)])
        held = torch.sparse_coo_tensor(places, flat, (12, 3), is_coalesced=True)
    else:
        held = torch.sparse_csr_tensor(torch.arange(0, 37, 3), torch.arange(3).repeat(12), flat, (12, 3))
    weights = torch.ones(3, 2)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (model(batch[0]) - torch.sparse.mm(held, weights).mean(0)).square().sum(1)

    with pytest.raises(UnsupportedModel):
        _train((x, torch.zeros(12)), loss)


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_that_holds_the_data_releases_nothing(trained: bool) -> None:
    x = torch.rand(12, 3)
    model = nn.Linear(3, 2)
    if trained:
        model.bank = nn.Parameter(x)
    else:
        model.register_buffer("bank", x[:1])

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.linear(batch[0], model.weight).square().sum(1)

    with pytest.raises(UnsupportedModel, match="bank in memory that batches are drawn from"):
        _train((x, torch.zeros(12)), loss, model)


def test_an_optimizer_that_holds_the_data_releases_nothing() -> None:
    x = torch.rand(12, 3)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=x[0, 0])
    with pytest.raises(UnsupportedModel, match="lr of the optimizer in memory that batches are drawn from"):
        dc.train(
            model, lambda m, b: m(b[0]).square().sum(1), (x, torch.zeros(12)), _plan(12),
            optimizer=optimizer, seed=1,
        )  # fmt: skip


@pytest.mark.parametrize("ranged", [False, True])
def test_records_of_clients(ranged: bool) -> None:
    x = torch.rand(12, 3)
    clients = dc.federated.Clients.ranges(x, np.arange(13)) if ranged else dc.federated.Clients.equal(x, 1)
    model = nn.Linear(3, 2)
    plan = dc.calibrate(
        dc.Budget(3.0, 1e-3, unit=dc.Unit.CLIENT), dc.PoissonSampling(12, 4), steps=2,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0),
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="beside"):
        dc.federated.simulate(
            model, lambda m, b: (m(b) - x.mean(0)[:2]).square().sum(1), clients, plan,
            torch.optim.SGD(model.parameters(), 0.1), seed=1, placement=dc.federated.Placement.CENTRAL,
        )  # fmt: skip


def test_a_model_of_which_a_task_trains_a_copy() -> None:
    x = torch.rand(12, 3)
    model = nn.Linear(3, 2)
    model.register_buffer("bank", x)
    task = dc.training.Task(model=model, loss=lambda m, b: m(b[0]).square().sum(1), data=(x, torch.zeros(12)), rows=12)
    with pytest.raises(UnsupportedModel, match="bank"):
        task.fresh(0, task.load())


def test_a_concatenation() -> None:
    x, y = torch.rand(6, 3), torch.rand(6, 3)
    both = ConcatDataset([TensorDataset(x), TensorDataset(y)])
    with pytest.raises(UnsupportedModel, match="beside"):
        _train(both, _beside(lambda: x))


def test_rows_outside_of_a_subset_are_nobody_s() -> None:
    x = torch.rand(20, 3)
    part = Subset(TensorDataset(x), [*range(6), *range(10, 16)])
    assert _train(part, _beside(lambda: x[16:])).guarantee.epsilon <= 3
    for own in (x[2:3], x[15:17], x):
        with pytest.raises(UnsupportedModel, match="beside"):
            _train(part, _beside(lambda own=own: own))


def test_a_subset_s_rows_that_are_counted_from_the_end() -> None:
    x = torch.rand(20, 3)
    part = Subset(TensorDataset(x), [*range(11), -1])
    with pytest.raises(UnsupportedModel, match="beside"):
        _train(part, _beside(lambda: x[19:]))


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("after", [0, 1])
def test_data_that_are_moved_are_withheld_where_they_were_and_where_they_are(name: str, after: int) -> None:
    x = torch.rand(6, 3)
    held = {"constant": torch.ones(6, 3)}
    engine = Engine(nn.Linear(3, 2), lambda m, b: (m(b) - held["constant"].mean(0)[:2]).square().sum(1))
    engine.withhold([x])
    for _ in range(after):
        engine.per_example_norms(torch.rand(4, 3))
    held["constant"] = MOVES[name](x)
    with pytest.raises(UnsupportedModel):
        engine.per_example_norms(torch.rand(4, 3))


def test_what_is_withheld_again_is_held_once() -> None:
    engine, x = Engine(nn.Linear(3, 2), lambda m, b: m(b).square().sum(1)), torch.rand(6, 3)
    for _ in range(3):
        engine.withhold([x[:2], x[4:]])
    assert len(engine.memory._data._held) == 2


def test_an_array_that_is_not_withheld_is_told_from_tensors_that_are() -> None:
    memory = Memory()
    memory.withhold([torch.rand(6, 3)])
    assert not memory.withholds(np.zeros(3))


@pytest.mark.filterwarnings("ignore:Sharing")
@pytest.mark.parametrize("order", [1, -1])
def test_an_array_and_its_tensor_are_both_withheld(order: int) -> None:
    array, memory = np.random.default_rng(0).normal(size=(6, 3)), Memory()
    tensor, other = torch.from_numpy(array), torch.from_numpy(array)
    memory.withhold([array, tensor, other][::order])
    for moved in (tensor, other):
        moved.share_memory_()  # the storage moves: its address range is another one now
        assert memory.withholds(moved)
    assert memory.withholds(array)


class TestHonestData:
    @pytest.mark.parametrize("make", [lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a.astype(">f4")])
    def test_arrays_that_torch_cannot_share_are_copied(self, make: Callable[[np.ndarray], np.ndarray]) -> None:
        array = make(np.random.default_rng(0).normal(size=(12, 3)).astype("float32"))
        found = _train((array, torch.zeros(12)), lambda m, b: m(b[0]).square().sum(1))
        plain = torch.from_numpy(np.array(array, dtype="float32"))
        assert found.ledger == _train((plain, torch.zeros(12)), lambda m, b: m(b[0]).square().sum(1)).ledger

    def test_a_sparse_buffer_that_stays(self) -> None:
        model = nn.Linear(3, 2)
        model.register_buffer("mixing", torch.eye(3).to_sparse())

        def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return model(batch[0]).square().sum(1)

        assert _train((torch.rand(12, 3), torch.zeros(12)), loss, model).guarantee.epsilon <= 3
