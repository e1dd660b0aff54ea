"""What a look at everything but the engine found: records given twice, ids that are several, trials that go on from
one another, code inside of a frame, a filter with a price of its own."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from decrescendo.training.distinct import OVERLAPPING, SAME_OBJECT, check_distinct
from decrescendo.training.trials_apart import KEPT
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

import decrescendo as dc
from decrescendo.accounting import Ledger, Pld, Trials
from decrescendo.accounting.filters.metered import MeteredFilter
from decrescendo.audit.attacks import one_canary
from decrescendo.audit.curve import PrivacyCurve
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.federated import most_clients
from decrescendo.plans import Schedule
from decrescendo.training import Task, Trainer, accuracy, cross_entropy, train
from decrescendo.training.data import table_of
from decrescendo.training.examples import EXAMPLES_APART
from decrescendo.training.people import check_people
from decrescendo.training.private_tuning import ATTEMPTED, PrivateSearch, Tried, search_privately
from decrescendo.training.space import Between, Space
from decrescendo.training.steering import Adaptive, FromSchedule
from decrescendo.training.steering.adaptive_run import FILTERED

from .conftest import ROWS, loss, make_model, make_plan, sgd

X, Y = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 2
HALF = ROWS // 2


def given(data: Any) -> Any:
    model = make_model()
    return Trainer(model, loss, make_plan(), sgd(model), seed=0).batches(data)


class TestARecordGivenSeveralTimes:
    """Of oversampled rows each is drawn by itself: all 100 rows one record, and the sum moved by 100 C."""

    @pytest.mark.parametrize(
        "data",
        [
            [X.numpy()[i % HALF] for i in range(ROWS)],
            [{"x": X[i % HALF], "y": i % HALF % 2} for i in range(ROWS)],
            [{"x": X.numpy()[i % HALF], "y": 0} for i in range(ROWS)],
            (X[:1].expand(ROWS, 3), Y[:1].expand(ROWS)),
            np.broadcast_to(X[:1].numpy(), (ROWS, 3)),
            TensorDataset(X[:1].expand(ROWS, 3)),
            ConcatDataset([Subset(TensorDataset(X, Y), range(ROWS - 4)), Subset(TensorDataset(X, Y), range(4))]),
            ConcatDataset([Subset(data := TensorDataset(X, Y), range(ROWS - 9)), Subset(data, range(9))]),
            ConcatDataset([TensorDataset(X[:30], Y[:30]), TensorDataset(X[20:30], Y[20:30])]),
            Subset(ConcatDataset([data, data]), [*range(HALF), *range(ROWS + 3, ROWS + 3 + HALF)]),
            Subset(Subset(data, [*range(HALF)] * 2), range(ROWS)),
        ],
    )  # fmt: skip
    def test_is_refused(self, data: Any) -> None:
        with pytest.raises(InvalidValue, match="each record once"):
            given(data)

    @pytest.mark.parametrize(
        "data",
        [
            [X.numpy()[i] for i in range(ROWS)],
            [{"x": X[i % HALF], "question": i} for i in range(ROWS)],  # two questions about one picture
            [{"x": X[i], "weight": X[0]} for i in range(ROWS)],
            (X, Y[:1].expand(ROWS)),  # one class for all
            ConcatDataset([TensorDataset(X[:30], Y[:30]), TensorDataset(X[30:], Y[30:])]),
            Subset(ConcatDataset([data, data]), [*range(HALF), *range(ROWS + HALF, ROWS + ROWS)]),
            Subset(data, [*range(HALF), *range(-HALF, 0)]),
        ],
    )  # fmt: skip
    def test_others_are_not(self, data: Any) -> None:
        given(data)


class Id(str):
    """Of which no two are equal."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class TestIds:
    @pytest.mark.parametrize(
        "ids", [[Id("ann")] * 3, [Id("ann") for _ in range(3)], [np.float64(2), Id("a"), 1]]
    )
    def test_of_a_class_of_the_users_are_refused(self, ids: list[Any]) -> None:
        with pytest.raises(InvalidType, match="a text or a number, got Id"):
            check_people(ids, dc.Budget(1.0, 1e-5, dc.Unit.PERSON), 3)

    @pytest.mark.parametrize("blank", ["", " \t", b"", b"  ", None, float("nan")])
    def test_that_are_blank_are_refused(self, blank: Any) -> None:
        kind = b"ann" if isinstance(blank, bytes) else 3.0 if isinstance(blank, float) else "ann"
        with pytest.raises(InvalidValue, match="for row 1"):
            check_people([kind, blank], dc.Budget(1.0, 1e-5, dc.Unit.PERSON), 2)

    def test_of_clients_are_told_apart_whatever_columns_they_come_in(self) -> None:
        """Beside floats, or numbers without sign, numbers above 2^53 became floats: 8 clients were counted as one."""
        clients = 2**60 + np.arange(8)
        for person in (np.zeros(8), np.zeros(8, dtype=np.uint64), ["ann"] * 8):
            assert most_clients(person, clients) == 8
            assert most_clients(person, clients.astype(np.uint64)) == 8
        assert most_clients(np.arange(8) % 2, [str(number) for number in clients]) == 4
        with pytest.raises(InvalidValue, match="several large numbers become"):
            most_clients(np.zeros(8), clients.astype(float))
        with pytest.raises(InvalidValue, match="an id in client"):
            most_clients(np.zeros(2), np.array([1.0, np.nan]))
        with pytest.raises(InvalidValue, match="a person and a client, got 2 and 3"):
            most_clients(np.zeros(2), np.zeros(3))
        assert most_clients([], []) == 0


