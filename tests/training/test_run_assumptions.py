"""A run says whether its rows were shown to be independent, and what its guarantee assumes, also from its file."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import FileRefused, InvalidType
from decrescendo.training import Trainer, train
from decrescendo.training.loop.between import WRITTEN
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.processes.bits import fingerprint
from decrescendo.training.run import Run
from decrescendo.training.statement import UNRECORDED, Provenance

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[torch.Tensor, torch.Tensor]
DECLARED = (assumed("rows-declared-line", "modeling.py:12"), assumed("rows-declared-operation", "mine::fold"))


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine to which something was declared."""
    monkeypatch.setattr(Engine, "assumptions", property(lambda _: DECLARED))


def a_run(data: Data) -> Run:
    model = make_model()
    return train(model, loss, data, make_plan(), sgd(model), seed=0)


def page(run: Run) -> str:
    return run.statement().to_markdown()


def rewritten(folder: Path, **change: Any) -> None:
    """run.json with other entries in its provenance (``None`` takes one out), and the checksum that fits."""
    path = folder / "run.json"
    facts = json.loads(path.read_text())
    del facts["sha256"]
    for name, value in change.items():
        facts["provenance"][name] = value
        if value is None:
            del facts["provenance"][name]
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**facts, "sha256": hashlib.sha256(canonical).hexdigest()}))


def test_a_run_of_which_every_pass_was_checked_says_so(data: Data, tmp_path: Path) -> None:
    run = a_run(data)
    assert run.assumptions == ()
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert (again.rows_independent, again.provenance) == (True, run.provenance)
    for one in (run, again):
        assert "- Rows independent: yes, checked at every pass. (A row is one example.)" in page(one)
        assert "Assumed: " not in page(one).partition("## How it was run")[2]
        assert "rows independent: yes, checked at every pass" in one.describe().splitlines()
        assert "Assumed" not in one.describe()


@pytest.mark.usefixtures("declared")
def test_what_was_declared_is_in_the_run_its_file_and_its_page(data: Data, tmp_path: Path) -> None:
    run = a_run(data)
    assert (run.rows_independent, run.assumptions) == (False, DECLARED)
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert (again.rows_independent, again.assumptions) == (False, DECLARED)
    told = "no, assumed in part (rows-declared-line, rows-declared-operation)"
    for one in (run, again):
        assert f"- Rows independent: {told}. (A row is one example.)" in page(one)
        for assumption in DECLARED:
            assert f"- {assumption}. (`{assumption.code}`)" in page(one).splitlines()
        assert any("assumptions that are not true" in text for text in one.statement().facts["not_covered"])
        assert {f"rows independent: {told}", *map(str, DECLARED)} <= set(one.describe().splitlines())
    facts = json.loads((tmp_path / "run" / "statement.json").read_text())["provenance"]
    listed = [{"code": one.code, "sentence": one.sentence} for one in DECLARED]
    assert (facts["rows_independent"], facts["assumptions"]) == (False, listed)


def test_a_run_by_another_clipper_shows_no_independence(data: Data) -> None:
    """A clipper that has no such property is not asked, and not believed."""
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    trainer._engine = Reference(model, loss)
    for batch in trainer.batches(data):
        trainer.step(batch)
    run = trainer.finish()
    assert (run.rows_independent, run.assumptions) == (False, (assumed("rows-own-clipper", "Reference"),))


def test_what_an_earlier_life_assumed_is_not_forgotten(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def life(lines: str, until: int) -> str:
        found = tuple(assumed("rows-declared-line", line) for line in lines)
        monkeypatch.setattr(Engine, "assumptions", property(lambda _: found))
        model = make_model()
        kept = Checkpoints(tmp_path, 1, resume=True)
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0, checkpoints=kept)
        for batch in trainer.batches(data):
            if trainer.step(batch).step == until:
                next(trainer.batches(data), None)  # the next draw writes the checkpoint
                break
        run = trainer.finish()
        assert not run.rows_independent
        return "".join(letter for letter in "abc" if assumed("rows-declared-line", letter) in run.assumptions)

    assert life("bc", 1) == "bc"
    assert life("", 2) == "bc"
    assert life("ab", 3) == "abc"


def test_of_a_run_without_a_record_the_independence_of_rows_is_assumed(data: Data, tmp_path: Path) -> None:
    """Runs put together by hand."""
    run = a_run(data)
    run.save(tmp_path / "old")
    rewritten(tmp_path / "old", assumptions=None)
    old = Run.load(tmp_path / "old")
    by_hand = dataclasses.replace(run, provenance=None)
    for one in (old, by_hand, dataclasses.replace(run, provenance=Provenance(random="secure"))):
        assert (one.rows_independent, one.assumptions) == (False, (UNRECORDED,))
    assert "did not record this" in page(old)
    assert "this was not recorded" in page(by_hand)
    by_hand.save(tmp_path / "hand")
    assert not Run.load(tmp_path / "hand").rows_independent


def test_a_sentence_without_a_code_is_refused(data: Data, tmp_path: Path) -> None:
    a_run(data).save(tmp_path / "run")
    rewritten(tmp_path / "run", assumptions=["assumed: the buffers are public"])
    with pytest.raises(FileRefused, match="code: Assumed: sentence"):
        Run.load(tmp_path / "run")


