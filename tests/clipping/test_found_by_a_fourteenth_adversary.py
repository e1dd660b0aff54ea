"""Numbers that torch reads out of lists by itself, and data beside the batch in other forms than a tensor's view."""

from collections import UserList, deque, namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import decrescendo as dc
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

# Of torch's own, about storages, sparse layouts and arrays that cannot be written to.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]
ONE = namedtuple("ONE", "number")
FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda b: torch.tensor([b[0, 0]]),
    "tensor of a tuple": lambda b: torch.tensor((b[0, 0],)),
    "tensor of lists in lists": lambda b: torch.tensor([[b[0, 0], 1.0]]).sum(),
    "tensor by name": lambda b: torch.tensor(data=[b[0, 0]]),
    "a truth value": lambda b: torch.tensor([b[0, 0] > 1]),
    "tensor, then Python": lambda b: torch.ones(1) * float(torch.tensor([b[0, 0]])),
    "as_tensor": lambda b: torch.as_tensor([b[0, 0]]),
    "asarray": lambda b: torch.asarray([b[0, 0]]),
    "new_tensor": lambda b: b.new_tensor([b[0, 0]]),
    "new": lambda b: b.new([b[0, 0]]),
    "a row's numbers": lambda b: torch.tensor(list(b[0])).sum(),
    "a sparse tensor's values": lambda b: torch.sparse_coo_tensor([[0]], [b[0, 0]], (1,)).to_dense(),
    "a storage": lambda b: torch.ones(1) * torch.FloatStorage([b[0, 0]])[0],
    "an index of lists": lambda b: torch.arange(4.0)[[[_whole(b), _whole(b)]]].sum(),
    "a list in an index": lambda b: torch.arange(4.0)[[_whole(b), _whole(b)],].sum(),
    "truth values of old": lambda b: torch.BoolTensor([b[0, 0] > 1]).float(),
    "floats of old": lambda b: torch.FloatTensor([1.5, b[0, 0]]).sum(),
    "a tensor of old": lambda b: torch.Tensor([1.5, b[0, 0]]).sum(),
    "inside of a gradient": lambda b: torch.func.grad(lambda r: (r * torch.tensor([b[0, 0]])).sum())(
        b[:, :1]
    ),
    "a queue": lambda b: torch.tensor(deque([b[0, 0]])),
    "a list of Python's": lambda b: torch.tensor(UserList([b[0, 0]])),
    "a tuple with names": lambda b: torch.tensor(ONE(b[0, 0])),
}


def _whole(b: Tensor) -> Tensor:
    return (b[0, 0] > 1).long() + 1


@pytest.mark.parametrize("name", FIRST)
def test_no_list_carries_numbers_of_the_data_past_the_dispatcher(name: str) -> None:
    def loss(model: nn.Module, b: Tensor) -> Tensor:
        return (model(b) * (1 + FIRST[name](b))).square().sum(1)

    for rows in (2, 5):
        with pytest.raises(UnsupportedModel):
            Engine(nn.Linear(3, 2), loss).per_example_norms(torch.rand(rows, 3))


def test_lists_of_constants_are_taken() -> None:
    def loss(model: nn.Module, b: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0]) + torch.tensor([[0.5, model.training]]).sum()
        return (model(b[:, [0, 2, 1]]) * scale).square()[:, [1, 0]].sum(1)

    model, batch = nn.Linear(3, 2), torch.rand(5, 3)
    norms = Engine(model, loss).per_example_norms(batch)
    assert torch.allclose(norms, Reference(model, loss).per_example_norms(batch), rtol=1e-4)


class Sequential:
    """A list of the program's own, whose code torch calls."""

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> Tensor:
        return self.numbers[at]


class Late(list):
    """A list that makes its numbers when it is asked for them."""

    def __getitem__(self, at: Any) -> Any:
        return list.__getitem__(self, at)()


@pytest.mark.parametrize("kind", [Sequential, Late])
def test_a_list_of_the_program_s_own_is_among_the_assumptions_or_refused(kind: Any) -> None:
    def loss(model: nn.Module, b: Tensor) -> Tensor:
        numbers = kind([b[0, 0]] if kind is Sequential else [lambda: b[0, 0]])
        return model(b).square().sum(1) + torch.tensor(numbers)

    engine = Engine(nn.Linear(3, 2), loss)
    try:
        engine.per_example_norms(torch.rand(4, 3))
    except (UnsupportedModel, TypeError, RuntimeError):
        return
    assert any(kind.__name__ in assumption for assumption in map(str, engine.assumptions))


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


def _other_memory(x: Tensor) -> Tensor:
    before = x.detach()
    x.data = torch.zeros(6, 3)
    return before


def _read_anew(x: Tensor) -> Tensor:
    x.data = x.clone()
    return torch.from_numpy(x.numpy())


# What a program makes of its data between two passes, and then uses.
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "shared": lambda x: x.share_memory_(),
    "shared, as an array's": lambda x: torch.from_numpy(x.share_memory_().numpy()),
    "shared, as another tensor": lambda x: x.detach().share_memory_(),
    "the memory before": _other_memory,
    "the memory after": _read_anew,
}


