"""Trainings that are interrupted anywhere and go on: the same bits, the same ledger, counted once."""

import copy
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from often import some
from torch import nn

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.filters import RenyiFilter
from decrescendo.accounting.ledger import Ledger
from decrescendo.base import sealed
from decrescendo.base.rng import Secure
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidType, InvalidValue, PlanViolation
from decrescendo.plans.plan import Plan
from decrescendo.training import Trainer, train
from decrescendo.training.persistence.checkpoint import Checkpoint, Checkpoints
from decrescendo.training.persistence.checkpoint.checkpoints import write_state
from decrescendo.training.persistence.checkpoint.tree import pack, unpack
from decrescendo.training.steering import Adaptive, Settings
from decrescendo.training.store import Store

from .conftest import ROWS, loss, make_plan

PLAN_NOISE = (2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4)


class Crash(BaseException):
    """As if the process had ended."""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)


def the_plan() -> Plan:
    return make_plan(PLAN_NOISE, (1.0,) * len(PLAN_NOISE))


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.8, 0.9))
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(PLAN_NOISE))


def state(model: nn.Module) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())


def go(
    folder: Path, seed: int | Secure, crashes: dict[int, str], store: Store | None = None, every: int = 2
) -> tuple[bytes, Ledger] | None:
    """One life of the training; at the steps in ``crashes`` it ends before or after the weights move."""
    model, optimizer, scheduler = parts()
    checkpoints = Checkpoints(folder, every, resume=True)
    try:
        trainer = Trainer(
            model, loss, the_plan(), optimizer, seed=seed, scheduler=scheduler, store=store, checkpoints=checkpoints
        )  # fmt: skip
        step = len(trainer.ledger)

        def power_cut(*_: Any) -> None:
            if crashes.get(step) == "before":
                del crashes[step]
                raise Crash

        optimizer.register_step_pre_hook(power_cut)
        for batch in trainer.batches(data()):
            trainer.step(batch)
            if crashes.get(step) == "after":
                del crashes[step]
                raise Crash
            step += 1
        run = trainer.finish()
    except Crash:
        return None
    return state(model), run.ledger


@settings(max_examples=4)
@given(
    crashes=st.dictionaries(st.integers(0, len(PLAN_NOISE) - 1), st.sampled_from(["before", "after"])),
    every=st.integers(1, 5),
    seeded=st.booleans(),
)
def test_any_crashes_leave_the_same_bits_and_the_same_ledger(
    tmp_path_factory: pytest.TempPathFactory, crashes: dict[int, str], every: int, seeded: bool
) -> None:
    """Optimiser, scheduler, dropout's random numbers, and both kinds of streams go on where they were."""
    folder = tmp_path_factory.mktemp("run")
    begun = folder / "begun"
    first: dict[int, str] = {0: "before"}  # only the first checkpoint is written
    assert go(begun, 5 if seeded else Secure(), first, every=every) is None
    shutil.copytree(begun, folder / "other")
    undisturbed = go(begun, 5 if seeded else Secure(), {}, every=every)
    lives, left = 0, dict(crashes)
    while (found := go(folder / "other", 5 if seeded else Secure(), left, every=every)) is None:
        lives += 1
    assert lives == len(crashes)
    assert found == undisturbed
    assert found[1] == the_plan().ledger


def test_the_undisturbed_run_is_the_one_without_checkpoints(tmp_path: Path) -> None:
    model, optimizer, scheduler = parts()
    train(
        model, loss, data(), the_plan(), optimizer, seed=5,
        scheduler=scheduler,
    )  # fmt: skip
    found = go(tmp_path / "run", 5, {})
    assert found is not None
    assert found[0] == state(model)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_store_never_lists_less_than_was_released_and_counts_once(tmp_path: Path, moment: str) -> None:
    store = Store.create(tmp_path / "s.db", Budget(60.0, 1e-4), dataset="d", rows=ROWS)
    crashes = {3: moment}
    assert go(tmp_path / "run", Secure(), crashes, store, every=2) is None
    (entry,) = store.entries()
    assert entry.released == the_plan().ledger.first(4)
    crashes[4] = "after"
    assert go(tmp_path / "run", Secure(), crashes, store, every=2) is None
    assert store.entries()[0].released == the_plan().ledger.first(5)
    assert go(tmp_path / "run", Secure(), crashes, store, every=2) is not None
    (entry,) = store.entries()
    assert entry.released == the_plan().ledger
    assert entry.state == "finished"