def test_a_file_holds_assumptions_as_texts_with_their_codes(data: Data, tmp_path: Path) -> None:
    provenance = Provenance(random="secure", assumptions=DECLARED)
    dataclasses.replace(a_run(data), provenance=provenance).save(tmp_path / "run")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert facts["version"] == 1
    assert facts["provenance"]["assumptions"] == [f"{one.code}: {one.sentence}" for one in DECLARED]
    assert "rows_independent" not in facts["provenance"]


def test_whoever_trains_can_declare_an_assumption(data: Data) -> None:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    own = Assumption("own-sensor", "Assumed: the sensor was calibrated on public data")
    trainer.assume(own)
    trainer.assume("the labels are public")
    for batch in trainer.batches(data):
        trainer.step(batch)
    run = trainer.finish()
    assert run.assumptions == (assumed("declared", "the labels are public"), own)
    assert run.rows_independent


@pytest.mark.parametrize("wrong", ["all is well", [3], [""], ["  "], {"a": "b"}, [None], True])
def test_assumptions_that_are_no_texts_are_refused(data: Data, tmp_path: Path, wrong: Any) -> None:
    """A text would be read as its letters, an empty list of anything else as none."""
    a_run(data).save(tmp_path / "run")
    rewritten(tmp_path / "run", assumptions=wrong)
    with pytest.raises(FileRefused):
        Run.load(tmp_path / "run")


def test_a_provenance_takes_assumptions_alone() -> None:
    wrong: Any = ("the labels are public",)
    with pytest.raises(InvalidType, match="must be a Assumption"):
        Provenance(random="secure", assumptions=wrong)


def test_a_sentence_cannot_look_like_another_part_of_the_page(data: Data) -> None:
    own = Assumption("mine", "Assumed: mine.\n\n## Audit\n\nNothing was found")
    provenance = Provenance(random="secure", assumptions=(own,))
    lines = page(dataclasses.replace(a_run(data), provenance=provenance)).splitlines()
    assert lines.count("## Audit") == 1


def _added(model: torch.nn.Module, rows: torch.Tensor) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(rows.mean())


def _added_unseen(model: torch.nn.Module, rows: torch.Tensor) -> None:
    next(model.parameters()).data.add_(rows.mean())  # torch counts no new version


def _replaced(model: torch.nn.Module, rows: torch.Tensor) -> None:
    next(model.parameters()).data = next(model.parameters()).data + rows.mean()


def _loaded(model: torch.nn.Module, rows: torch.Tensor) -> None:
    model.load_state_dict({name: value + rows.mean() for name, value in model.state_dict().items()})


@pytest.mark.parametrize("write", [_added, _added_unseen, _replaced, _loaded])
@pytest.mark.parametrize("when", ["after a step", "after a draw", "after the last step"])
def test_who_writes_to_the_weights_between_steps_has_the_run_say_so(data: Data, write: Any, when: str) -> None:
    """What is written may be made of the rows, which lie at hand: a guarantee cannot speak of it."""
    model, plan = make_model(), make_plan()
    trainer = Trainer(model, loss, plan, sgd(model), seed=0)
    for number, batch in enumerate(trainer.batches(data)):
        if when == "after a draw" and number == 1:
            write(model, data[0])
        trainer.step(batch)
        if (when, number) in (("after a step", 0), ("after the last step", plan.steps - 1)):
            write(model, data[0])
    assert trainer.finish().assumptions == (WRITTEN,)


def test_what_was_written_between_steps_is_not_forgotten_over_a_crash(data: Data, tmp_path: Path) -> None:
    def life() -> Trainer:
        model = make_model()
        kept = Checkpoints(tmp_path, 1, resume=True)
        return Trainer(model, loss, make_plan(), sgd(model), seed=0, checkpoints=kept)

    first = life()
    batches = first.batches(data)
    first.step(next(batches))
    _added(first._model, data[0])
    next(batches)  # writes the checkpoint, and dies before its step
    second = life()
    for batch in second.batches(data):
        second.step(batch)
    assert second.finish().assumptions == (WRITTEN,)


def test_what_leaves_the_weights_as_they_were_is_no_write(data: Data) -> None:
    """Evaluation, a scheduler, an average that takes the weights' place and gives it back."""
    model = make_model()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, scheduler=scheduler)
    average = torch.optim.swa_utils.AveragedModel(model)
    for batch in trainer.batches(data):
        trainer.step(batch)
        average.update_parameters(model)
        mine = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(average.module.state_dict())
        with torch.no_grad():
            loss(model, data)
        model.load_state_dict(mine)
    assert not trainer.finish().assumptions


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_a_fingerprint_is_of_weights_of_any_kind(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 2), (), (0, 2)):
        values = torch.randn(shape, dtype=dtype, generator=generator)
        before = fingerprint(values)
        assert before == fingerprint(values.clone())
        assert (before == fingerprint(values + 1)) == (not values.numel())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float32, torch.bool], ids=str)
def test_a_fingerprint_goes_by_numbers_and_not_by_how_they_lie(dtype: torch.dtype) -> None:
    """Labels are a column of a table, or one number for all."""
    table = torch.arange(24).reshape(4, 6).to(dtype)
    for view in (table[:, 2], table.t(), table[:1].expand(4, 6), table[:, ::2]):
        assert fingerprint(view) == fingerprint(view.clone().contiguous())