class TestDataBesideTheBatch:
    def test_an_array_that_nobody_can_write_to(self) -> None:
        array, labels = _frame().to_numpy().copy(), torch.zeros(12)
        array.flags.writeable = False
        view = array.view()

        def kept() -> Tensor:
            return torch.as_tensor(view)

        with pytest.raises(UnsupportedModel, match="beside"):
            _train((array, labels), _beside(kept))

    def test_a_data_frame(self) -> None:
        frame = _frame()
        columns = frame["a"].to_numpy()

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            held = torch.from_numpy(columns)
            rows = torch.stack([batch[name] for name in "abc"], 1).float()
            return (model(rows) - held.mean()).square().sum(1)

        with pytest.raises(UnsupportedModel, match="beside"):
            _train(frame, loss)

    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
    def test_a_sparse_tensor_of_the_same_memory(self, layout: torch.layout) -> None:
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
    def test_a_model_that_holds_the_data_releases_nothing(self, trained: bool) -> None:
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

    def test_an_optimizer_that_holds_the_data_releases_nothing(self) -> None:
        x = torch.rand(12, 3)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=x[0, 0])
        with pytest.raises(
            UnsupportedModel, match="lr of the optimizer in memory that batches are drawn from"
        ):
            dc.train(
                model, lambda m, b: m(b[0]).square().sum(1), (x, torch.zeros(12)), _plan(12),
                optimizer=optimizer, seed=1,
            )  # fmt: skip

    @pytest.mark.parametrize("ranged", [False, True])
    def test_records_of_clients(self, ranged: bool) -> None:
        x = torch.rand(12, 3)
        clients = (
            dc.federated.Clients.ranges(x, np.arange(13)) if ranged else dc.federated.Clients.equal(x, 1)
        )
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

    def test_a_model_of_which_a_task_trains_a_copy(self) -> None:
        x = torch.rand(12, 3)
        model = nn.Linear(3, 2)
        model.register_buffer("bank", x)
        task = dc.training.Task(
            model=model, loss=lambda m, b: m(b[0]).square().sum(1), data=(x, torch.zeros(12)), rows=12
        )
        with pytest.raises(UnsupportedModel, match="bank"):
            task.fresh(0, task.load())

    def test_a_concatenation(self) -> None:
        x, y = torch.rand(6, 3), torch.rand(6, 3)
        both = ConcatDataset([TensorDataset(x), TensorDataset(y)])
        with pytest.raises(UnsupportedModel, match="beside"):
            _train(both, _beside(lambda: x))

    def test_rows_outside_of_a_subset_are_nobody_s(self) -> None:
        x = torch.rand(20, 3)
        part = Subset(TensorDataset(x), [*range(6), *range(10, 16)])
        assert _train(part, _beside(lambda: x[16:])).guarantee.epsilon <= 3
        for own in (x[2:3], x[15:17], x):
            with pytest.raises(UnsupportedModel, match="beside"):
                _train(part, _beside(lambda own=own: own))

    def test_a_subset_s_rows_that_are_counted_from_the_end(self) -> None:
        x = torch.rand(20, 3)
        part = Subset(TensorDataset(x), [*range(11), -1])
        with pytest.raises(UnsupportedModel, match="beside"):
            _train(part, _beside(lambda: x[19:]))

    def test_a_constant_that_becomes_the_data_after_a_pass_was_accepted(self) -> None:
        model, x = nn.Linear(3, 2), torch.rand(12, 3)
        held = {"constant": torch.ones(12, 3)}
        engine = Engine(model, lambda m, b: (m(b) - held["constant"].mean(0)[:2]).square().sum(1))
        engine.withhold([x])
        engine.per_example_norms(x[:4].clone())
        held["constant"].set_(x)
        with pytest.raises(UnsupportedModel):
            engine.per_example_norms(x[:4].clone())

    @pytest.mark.parametrize("name", MOVES)
    @pytest.mark.parametrize("after", [0, 1])
    def test_data_that_are_moved_are_withheld_where_they_were_and_where_they_are(
        self, name: str, after: int
    ) -> None:
        x = torch.rand(6, 3)
        held = {"constant": torch.ones(6, 3)}
        engine = Engine(nn.Linear(3, 2), lambda m, b: (m(b) - held["constant"].mean(0)[:2]).square().sum(1))
        engine.withhold([x])
        for _ in range(after):
            engine.per_example_norms(torch.rand(4, 3))
        held["constant"] = MOVES[name](x)
        with pytest.raises(UnsupportedModel):
            engine.per_example_norms(torch.rand(4, 3))

    def test_data_that_a_pass_moves(self) -> None:
        x = torch.rand(6, 3)

        def loss(model: nn.Module, b: Tensor) -> Tensor:
            return (model(b) - x.share_memory_().mean(0)[:2]).square().sum(1)

        engine = Engine(nn.Linear(3, 2), loss)
        engine.withhold([x])
        with pytest.raises(UnsupportedModel):
            engine.per_example_norms(torch.rand(4, 3))

    @pytest.mark.parametrize("many", [False, True])
    def test_many_rows_that_are_moved_one_by_one(self, many: bool) -> None:
        rows = [torch.rand(3) for _ in range(100 if many else 5)]
        held = {"constant": torch.ones(3)}
        engine = Engine(nn.Linear(3, 2), lambda m, b: (m(b) - held["constant"][:2]).square().sum(1))
        engine.withhold(rows)
        engine.per_example_norms(torch.rand(4, 3))
        for row in rows:
            row.data = row.clone()
        held["constant"] = rows[-1]
        with pytest.raises(UnsupportedModel, match="beside"):
            engine.per_example_norms(torch.rand(4, 3))

    def test_what_is_withheld_again_is_held_once(self) -> None:
        engine, x = Engine(nn.Linear(3, 2), lambda m, b: m(b).square().sum(1)), torch.rand(6, 3)
        for _ in range(3):
            engine.withhold([x[:2], x[4:]])
        assert len(engine.memory._data._given) == len(engine.memory._data._kept) == 2


class TestHonestData:
    @pytest.mark.parametrize("make", [lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a.astype(">f4")])
    def test_arrays_that_torch_cannot_share_are_copied(
        self, make: Callable[[np.ndarray], np.ndarray]
    ) -> None:
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
