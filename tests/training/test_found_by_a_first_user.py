"""What somebody who met the library for the first time ran into."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel
from decrescendo.training import Checkpoints, Run, Task, Trainer, train

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[Tensor, Tensor]


def records() -> TensorDataset:
    return TensorDataset(torch.randn(ROWS, 3), torch.arange(ROWS) % 2)


class Halved(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x / 2, y


def test_a_tensor_data_sets_own_items_are_trained_on() -> None:
    model, kept = make_model(), Halved(torch.ones(ROWS, 3), torch.zeros(ROWS).long())
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    batch = next(batch for batch in trainer.batches(kept) if batch is not None)
    assert isinstance(batch, (list, tuple))
    assert float(batch[0].max()) == 0.5


def test_of_a_data_frame_each_column_keeps_its_dtype() -> None:
    pandas = pytest.importorskip("pandas")
    large = 2**53 + 1
    frame = pandas.DataFrame({"x": np.ones(ROWS, "float32"), "id": np.full(ROWS, large)})
    model = nn.Linear(1, 1)
    trainer = Trainer(model, lambda m, b: m(b["x"][:, None])[:, 0], make_plan(), sgd(model), seed=0)
    batch: Any = next(batch for batch in trainer.batches(frame) if batch is not None)
    assert (batch["x"].dtype, batch["id"].dtype, int(batch["id"][0])) == (torch.float32, torch.int64, large)
    twice = pandas.DataFrame(np.ones((ROWS, 2)), columns=["x", "x"])
    with pytest.raises(InvalidValue, match="names of their own"):
        trainer.batches(twice)


def twice() -> list[tuple[str, Any]]:
    row, half = {"x": torch.zeros(3), "y": 0}, Subset(records(), range(ROWS // 2))
    return [
        ("Subset", Subset(records(), [*range(ROWS - 1), 0])),
        ("ConcatDataset", ConcatDataset([half, half])),
        ("list", [row] * ROWS),
        ("ConcatDataset", ConcatDataset([half, Subset(records(), [0] * (ROWS // 2))])),
    ]


@pytest.mark.parametrize(("name", "data"), twice())
def test_a_record_with_several_rows_is_refused(name: str, data: Dataset[Any] | list[Any]) -> None:
    model = make_model()
    with pytest.raises(InvalidValue, match=f"each record once, got a {name} with"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0).batches(data)


def test_records_that_are_equal_are_several_and_columns_may_be_one() -> None:
    def itself(m: nn.Module, batch: Any) -> Tensor:
        return (m(batch[0]) - batch[1][:, :2]).square().sum(1)

    x, model = torch.zeros(ROWS, 3), make_model()
    assert train(model, itself, (x, x), make_plan(), sgd(model), seed=0).steps == 3
    model = make_model()
    assert (
        train(model, loss, [(torch.zeros(3), 0) for _ in range(ROWS)], make_plan(), sgd(model), seed=0).steps
        == 3
    )


OUTSIDE = {
    "the tensor": lambda x: x[0],
    "a view made before": lambda x, view=None: x.view(-1, 3)[:1].sum(0),
    "the array that it was made of": lambda x: torch.from_numpy(x.numpy())[0],
    "a number of it": lambda x: torch.ones(3) * x[0, 0].item(),
    "a list of it": lambda x: torch.tensor(x[0].tolist()),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_loss_that_reads_the_data_beside_its_batch_is_refused(name: str) -> None:
    x, y, model = torch.randn(ROWS, 3), torch.arange(ROWS) % 2, make_model()

    def centred(m: nn.Module, batch: Pair) -> Tensor:
        return nn.functional.cross_entropy(m(batch[0] - OUTSIDE[name](x)), batch[1], reduction="none")

    with pytest.raises(UnsupportedModel, match="data"):
        train(model, centred, (x, y), make_plan(), sgd(model), seed=0)


def test_so_is_one_that_reads_an_array_that_is_the_data() -> None:
    array, model = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32"), nn.Linear(3, 1)

    def centred(m: nn.Module, batch: Tensor) -> Tensor:
        return m(batch - torch.from_numpy(array[3:4])).square().sum(1)

    with pytest.raises(UnsupportedModel, match="holds the data beside the batch"):
        train(model, centred, array, make_plan(), sgd(model), seed=0)


def test_rows_of_the_same_tensor_that_are_not_trained_on_are_used_as_before() -> None:
    both, y = torch.randn(ROWS + 9, 3), torch.arange(ROWS) % 2

    def centred(part: Tensor) -> Any:
        def loss_of(m: nn.Module, batch: Pair) -> Tensor:
            return nn.functional.cross_entropy(m(batch[0] - part.mean(0)), batch[1], reduction="none")

        return loss_of

    def run(part: Tensor) -> Run:
        model = make_model()
        return train(model, centred(part), (both[:ROWS], y), make_plan(), sgd(model), seed=0)

    for public in (both[ROWS:], both.t()[:, ROWS:].t(), both[ROWS + 9 :].new_zeros(1, 3)):
        assert not run(public).assumptions
    for private in (both, both[ROWS - 1 :], both.flatten()[3 * ROWS - 1 :].view(-1, 1)):
        with pytest.raises(UnsupportedModel, match="holds the data beside the batch"):
            run(private)


def test_public_tensors_are_used_as_before() -> None:
    x, y, model, public = torch.randn(ROWS, 3), torch.arange(ROWS) % 2, make_model(), torch.randn(9, 3)

    def centred(m: nn.Module, batch: Pair) -> Tensor:
        return nn.functional.cross_entropy(m(batch[0] - public.mean(0)), batch[1], reduction="none")

    assert not train(model, centred, (x, y), make_plan(), sgd(model), seed=0).assumptions


def test_the_statement_says_the_rates_that_were_used(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    groups = [{"params": [p], "lr": 0.1 + at % 2} for at, p in enumerate(model.parameters())]
    run = train(model, loss, data, make_plan(), torch.optim.SGD(groups, lr=9.0), seed=0)
    assert run.provenance.optimizer == "SGD(lr=0.1/1.1)"
    for rate, until in ((0.25, 2), (0.75, 3)):  # the optimiser's settings are those of the checkpoint
        model = make_model()
        kept = Checkpoints(tmp_path / "run", every=1, resume=until == 3)
        trainer = Trainer(model, loss, make_plan(), sgd(model, rate), seed=0, checkpoints=kept)
        for taken, batch in enumerate(trainer.batches(data), start=until - 1):
            trainer.step(batch)
            if taken == until:
                break
        assert "lr=0.25" in trainer.finish().provenance.optimizer


def test_a_release_that_nothing_used_is_said(data: Pair) -> None:
    model = make_model()
    optimizer = sgd(model)
    trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
    batches = trainer.batches(data)
    trainer.fill_gradients(next(batches))
    optimizer.step()
    trainer.fill_gradients(next(batches))
    with pytest.warns(UserWarning, match="a noisy mean was not used"):
        trainer.fill_gradients(next(batches))


def test_batches_without_a_finite_gradient_are_said() -> None:
    model, plan = make_model(), make_plan(batch=30)
    with pytest.warns(UserWarning, match="noise alone was released") as said:
        train(
            model,
            loss,
            (torch.full((ROWS, 3), torch.nan), torch.zeros(ROWS).long()),
            plan,
            sgd(model),
            seed=0,
            require_finite=False,
        )
    assert len(said) == 1


def test_columns_may_be_arrays_and_many_tensors_in_a_list_must_say_what_they_are() -> None:
    x, y = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32"), np.arange(ROWS) % 2
    x.flags.writeable = False
    for data in ((x, y), {"x": x, "y": y}):

        def of(m: nn.Module, batch: Any) -> Tensor:
            return loss(m, tuple(batch.values()) if isinstance(batch, dict) else batch)

        found, wanted = (make_model() for _ in range(2))
        train(found, of, data, make_plan(), sgd(found), seed=0)
        train(wanted, loss, (torch.tensor(x), torch.tensor(y)), make_plan(), sgd(wanted), seed=0)
        for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(one, other)
    model = make_model()
    with pytest.raises(InvalidValue, match=r"torch\.stack"):
        train(model, loss, [torch.randn(3) for _ in range(ROWS)], make_plan(), sgd(model), seed=0)


def test_errors_of_the_loss_say_how_it_is_called(data: Pair) -> None:
    model = make_model()
    with pytest.raises(TypeError) as caught:
        train(model, nn.functional.cross_entropy, data, make_plan(), sgd(model), seed=0)
    assert "loss(model, batch)" in caught.value.__notes__[0]


def test_a_training_in_inference_mode_is_refused() -> None:
    model = make_model()
    with torch.inference_mode(), pytest.raises(InvalidValue, match="inference_mode"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0)


def test_scores_have_names_and_are_numbers(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    run = train(model, loss, data, make_plan(), sgd(model), seed=0)
    run.with_metrics({"accuracy": np.float64(0.5)}).save(tmp_path / "run")  # type: ignore[dict-item]
    assert Run.load(tmp_path / "run").metrics == {"accuracy": 0.5}
    with pytest.raises(InvalidType, match="scores by name"):
        Task(model=model, loss=loss, data=data, score=lambda m: 0.5).scores(model)  # type: ignore[arg-type,return-value]