def test_a_run_that_did_not_begin_is_reserved_once(tmp_path: Path) -> None:
    """Each life asks for the same run, also when the last one ended before its first step."""
    store = Store.create(tmp_path / "s.db", Budget(60.0, 1e-4), dataset="d", rows=ROWS)
    for _ in range(3):
        model, optimizer, scheduler = parts()
        kept = Checkpoints(tmp_path / "run", resume=True, also={"scheduler": scheduler})
        Trainer(model, loss, the_plan(), optimizer, seed=Secure(), store=store, checkpoints=kept)
    assert len(store.entries()) == 1


def test_a_run_that_another_number_of_ranks_went_on_with_can_be_killed_again(tmp_path: Path) -> None:
    """Its steps after the checkpoint were refused to both numbers: the checkpoint still had the old one."""
    calm = go(tmp_path / "calm", 5, {})
    assert go(tmp_path / "run", 5, {2: "before"}) is None
    newest, journal = Checkpoints(tmp_path / "run", resume=True).newest(), tmp_path / "run" / "releases.jsonl"
    assert newest is not None
    write_state(tmp_path / "run", newest.step, {**newest.state, "ranks": 2}, kept=2)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[: 1 + newest.step]))
    assert go(tmp_path / "run", 5, {3: "before"}) is None
    assert go(tmp_path / "run", 5, {}) == calm


def test_what_was_refused_before_any_release_may_begin_anew_in_its_folder(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.db", Budget(1.0, 1e-4), dataset="d", rows=ROWS)
    model = parts()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ImpossibleBudget):
        Trainer(model, loss, the_plan(), optimizer, seed=5, store=store, checkpoints=Checkpoints(tmp_path / "run"))
    smaller = make_plan((30.0,) * 7, (1.0,) * 7)
    kept = Checkpoints(tmp_path / "run", resume=True)
    trainer = Trainer(model, loss, smaller, optimizer, seed=5, store=store, checkpoints=kept)
    trainer.step(next(iter(trainer.batches(data()))))
    with pytest.raises(PlanViolation, match="plan it began with"):
        Trainer(model, loss, the_plan(), optimizer, seed=5, store=store, checkpoints=kept)


def test_a_step_with_another_result_is_refused_before_it_is_seen(tmp_path: Path) -> None:
    """The same noise on another sum: their difference would have none."""
    store = Store.create(tmp_path / "s.db", Budget(60.0, 1e-4), dataset="d", rows=ROWS)
    assert go(tmp_path / "run", 5, {3: "after"}, store, every=2) is None
    model, optimizer, scheduler = parts()
    checkpoints = Checkpoints(tmp_path / "run", 2, also={"scheduler": scheduler}, resume=True)
    trainer = Trainer(model, loss, the_plan(), optimizer, seed=5, store=store, checkpoints=checkpoints)
    inputs, targets = data()
    before = state(model)
    batch = next(trainer.batches((inputs * 1.5, targets)))
    assert batch is not None
    with pytest.raises(PlanViolation, match="first result"):
        trainer.step(batch)
    assert state(model) == before


def test_a_run_goes_on_as_what_it_was(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.db", Budget(60.0, 1e-4), dataset="d", rows=ROWS)
    assert go(tmp_path / "run", 5, {3: "after"}) is None
    model, optimizer, scheduler = parts()
    kept = Checkpoints(tmp_path / "run", 2, also={"scheduler": scheduler}, resume=True)
    with pytest.raises(PlanViolation, match="store it began with"):
        Trainer(model, loss, the_plan(), optimizer, seed=5, store=store, checkpoints=kept)
    with pytest.raises(PlanViolation, match="plan it began with"):
        Trainer(model, loss, make_plan((3.0,) * 7, (1.0,) * 7), optimizer, seed=5, checkpoints=kept)
    with pytest.raises(FileRefused, match=r"Secure\(\)"):
        Trainer(model, loss, the_plan(), optimizer, seed=Secure(), checkpoints=kept)
    with pytest.raises(
        InvalidValue,
        match="scheduler= and also= must be of what the checkpoint holds, scheduler, got nothing",
    ):
        Trainer(model, loss, the_plan(), optimizer, seed=5, checkpoints=Checkpoints(tmp_path / "run", resume=True))
    with pytest.raises(InvalidValue, match="resume=True"):
        Checkpoints(tmp_path / "run")
    with pytest.raises(InvalidValue, match="got an empty name"):
        Checkpoints("")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "run.json").touch()
    with pytest.raises(InvalidValue, match="folder of a saved run"):
        Checkpoints(tmp_path / "saved", resume=True)


