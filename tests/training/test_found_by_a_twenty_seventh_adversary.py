"""What a look at everything but the engine found: records given twice, ids that are several, trials that go on from
one another, code inside of a frame, a filter with a price of its own."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting import Ledger, Pld
from decrescendo.accounting.filters.metered import MeteredFilter
from decrescendo.audit.attacks import one_canary
from decrescendo.audit.curve import PrivacyCurve
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.federated import most_clients
from decrescendo.plans import Schedule
from decrescendo.training import train
from decrescendo.training.data.examples import EXAMPLES_APART
from decrescendo.training.data.people import check_people
from decrescendo.training.data.rows import table_of
from decrescendo.training.steering import Adaptive, FromSchedule
from decrescendo.training.steering.adaptive_run import FILTERED

from .conftest import ROWS, loss, make_model, make_plan, sgd

X, Y = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 2
HALF = ROWS // 2


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


class TestATwentyEighth:
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


class TestCurvesOfOneNumber:
    def test_a_function_that_decides_by_one_number_is_told_how(self) -> None:
        sampling = dc.PoissonSampling(ROWS, 8)
        for clip, words in (
            (lambda u: 1.0 if u < 0.8 else 0.5, "numpy.where"),
            (lambda u: torch.nn.Parameter(torch.ones(2)), "array of numbers"),
        ):
            with pytest.raises(InvalidType, match=words):
                dc.calibrate(dc.Budget(1.0, 1e-5), sampling, steps=2, privacy=[1.0] * 2, clip=clip)  # type: ignore[arg-type]
