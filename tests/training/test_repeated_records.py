"""A record with several rows is refused, where memory or row numbers tell it."""

from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

import decrescendo as dc
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training import Trainer
from decrescendo.training.data.repeated_records import check_distinct, share_records

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
            Subset(data, [*range(ROWS - 1), -ROWS]),
            ConcatDataset([Subset(data, range(HALF)), Subset(data, [0] * HALF)]),
            [(X[0], Y[0])] * ROWS,
            [(X[0], Y[0]) for _ in range(ROWS)],
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
            (X, X),
            [(X[0], place) for place in range(ROWS)],
            [(torch.zeros(3), 0) for _ in range(ROWS)],
            ConcatDataset([TensorDataset(X[:30], Y[:30]), TensorDataset(X[30:], Y[30:])]),
            Subset(ConcatDataset([data, data]), [*range(HALF), *range(ROWS + HALF, ROWS + ROWS)]),
            Subset(data, [*range(HALF), *range(-HALF, 0)]),
        ],
    )  # fmt: skip
    def test_others_are_not(self, data: Any) -> None:
        given(data)

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


class TestRecordsOfObjectsAndTables:
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
            lambda: ConcatDataset([Subset(TensorDataset(X), range(HALF)), Subset([*X], range(HALF))]),
            lambda: [f"text {i}" for i in range(HALF)] * 2,  # texts and numbers may be alike
            lambda: [0.5] * ROWS,
        ],
    )  # fmt: skip
    def test_others_are_not(self, make: Any) -> None:
        given_by(make())

    def test_a_person_may_have_several(self) -> None:
        data = [(f"text {i}", i % 2) for i in range(HALF)] * 2
        budget = dc.Budget(1.0, 1e-5, dc.Unit.PERSON, examples_per_person=2)
        given_by(data, budget, [i % HALF for i in range(ROWS)])


def given_by(data: Any, budget: Any = None, people: Any = None) -> tuple[str, ...]:
    """What is assumed of data that are given to a training."""
    plan, model = make_plan(), make_model()
    if budget is not None:
        plan = dc.calibrate(budget, plan.sampling, steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)
    trainer = Trainer(model, loss, plan, sgd(model), seed=0)
    trainer.batches(data, collate_fn=lambda items: (X[:1], Y[:1]), people=people)
    return trainer._run_state.assumptions


@pytest.mark.parametrize("indices", [["a", "b"], [[0], [1]], [0.5, 1.5]])
def test_a_subset_must_have_numbers_of_rows(indices: Any) -> None:
    with pytest.raises(InvalidType, match="a row's number for each record"):
        check_distinct(Subset([*X], indices))


def test_no_code_of_a_record_runs_to_tell_it() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise AssertionError("it has been asked")

    given_by([(row, Silent()) for row in zip(X, Y, strict=True)])


SERIES = torch.randn(ROWS + 31)


@pytest.mark.parametrize(
    "data",
    [
        lambda: (SERIES.unfold(0, 32, 1)[:, :3], Y),
        lambda: (SERIES[:ROWS], SERIES[1 : ROWS + 1]),
        lambda: [(SERIES[i : i + 5], 1) for i in range(ROWS)],
        lambda: Subset(TensorDataset(SERIES.unfold(0, 32, 1), Y), range(ROWS)),
        lambda: (X[:, :2], X[:, 2:]),
        lambda: (X[:, None, :].expand(ROWS, 4, 3), Y),
        lambda: (np.broadcast_to(np.zeros(3), (ROWS, 3)), Y),
        lambda: (torch.zeros(ROWS, 0), torch.tensor(1.0)),
    ],
)
def test_rows_that_overlap_are_not_told(data: Any) -> None:
    """A window is a row of its own, and what its neighbours share with it is for the owner of the data to say."""
    check_distinct(data())


def test_parts_of_one_data_set_of_hugging_face_that_share_rows_are_refused() -> None:
    """Selections, filters and formats are new objects over the same table: a record twice had two rows' budget."""
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    half = ROWS // 2
    for part in (
        whole.select(range(half)), whole.select([3, 1]), whole.filter(lambda row: row["y"] >= 0),
        whole.with_format("torch"), Subset(whole.select([2]), [0]),
    ):  # fmt: skip
        with pytest.raises(InvalidValue, match="each record once"):
            check_distinct(ConcatDataset([whole, part]))
        assert share_records(ConcatDataset([part]), whole)
        both = ConcatDataset([whole, part])
        with pytest.raises(InvalidValue, match="each record once"):
            check_distinct(Subset(both, [*range(len(both))][::-1]))
    check_distinct(ConcatDataset([whole.select(range(half)), whole.select(range(half, ROWS))]))


def test_views_that_share_rows_are_refused_and_others_are_not() -> None:
    for rows in (X, X.numpy()):
        with pytest.raises(InvalidValue, match="2 row"):
            check_distinct(ConcatDataset([rows[:4], rows[2:]]))
        check_distinct(ConcatDataset([rows[:4], rows[4:]]))
        check_distinct(ConcatDataset([rows[:, :2], rows[:, ::2]]))  # other columns


def test_many_parts_are_told_apart_in_one_pass() -> None:
    """Each pair by itself took minutes for a thousand shards."""
    parts = [TensorDataset(torch.rand(3, 2)) for _ in range(2_000)]
    check_distinct(ConcatDataset(parts))
    with pytest.raises(InvalidValue, match="3 row"):
        check_distinct(ConcatDataset([*parts, parts[7]]))


def test_a_frame_whose_index_says_that_rows_are_copies_is_refused() -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0, 1, 1]})
    again = pandas.concat([frame, frame[frame["b"] == 1]])
    drawn = frame.sample(3, replace=True, random_state=0)
    for data in (again, drawn, {"a": again["a"]}, (again[["a"]], again["b"]), datasets.Dataset.from_pandas(again)):
        with pytest.raises(InvalidValue, match=r"index has labels several times.*reset_index"):
            check_distinct(data)
    shown = datasets.Dataset.from_pandas(again)
    for kind in ("torch", "numpy", "pandas"):  # a format may leave the index out, or make tensors of it
        for columns in (None, ["a"]):
            with pytest.raises(InvalidValue, match="index has labels several times"):
                check_distinct(shown.with_format(kind, columns=columns))
    check_distinct(datasets.Dataset.from_pandas(frame[::-1]).with_format("torch", columns=["a"]))
    two = pandas.DataFrame({"a": range(4)}, index=pandas.MultiIndex.from_product([[0, 1], [0, 1]]))
    check_distinct(datasets.Dataset.from_pandas(two))
    for data in (frame, again.reset_index(drop=True), frame.sample(frac=1), datasets.Dataset.from_pandas(frame[1:])):
        check_distinct(data)
