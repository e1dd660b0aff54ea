"""What a run that went on from checkpoints says of the lives before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import EngineSettings
from decrescendo.errors import FileRefused, InvalidValue, PlanViolation
from decrescendo.training import Checkpoints, Trainer, train

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]
WIDE, AUTOMATIC = EngineSettings(accumulate="float64"), EngineSettings(gamma=0.01)


def life(
    folder: Path,
    data: Data,
    until: int,
    settings: EngineSettings | None = None,
    make: Callable[[nn.Module], Any] = sgd,
) -> Trainer:
    model, kept = make_model(), Checkpoints(folder, every=1, resume=True)
    trainer = Trainer(model, loss, make_plan(), make(model), seed=0, checkpoints=kept, settings=settings)
    for batch in trainer.batches(data):
        if len(trainer.ledger) == until:  # after the checkpoint of that step
            break
        trainer.step(batch)
    return trainer


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [(None, WIDE, "float32"), (WIDE, None, "float32"), (WIDE, WIDE, "float64"), (None, None, "float32")],
)
def test_sums_are_as_wide_as_the_narrowest_were(data: Data, tmp_path: Path, first: Any, second: Any, said: str) -> None:
    """The last life alone was asked: two steps in float32 were said to have been in float64, without the rounding that
    the statement says is not covered."""
    life(tmp_path, data, 2, first)
    life(tmp_path, data, 2, second)
    provenance = life(tmp_path, data, 3, second).finish().provenance
    assert provenance is not None
    assert provenance.accumulate == said


def test_a_run_goes_on_with_the_clipping_it_began_with(data: Data, tmp_path: Path) -> None:
    life(tmp_path, data, 2, AUTOMATIC)
    with pytest.raises(PlanViolation, match=r"clipping it began with, got gamma=None after gamma=0\.01"):
        life(tmp_path, data, 3)
    assert life(tmp_path, data, 3, AUTOMATIC).finish().steps == 3


def test_automatic_clipping_is_what_the_statement_says(data: Data) -> None:
    """It said that gradients were clipped."""
    for settings, words in (
        (AUTOMATIC, "Clipping: automatic: each example's gradient g counts as C_t g / (|g| + 0.01), with"),
        (None, "Clipping: each example's gradient to C_t in the joint"),
    ):
        model = make_model()
        run = train(model, loss, data, make_plan(), sgd(model), seed=0, settings=settings)
        assert words in run.statement().to_markdown()


def test_another_optimiser_is_refused_before_its_first_step(data: Data, tmp_path: Path) -> None:
    """It was an error of torch's, in a step that had been released and moved nothing."""
    life(tmp_path, data, 2)
    with pytest.raises(FileRefused, match="began with, SGD, got Adam"):
        life(tmp_path, data, 3, make=lambda model: torch.optim.Adam(model.parameters()))


def test_a_forked_process_does_not_step(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both released their sums, of other weights, with the same noise; streams of `Secure` refused it, those of a seed
    did not."""
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    batch = next(trainer.batches(data))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(PlanViolation, match="in the process that began it"):
        trainer.step(batch)
    assert not trainer.ledger


def test_a_lazy_model_is_told_what_to_do(data: Data) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(InvalidValue, match=r"got 0\.weight of a lazy module\. Call the model once"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0)