def frame(column: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": column, "y": Y.numpy()})


def of_frame(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"].float().reshape(len(batch["y"]), -1)
    return nn.functional.cross_entropy(model(x), batch["y"], reduction="none")


class TestFrames:
    """Of columns that are objects of a user's, code runs for each row, and in torch's stack it may see all."""

    def supposed(self, column: Any, features: int = 1) -> tuple[str, ...]:
        model = nn.Linear(features, 2)
        return train(model, of_frame, frame(column), make_plan(), sgd(model), seed=0).assumptions

    def test_of_objects_and_of_a_users_columns_something_is_supposed(self) -> None:
        api = pytest.importorskip("pandas.api.extensions")

        class Share(Tensor):
            pass

        class MeanDtype(api.ExtensionDtype):
            name, type = "mean", float

            @classmethod
            def construct_array_type(cls) -> Any:
                return Centred

        class Centred(api.ExtensionArray):
            """Centred by its mean when it is read."""

            dtype, nbytes = MeanDtype(), 0

            def __init__(self, values: Any) -> None:
                self.values = np.asarray(values, float)

            def __len__(self) -> int:
                return len(self.values)

            def __getitem__(self, index: Any) -> Any:
                one = isinstance(index, (int, np.integer))
                return float(self.values[index] - self.values.mean()) if one else Centred(self.values[index])

            def copy(self) -> Any:
                return Centred(self.values.copy())

            def isna(self) -> Any:
                return np.isnan(self.values)

            @classmethod
            def _from_sequence(cls, values: Any, dtype: Any = None, copy: bool = False) -> Any:
                return cls(values)

        objects = np.empty(ROWS, dtype=object)
        objects[:] = [row.as_subclass(Share) for row in X]
        assert EXAMPLES_APART in self.supposed(objects, 3)
        assert EXAMPLES_APART in self.supposed(Centred(X[:, 0].numpy()))

    @pytest.mark.parametrize("dtype", ["float32", "int8", "Float64", "Int32", "bool", "boolean"])
    def test_of_numbers_nothing_is(self, dtype: str) -> None:
        pandas = pytest.importorskip("pandas")
        assert self.supposed(pandas.Series(np.ones(ROWS), dtype="float64").astype(dtype)) == ()


def test_a_filter_with_a_price_of_its_own_is_the_users() -> None:
    """It lies in the library, and anybody can make one: z = 0.01 passed for epsilon 0.1."""
    free = MeteredFilter(dc.Budget(0.1, 1e-5), "RenyiFilter(order=10)", 1.0, lambda rate, noise: 1e-9)
    model = make_model()
    schedule = Schedule([0.5, 0.5], [1.0, 1.0])
    plan = Adaptive(dc.PoissonSampling(ROWS, 8), free, FromSchedule(schedule), 2)
    run = train(model, loss, (X, Y), plan, sgd(model), seed=0)
    assert FILTERED.format("MeteredFilter") in run.assumptions


class TestTrialsThatGoOnFromOneAnother:
    """The price is that of independent trials. A thousand of them, each from where the last one ended: stated 1, true
    30."""

    def search(self, model: Any, score: Any = None, loss: Any = cross_entropy, trials: float = 4) -> Any:
        own = score or (lambda model: {"accuracy": accuracy(model, X[:20], Y[:20])})
        task = Task(model=model, loss=loss, data=(X, Y), score=own, batch=ROWS, epochs=2)
        space = Space({"learning_rate": Between(0.1, 1.0)}, {"schedule": "constant"})
        asked = PrivateSearch(
            task=task, epsilon=2.0, delta=1e-5, space=space, trials=Trials(trials, float("inf"))
        )
        return search_privately(asked, 3)

    def test_weights_that_a_score_keeps_are_refused(self) -> None:
        best: dict[str, Any] = {}

        def warm(seed: int) -> nn.Module:
            model = nn.Linear(3, 2)
            if best:
                model.load_state_dict(best["state"])
            return model

        def keeping(model: nn.Module) -> dict[str, float]:
            best["state"] = copy.deepcopy(model.state_dict())
            return {"accuracy": accuracy(model, X[:20], Y[:20])}

        with pytest.raises(InvalidValue, match="a training of its own"):
            self.search(warm, keeping)

    def test_weights_that_a_file_keeps_are_refused(self, tmp_path: Any) -> None:
        path = tmp_path / "best.pt"

        def warm(seed: int) -> nn.Module:
            model = nn.Linear(3, 2)
            if path.exists():
                model.load_state_dict(torch.load(path))
            return model

        def keeping(model: nn.Module) -> dict[str, float]:
            torch.save(model.state_dict(), path)
            return {"accuracy": accuracy(model, X[:20], Y[:20])}

        with pytest.raises(InvalidValue, match="initial weights must follow from its seed"):
            self.search(warm, keeping)

    def test_a_module_that_trials_share_is_refused(self) -> None:
        encoder = nn.Linear(3, 3)
        with pytest.raises(InvalidValue, match="a training of its own"):
            self.search(lambda seed: nn.Sequential(encoder, nn.Linear(3, 2)))

    def test_a_loss_that_a_score_moves_and_what_changes_late_is_refused(self) -> None:
        weight = torch.ones(2)

        def weighed(model: nn.Module, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weight, reduction="none")

        def moving(model: nn.Module) -> dict[str, float]:
            weight.add_(model(X).detach().mean(0))
            return {"accuracy": 0.5}

        with pytest.raises(InvalidValue, match="have the same assumptions"):  # a run saw it
            self.search(lambda seed: nn.Linear(3, 2), moving, weighed)
        build = lambda seed: nn.Linear(3, 2)  # noqa: E731
        late, start = [0], Task(model=build, loss=cross_entropy, data=(X, Y)).fresh(0).weight.detach()

        def only_later(model: Any) -> dict[str, float]:
            late[0] += not torch.equal(model.weight, start)
            return {"accuracy": 0.5}

        with pytest.raises(InvalidValue, match="as it is from trial to trial"):
            self.search(build, only_later)

    def test_a_model_that_ignores_its_seed_follows_from_it_all_the_same(self) -> None:
        held: dict[str, Tensor] = {}

        def lazy(model: nn.Module) -> dict[str, float]:
            held.setdefault("x", X[:20])  # loaded when it is first asked for
            return {"accuracy": accuracy(model, held["x"], Y[:20])}

        winner = self.search(lambda seed: nn.Linear(3, 2), lazy)
        assert winner.assumptions == ()
        task = Task(model=lambda seed: nn.Linear(3, 2), loss=cross_entropy, data=(X, Y))
        before = torch.get_rng_state()
        one, same, other = (task.fresh(seed).weight for seed in (5, 5, 6))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_score_that_keeps_something_is_supposed_to_keep_it_for_itself(self) -> None:
        seen: list[int] = []

        def counting(model: nn.Module) -> dict[str, float]:
            seen.append(len(seen))
            return {"accuracy": accuracy(model, X[:20], Y[:20])}

        assert self.search(lambda seed: nn.Linear(3, 2), counting).assumptions == (KEPT,)

    def test_trials_of_a_program_of_the_users_are_supposed_to_be_apart(self) -> None:
        task = Task(
            model=nn.Linear(3, 2), loss=cross_entropy, data=(X, Y), score=lambda model: {"a": 1.0}, batch=ROWS
        )
        space = Space({"learning_rate": Between(0.1, 1.0)}, {"schedule": "constant", "epochs": 1.0})
        asked = PrivateSearch(task=task, epsilon=2.0, delta=1e-5, space=space, trials=Trials(1, float("inf")))
        tried = Tried(0.5, {"w": torch.ones(1)}, ())
        winners = [search_privately(asked, seed, attempt=lambda spec, plan: tried) for seed in (0, 1)]
        assert {winner.score is None for winner in winners} == {True, False}  # no trial, and some
        assert {winner.assumptions for winner in winners} == {(ATTEMPTED,)}


class Record:
    """A user's own."""

    def __init__(self, number: int) -> None:
        self.number = number


def table(rows: int = ROWS) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": X[:rows].tolist(), "y": Y[:rows].tolist()})


def nothing(rows: int) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": [None] * rows})


def twice(data: Any) -> Any:
    return pytest.importorskip("datasets").concatenate_datasets([data, data])


def asked_twice(data: Any) -> Any:
    """Two questions about each picture, whose memory both have."""
    datasets = pytest.importorskip("datasets")
    return datasets.concatenate_datasets(
        [data.add_column("question", [f"{which} {i}" for i in range(len(data))]) for which in ("what", "who")]
    )


class TestATwentyNinth:
    """Records of three rows each were stated at the price of one: (1, 1e-4) where groups of three have 3.58."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda: [(f"text {i}", i % 2) for i in range(HALF)] * 2,
            lambda: [(i / 7, i % 2) for i in range(HALF)] * 2,
            lambda: [Record(i) for i in range(HALF)] * 2,
            lambda: Subset([(i, 0) for i in range(HALF)] * 2, range(ROWS)),
            lambda: table(HALF).repeat(2),
            lambda: table().select([*range(HALF)] * 2),
            lambda: twice(table(HALF)),
            lambda: twice(table().shuffle(seed=0).select(range(HALF))),
            lambda: Subset(table().select([*range(HALF)] * 2), range(ROWS)),
            lambda: ConcatDataset([table(HALF), shared := table(HALF // 2), shared]),
            lambda: ConcatDataset([[(one := Record(i)) for i in range(HALF)], [one, *range(HALF - 1)]]),
            lambda: StackDataset(Subset(TensorDataset(X), [*range(HALF)] * 2), Subset([*Y], [*range(HALF)] * 2)),
        ],
    )  # fmt: skip
    def test_a_record_given_several_times_is_refused(self, make: Any) -> None:
        with pytest.raises(InvalidValue, match="each record once"):
            given_by(make())

    @pytest.mark.parametrize(
        "make",
        [
            lambda: [(f"text {i % HALF}", i % 2) for i in range(ROWS)],  # alike, of several people perhaps
            lambda: [Record(0) for _ in range(ROWS)],
            lambda: table().shuffle(seed=0),
            lambda: Subset(table(), range(ROWS)),
            lambda: pytest.importorskip("datasets").concatenate_datasets([table(HALF), table(HALF)]),
            lambda: pytest.importorskip("datasets").concatenate_datasets([nothing(HALF), nothing(HALF)]),
            lambda: StackDataset(Subset(TensorDataset(X), [0] * ROWS), TensorDataset(Y)),  # one picture for all
            lambda: asked_twice(table(HALF)),
            lambda: ConcatDataset([Subset(TensorDataset(X), range(HALF)), Subset([*X], range(HALF))]),
        ],
    )  # fmt: skip
    def test_others_are_not(self, make: Any) -> None:
        assert SAME_OBJECT not in given_by(make())

    def test_of_texts_and_numbers_it_is_supposed(self) -> None:
        assert SAME_OBJECT in given_by([f"text {i}" for i in range(HALF)] * 2)
        assert SAME_OBJECT in given_by([0.5] * ROWS)
        assert SAME_OBJECT not in given_by([f"text {i}" for i in range(ROWS)])
        assert SAME_OBJECT not in given_by(list(torch.arange(ROWS)))

    def test_a_person_may_have_several(self) -> None:
        data = [(f"text {i}", i % 2) for i in range(HALF)] * 2
        budget = dc.Budget(1.0, 1e-5, dc.Unit.PERSON, examples_per_person=2)
        assert SAME_OBJECT not in given_by(data, budget, [i % HALF for i in range(ROWS)])


def given_by(data: Any, budget: Any = None, people: Any = None) -> tuple[str, ...]:
    """What is supposed of data that are given to a training."""
    plan, model = make_plan(), make_model()
    if budget is not None:
        plan = dc.calibrate(budget, plan.sampling, steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)
    trainer = Trainer(model, loss, plan, sgd(model), seed=0)
    trainer.batches(data, collate_fn=lambda items: (X[:1], Y[:1]), people=people)
    return trainer._life.supposed


class TestATwentyEighth:
    @pytest.mark.parametrize(
        "data",
        [
            [[X[i % HALF], Y[i % HALF]] for i in range(ROWS)],
            Subset(data := [[X[i % HALF], Y[i % HALF]] for i in range(ROWS)], range(ROWS)),
            [X[:1].expand(ROWS, 3), Y[:1].expand(ROWS)],
        ],
    )  # fmt: skip
    def test_records_and_columns_in_lists_are_told(self, data: Any) -> None:
        with pytest.raises(InvalidValue, match="each record once"):
            given(data)
        given([X, X])  # of an autoencoder: two columns

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_floats_too_narrow_for_ids_are_refused(self, dtype: torch.dtype) -> None:
        first = int(2 / torch.finfo(dtype).eps)
        with pytest.raises(InvalidValue, match="must be told apart"):
            most_clients([0] * 8, (first + torch.arange(8)).to(dtype))
        assert most_clients([0] * 8, (first - 9 + torch.arange(8)).to(dtype)) == 8

    def test_categories_that_are_objects_are_supposed(self) -> None:
        pandas = pytest.importorskip("pandas")
        for categories, held in (([1.0, 2.0], True), ([1.0, object()], False)):
            column = pandas.Categorical([1.0] * ROWS, categories=categories)
            assert (table_of(frame(column)).held is not None) is held

    def test_a_score_cannot_write_to_what_is_released(self) -> None:
        def writing(model: nn.Module) -> dict[str, float]:
            model.load_state_dict({name: torch.full_like(p, 9.0) for name, p in model.state_dict().items()})
            return {"accuracy": 0.5}

        search = TestTrialsThatGoOnFromOneAnother().search
        winner = search(lambda seed: nn.Linear(3, 2), writing)
        assert winner.assumptions == (KEPT,)
        assert all((weight != 9).all() for weight in winner.weights.values())

    def test_a_score_that_draws_draws_the_same_for_each(self) -> None:
        search = TestTrialsThatGoOnFromOneAnother().search
        assert (
            search(lambda seed: nn.Linear(3, 2), lambda model: {"a": float(torch.rand(()))}).assumptions == ()
        )

    @pytest.mark.parametrize("frozen", [False, True])
    def test_runs_of_an_attack_are_of_models_of_their_own(self, frozen: bool) -> None:
        """Of one model they are one long training: 3.1 was stated, with confidence, where the truth was 0."""
        plan = make_plan(rows=ROWS, batch=8)
        shared = nn.Linear(3, 3).requires_grad_(not frozen)
        attack = one_canary(plan, (X, Y), lambda: nn.Sequential(shared, nn.Linear(3, 2)), loss)
        attack.play(present=True, seed=0)
        if frozen:
            attack.play(present=False, seed=1)
        else:
            with pytest.raises(InvalidValue, match="a new model for each run"):
                attack.play(present=False, seed=1)

    def test_a_lower_end_for_cut_batches_is_not_above_that_of_whole_ones(self) -> None:
        cut = Ledger.of([1.0] * 4, sample_rate=0.02).cut(1000, 46)
        assert cut.is_cut
        whole = Pld(rtol=1e-2).bracket(cut.cut(1, None), 1e-5)[0]
        assert 0 < PrivacyCurve(cut)._least(1e-5) <= whole


SERIES = torch.randn(ROWS + 31)
LABELS, ARRAY, WIDE = torch.eye(2), np.zeros((ROWS, 3)), torch.zeros(6, ROWS)


def transposed() -> tuple[torch.Tensor, torch.Tensor]:
    """Readings of four sensors, and the next ones: a row a moment."""
    sensors = torch.randn(4, ROWS + 1)
    return sensors[:, :ROWS].T, sensors[:, 1:].T


class TestAThirtieth:
    """Windows over one series were taken for rows of their own, without a word."""

    @pytest.mark.parametrize(
        "rows",
        [
            SERIES.unfold(0, 32, 1)[:, :3],
            SERIES.as_strided((ROWS, 3), (1, 1)),
            np.lib.stride_tricks.sliding_window_view(SERIES.numpy(), 32),
            {"a": (X, SERIES.unfold(0, 2, 1)[:ROWS])},
            {"x": SERIES[:ROWS], "y": SERIES[1 : ROWS + 1]},
            {"x": SERIES.numpy()[1 : ROWS + 1], "y": SERIES.numpy()[:ROWS]},
        ],
    )
    def test_rows_that_overlap_are_supposed(self, rows: Any) -> None:
        assert check_distinct(rows if isinstance(rows, dict) else (rows, Y)) == OVERLAPPING

    @pytest.mark.parametrize(
        "data",
        [
            lambda: Subset(TensorDataset(SERIES.unfold(0, 32, 1), Y), range(ROWS)),
            lambda: ConcatDataset([TensorDataset(X), TensorDataset(SERIES.unfold(0, 3, 1)[:ROWS])]),
            lambda: StackDataset(TensorDataset(X), TensorDataset(SERIES.unfold(0, 3, 1)[:ROWS])),
            lambda: [(SERIES[i : i + 5], 1) for i in range(ROWS)],
            lambda: [{"a": {"b": SERIES.numpy()[i : i + 5]}} for i in range(ROWS)],
            lambda: list(np.lib.stride_tricks.sliding_window_view(SERIES.numpy(), 32)),
            lambda: Subset([SERIES[i : i + 2] for i in range(ROWS)], range(9)),
            lambda: StackDataset(SERIES.unfold(0, 3, 1)[:ROWS], Y),
            lambda: StackDataset(SERIES[:ROWS], SERIES[1 : ROWS + 1]),
            transposed,
        ],
    )
    def test_in_containers_too(self, data: Any) -> None:
        assert check_distinct(data()) == OVERLAPPING

    @pytest.mark.parametrize(
        "data",
        [
            lambda: [(x, x) for x in X],
            lambda: [(x, y, X[0]) for x, y in zip(X.clone(), Y, strict=True)],
            lambda: list(X.T.contiguous().T),
            lambda: Subset(TensorDataset(X, X), range(ROWS)),
            lambda: [(X[i, :2], X[i, 2:]) for i in range(ROWS)],
            lambda: ConcatDataset([TensorDataset(X[:9]), TensorDataset(X[9:])]),
            lambda: [torch.zeros(0), *X],
            lambda: [(document[:-1], document[1:]) for document in (torch.zeros(9) for _ in range(ROWS))],
            lambda: [(x, LABELS[i % 2]) for i, x in enumerate(X)],
            lambda: (ARRAY, ARRAY[:, ::-1]),
            lambda: tuple(torch.zeros(ROWS, 300).T.contiguous().T.unbind(1)),
            lambda: (WIDE.T[:, :3], WIDE.T[:, 3:]),
        ],
    )
    def test_containers_of_memory_of_their_own_are_not(self, data: Any) -> None:
        assert check_distinct(data()) is None

    def test_columns_of_one_table_are_apart(self) -> None:
        table = torch.zeros(ROWS, 7)
        assert check_distinct((table[:, :3], table[:, 3], table[:, 4:].numpy(), table)) is None

    @pytest.mark.parametrize(
        "rows",
        [
            X.T.contiguous().T,
            X.repeat(2, 2)[::2, ::2],
            X[:, None, :].expand(ROWS, 4, 3),
            torch.zeros(4, ROWS, 3).transpose(0, 1),
            torch.zeros(ROWS, 40).unfold(1, 8, 1),
            torch.zeros(ROWS * 4).unfold(0, 4, 4),
            torch.zeros(ROWS, 3, 4, 4).to(memory_format=torch.channels_last),
            np.zeros((ROWS, 3))[::-1].copy("F"),
            np.broadcast_to(np.zeros(3), (ROWS, 3)),
            torch.zeros(ROWS, 0),
        ],
    )
    def test_rows_of_memory_of_their_own_are_not(self, rows: Any) -> None:
        assert check_distinct((rows, Y)) is None

    @pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (3, 1, 2, 2)])
    def test_what_is_told_apart_shares_no_number(self, shape: tuple[int, ...]) -> None:
        """Against a count of where every number of every row lies, for 300 layouts."""
        rng = np.random.default_rng(0)
        memory, told = torch.arange(1000), 0
        for _ in range(300):
            strides = [int(rng.integers(0, 8)) for _ in shape]
            strides[0] += 1
            laid = memory.as_strided(shape, strides)
            rows = [set(row.flatten().tolist()) for row in laid]
            shared = len(set.union(*rows)) < sum(map(len, rows))
            said = check_distinct((laid,))
            assert shared <= (said == OVERLAPPING)
            told += not shared and not said
        assert told > 10


class TestCurvesOfOneNumber:
    def test_a_function_that_decides_by_one_number_is_told_how(self) -> None:
        sampling = dc.PoissonSampling(ROWS, 8)
        for clip, words in (
            (lambda u: 1.0 if u < 0.8 else 0.5, "numpy.where"),
            (lambda u: torch.nn.Parameter(torch.ones(2)), "array of numbers"),
        ):
            with pytest.raises(InvalidType, match=words):
                dc.calibrate(dc.Budget(1.0, 1e-5), sampling, steps=2, privacy=[1.0] * 2, clip=clip)  # type: ignore[arg-type]