def test_adaptive_runs_have_no_checkpoints(tmp_path: Path) -> None:
    model, optimizer, _ = parts()
    adaptive = Adaptive(
        the_plan().sampling,
        RenyiFilter(Budget(2.0, 1e-5), order=8),
        steps=3,
        policy=lambda context: Settings(3.0, 1.0),
    )
    with pytest.raises(InvalidValue, match="the state of a policy is not saved"):
        Trainer(model, loss, adaptive, optimizer, seed=5, checkpoints=Checkpoints(tmp_path / "run"))


def test_checkpoints_are_for_their_owner_and_few(tmp_path: Path) -> None:
    go(tmp_path / "run", 5, {}, every=1)
    kept = sorted(os.listdir(tmp_path / "run"))
    assert kept == ["releases.jsonl", "releases.lock", "step-000000006", "step-000000007"]
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
        assert path.suffix in ("", ".json", ".jsonl", ".lock", ".safetensors")


def test_a_checkpoint_that_says_another_step_than_its_name_is_refused(tmp_path: Path) -> None:
    """Noise of another step would be drawn again."""
    go(tmp_path / "run", 5, {6: "after"}, every=1)
    for path in (tmp_path / "run").glob("step-*"):
        content = json.loads((path / "state.json").read_text(encoding="utf-8"))
        del content["sha256"]
        content["step"] += 1
        (path / "state.json").write_text(sealed.seal(content), encoding="utf-8")
    with pytest.raises(FileRefused, match="must hold the step of its name"):
        go(tmp_path / "run", 5, {}, every=1)


@pytest.mark.parametrize("file", some(["state.json", "tensors.safetensors"], 1))
@pytest.mark.parametrize("damage", some(["cut", "changed", "missing", "foreign"], 2))
def test_a_damaged_checkpoint_is_passed_over_and_two_are_refused(tmp_path: Path, file: str, damage: str) -> None:
    whole = go(tmp_path / "whole", 5, {}, every=1)
    go(tmp_path / "run", 5, {6: "after"}, every=1)
    shutil.rmtree(tmp_path / "run" / "step-000000004", ignore_errors=True)
    newest, older = sorted((tmp_path / "run").glob("step-*"), reverse=True)
    for round_, folder in enumerate((newest, older)):
        path = folder / file
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            middle = len(content) // 2
            spoilt = {
                "cut": content[:middle],
                "changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "foreign": b'{"format": "else"}',
            }
            path.write_bytes(spoilt[damage])
        kept = shutil.copytree(tmp_path / "run", tmp_path / f"copy{round_}")
        if round_ == 0:
            assert go(kept, 5, {}, every=1) == whole
        else:
            with pytest.raises(FileRefused):
                go(kept, 5, {}, every=1)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(trees)
def test_nested_state_comes_back_as_it_was(tree: object) -> None:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(tree, tensors))
    assert repr(unpack(json.loads(text), tensors)) == repr(tree)


def test_tensors_come_back_and_objects_are_refused() -> None:
    tensors: dict[str, torch.Tensor] = {}
    tree = {"a": [torch.arange(3), (torch.tensor(2.0, dtype=torch.bfloat16),)]}
    back = unpack(pack(tree, tensors), tensors)
    assert torch.equal(back["a"][0], torch.arange(3))
    assert back["a"][1][0].dtype == torch.bfloat16
    with pytest.raises(InvalidType, match="state_dict"):
        pack({"scheduler": object()}, {})
    for wrong in (
        {"__kind__": "code"},
        {"__kind__": "tensor", "name": "t9"},
        {"__kind__": "dict", "items": 3},
        {},
    ):
        with pytest.raises(FileRefused):
            unpack(copy.deepcopy(wrong), {})


def test_a_crash_while_writing_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(Checkpoint(1, {"x": 1}))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileRefused, match="written to, got No space left on device"):
        checkpoints.save(Checkpoint(2, {"x": 2}))
    monkeypatch.undo()
    newest = checkpoints.newest()
    assert newest is not None
    assert (newest.step, newest.state["x"]) == (1, 1)
    assert os.listdir(tmp_path / "run") == ["step-000000001"]
