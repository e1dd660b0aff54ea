"""Rows with NaN count as zero in silence: they are found before the first step, or when somebody checks rows."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from decrescendo.clipping import Engine
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training import Run, Trainer, train
from decrescendo.training.data.finite import _has_nonfinite
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.tasks.fitting import cross_entropy, fit

from .conftest import ROWS, make_model, make_plan, sgd
from .conftest import loss as of_pairs

Data = tuple[Tensor, Tensor]
MISSING = "data must have no NaN and no infinity in them, got a row that has"


class Fills(nn.Module):
    """Fills missing values in itself, with random numbers in between."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.layer = nn.Dropout(0.5), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.drop(torch.nan_to_num(x)))


class Read(Dataset[Any]):
    """Rows that code of a user's reads."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.data[0][index], self.data[1][index]


@pytest.fixture
def missing(data: Data) -> Data:
    data[0][7, 1] = torch.nan
    return data


def run_of(data: object, model: nn.Module | None = None, loss: Any = of_pairs, **settings: Any) -> Run:
    torch.manual_seed(0)
    model = make_model() if model is None else model
    return train(model, loss, data, make_plan(), sgd(model), seed=0, **settings)


def by_name(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"] if "x" in batch else torch.stack([batch[name] for name in "abc"], dim=1)
    return nn.functional.cross_entropy(model(x.float()), batch["y"], reduction="none")


def frame(data: Data) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({**dict(zip("abc", data[0].T.numpy(), strict=True)), "y": data[1].numpy()})


FORMS: dict[str, tuple[Callable[[Data], object], Any]] = {
    "tensors": (lambda data: data, of_pairs),
    "arrays": (lambda data: (data[0].numpy(), data[1].numpy()), of_pairs),
    "a frame": (frame, by_name),
    "a part of tensors": (lambda data: Subset(TensorDataset(*data), range(ROWS)), of_pairs),
    "a list": (lambda data: [{"x": x, "y": int(y)} for x, y in zip(*data, strict=True)], by_name),
}


class TestTraining:
    @pytest.mark.parametrize("name", FORMS)
    def test_a_missing_value_is_refused_before_the_first_step(self, name: str, missing: Data) -> None:
        """One in a hundred rows, or two in three, counted as zero, and the run was proven."""
        form, loss = FORMS[name]
        with pytest.raises(InvalidValue, match=MISSING) as refused:
            run_of(form(missing), loss=loss)
        assert "7" not in str(refused.value)  # neither which row nor how many
        run_of(form((torch.nan_to_num(missing[0]), missing[1])), loss=loss)

    @pytest.mark.parametrize("value", [torch.inf, -torch.inf])
    def test_so_is_an_infinite_one(self, data: Data, value: float) -> None:
        data[0][0, 0] = value
        with pytest.raises(InvalidValue, match=MISSING):
            run_of(data)

    def test_who_may_not_tell_even_that_says_so(self, missing: Data) -> None:
        assert run_of(missing, require_finite=False).steps == 3
        with pytest.raises(InvalidType, match="require_finite"):
            run_of(missing, require_finite=1)

    @pytest.mark.parametrize("asked", [None, True])
    def test_a_model_that_fills_them_in_is_trained(self, missing: Data, asked: bool | None) -> None:
        """And draws what it would have drawn."""
        found = [run_of(missing, Fills(), require_finite=choice) for choice in (asked, False)]
        for name, value in found[0].weights.items():
            assert value.shape == found[1].weights[name].shape
        assert found[0].diagnostics == found[1].diagnostics
        assert not found[0].assumptions

    def test_the_look_does_not_move_the_streams_of_a_run_that_goes_on(self, missing: Data, tmp_path: Any) -> None:
        def life(folder: str, until: int) -> Any:
            torch.manual_seed(0)
            model = Fills()
            kept = Checkpoints(tmp_path / folder, 1, resume=True)
            trainer = Trainer(model, of_pairs, make_plan(), sgd(model), seed=0, checkpoints=kept)
            for batch in trainer.batches(missing):
                if trainer.step(batch).step == until:
                    return None
            return trainer.finish().weights

        whole = life("whole", 9)
        life("parts", 2)
        for name, value in life("parts", 9).items():
            assert torch.equal(value, whole[name])

    def test_a_collator_that_fills_them_in_is_enough(self, missing: Data) -> None:
        def collate(items: list[Data]) -> Data:
            return torch.stack([torch.nan_to_num(x) for x, _ in items]), torch.stack([y for _, y in items])

        assert run_of(missing, collate_fn=collate).steps == 3

    def test_rows_that_code_reads_are_looked_at_where_asked(self, missing: Data) -> None:
        assert run_of(Read(missing)).steps == 3
        with pytest.raises(InvalidValue, match=MISSING):
            run_of(Read(missing), require_finite=True)

    def test_fit_hands_it_on(self, missing: Data) -> None:
        for asked in (None, False):
            model = make_model()
            settings: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "require_finite": asked}
            if asked is None:
                with pytest.raises(InvalidValue, match=MISSING):
                    fit(model, cross_entropy, missing, make_plan(), seed=0, **settings)
            else:
                fit(model, cross_entropy, missing, make_plan(), seed=0, **settings)

    def test_whole_numbers_and_texts_have_none(self) -> None:
        class Table(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(5, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.words(x).sum(1)

        rows = torch.from_numpy(np.arange(ROWS * 2).reshape(ROWS, 2) % 5)
        assert run_of((rows, rows[:, 0] % 2), Table()).steps == 3


class TestCheck:
    def test_rows_that_would_count_as_zero_are_counted_for_who_gave_them(self, missing: Data) -> None:
        missing[0][3] = torch.inf
        with pytest.warns(UserWarning, match="2 of 40 rows given have a gradient that is not finite.*NaN or"):
            Engine(make_model(), of_pairs).check(missing)

    def test_whatever_the_reason_is(self, data: Data) -> None:
        def overflows(model: nn.Module, batch: Data) -> Tensor:
            return (model(batch[0])[:, 0] * 0 + batch[1].float() - 1).log()

        with pytest.warns(UserWarning, match="all numbers in them are finite: look for a loss"):
            Engine(make_model(), overflows).check(data)

    def test_rows_of_which_each_counts_are_nothing_to_say(self, data: Data, missing: Data) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Engine(Fills().eval(), of_pairs).check(missing)
            Engine(make_model(), of_pairs).check((torch.nan_to_num(data[0]), data[1]))
            Engine(make_model(), of_pairs).check((torch.randn(1, 3), torch.zeros(1).long()))


def test_an_example_that_counts_for_nothing_is_not_compared(data: tuple[Tensor, Tensor]) -> None:
    """Inputs of 1e20, whose squares overflow: the engine was said to misread the bias behind them."""
    with pytest.warns(UserWarning, match="rows given have a gradient that is not finite"):
        Engine(make_model(), of_pairs).check((data[0] * 1e20, data[1]))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_the_stored_numbers_of_sparse_tensors_are_searched(layout: torch.layout) -> None:
    assert not _has_nonfinite({"graph": torch.eye(3).to_sparse(layout=layout)})
    assert _has_nonfinite({"graph": torch.eye(3).log().neg().to_sparse(layout=layout)})
