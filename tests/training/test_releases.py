"""What was released is written down before it is seen: a step that is done again is the same, or is not seen."""

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from torch import nn

from decrescendo.accounting.budget import Budget
from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings
from decrescendo.errors import DecrescendoError, FileRefused, PlanViolation
from decrescendo.training import Trainer
from decrescendo.training.persistence.checkpoint import Checkpoints, Releases
from decrescendo.training.persistence.checkpoint import releases as written
from decrescendo.training.persistence.checkpoint.releases import RELEASES
from decrescendo.training.store import Store

from .conftest import ROWS, loss, make_plan

STEPS, EVERY = 20, 10
SECURE = Secure()
PLAN = make_plan((4.0,) * STEPS, (1.0,) * STEPS, batch=ROWS // 2)


class Crash(BaseException):
    """As if the process had ended."""


def data(changed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(ROWS, 3, generator=generator), torch.arange(ROWS) % 2
    if changed:  # ten, as each is left out of nine batches once in 512 times
        inputs[10:20], targets[10:20] = -3 * inputs[10:20], 1 - targets[10:20]
    return inputs, targets


def trainer(
    folder: Path,
    *,
    resume: bool,
    seed: int | Secure,
    every: int = EVERY,
    settings: EngineSettings | None = None,
) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))
    kept = Checkpoints(folder, every, resume=resume)
    return Trainer(
        model, loss, PLAN, torch.optim.SGD(model.parameters(), lr=1.0), seed=seed, settings=settings, checkpoints=kept
    )  # fmt: skip


def weights(made: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in made._model.parameters()])


def life(
    folder: Path, *, resume: bool = True, changed: bool = False, until: int = STEPS, seed: int | Secure = SECURE,
    every: int = EVERY, settings: EngineSettings | None = None,
) -> tuple[dict[int, torch.Tensor], DecrescendoError | None]:  # fmt: skip
    """What it showed after each step, and what ended it."""
    made = trainer(folder, resume=resume, seed=seed, every=every, settings=settings)
    shown: dict[int, torch.Tensor] = {}
    try:
        for batch in made.batches(data(changed)):
            before = weights(made)
            try:
                step = made.step(batch).step
            except DecrescendoError as error:
                assert torch.equal(weights(made), before)  # nothing of it is seen
                return shown, error
            shown[step] = weights(made)
            if step == until:
                break
    except DecrescendoError as error:
        return shown, error
    return shown, None


@pytest.mark.parametrize("seed", [Secure(), 3], ids=["secure", "seeded"])
def test_the_same_noise_on_another_sum_is_never_seen_without_a_store(tmp_path: Path, seed: int | Secure) -> None:
    """A checkpoint after step 10, killed after 19, records changed: the difference of two releases would be that of
    two sums of clipped gradients, without noise."""
    first, _ = life(tmp_path, resume=False, until=19, seed=seed)
    second, refusal = life(tmp_path, changed=True, seed=seed)
    assert refusal is not None
    assert "the same noise on another sum" in str(refusal).lower()
    assert "new run" in str(refusal)  # the way out
    for step, found in second.items():
        assert torch.equal(found, first[step])
    # With the record as it was, the run goes on, and nothing has been lost.
    third, refusal = life(tmp_path, seed=seed)
    assert refusal is None
    assert sorted(third) == list(range(11, 21))
    assert all(torch.equal(third[step], first[step]) for step in range(11, 20))


def test_other_settings_are_another_sum_by_its_rounding(tmp_path: Path) -> None:
    life(tmp_path, resume=False, until=15)
    second, refusal = life(tmp_path, settings=EngineSettings(accumulate="float64"))
    assert isinstance(refusal, PlanViolation)
    assert not second


def test_noise_that_met_no_sum_yet_may_meet_other_data(tmp_path: Path) -> None:
    """Killed when step 16 was about to be drawn: what comes after it was released to nobody."""
    life(tmp_path, resume=False, until=15, every=5)
    made = trainer(tmp_path, resume=True, seed=Secure(), every=5)
    for taken, batch in enumerate(made.batches(data()), start=11):
        made.step(batch)
        if taken == 15:
            break
    for batch in made.batches(data(changed=True)):
        made.step(batch)
    assert len(made.ledger) == STEPS


LAST = 7
places = st.sampled_from(["before", "write", "fsync", "after", "apply", "checkpoint"])


@tried(max_examples=tried().max_examples // 3)
@given(
    deaths=st.lists(st.tuples(st.integers(0, LAST - 1), places, st.integers(0, 90)), min_size=1, max_size=4),
    every=st.sampled_from([1, 3, 50]),
)
def test_killed_anywhere_and_resumed_it_shows_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[tuple[int, str, int]], every: int
) -> None:
    """Before a line, in the middle of it, before it is on the disk, before and after the weights move."""
    folder = tmp_path_factory.mktemp("run")
    shown: dict[int, torch.Tensor] = {}
    calm = folder / "calm"
    life(calm, resume=False, until=1)
    rough = Path(shutil.copytree(calm, folder / "rough"))
    (rough / RELEASES).write_bytes(b"".join((rough / RELEASES).read_bytes().splitlines(True)[:1]))
    wanted, _ = life(calm, until=LAST)
    for step, place, cut in deaths:
        with pytest.MonkeyPatch.context() as patched:
            if not dies(rough, step, place, cut, every, patched, shown):
                break
    found, refusal = life(rough, every=every, until=LAST)
    assert refusal is None
    assert LAST in found | shown
    for seen in (shown, found):
        assert all(torch.equal(seen[step], wanted[step]) for step in seen)


def dies(
    folder: Path,
    at: int,
    place: str,
    cut: int,
    every: int,
    patched: pytest.MonkeyPatch,
    shown: dict[int, Any],
) -> bool:
    """One life that ends in step ``at``; whether it did."""
    made = trainer(folder, resume=True, seed=Secure(), every=every)

    def crash(*_: Any, **__: Any) -> Any:
        raise Crash

    def cut_short(releases: Releases, line: bytes) -> None:
        with releases._path.open("r+b") as file:
            file.seek(releases._end)
            file.truncate()
            file.write(line[: cut % len(line)] if place == "write" else line)
        raise Crash

    try:
        for batch in made.batches(data()):
            if len(made.ledger) == at:
                if place == "before":
                    patched.setattr(Releases, "record", crash)
                elif place in ("write", "fsync"):
                    patched.setattr(Releases, "_append", cut_short)
                elif place == "apply":
                    made._optimizer.register_step_pre_hook(crash)
                elif place == "checkpoint":
                    patched.setattr(Checkpoints, "save", crash)
            step = made.step(batch).step
            shown[step] = weights(made)
            if len(made.ledger) == at + 1 and place == "after":
                raise Crash
            if step == LAST:
                return False
    except Crash:
        return True
    return False


def test_a_line_that_was_torn_is_left_out_and_written_again(tmp_path: Path) -> None:
    """It was never whole on the disk, so nothing of its release was seen."""
    releases = Releases(tmp_path)
    releases.begin()
    releases.record(0, bytes(32))
    path = tmp_path / RELEASES
    whole = path.read_bytes()
    line = written._line(2, "ab" * 32)
    for length in range(len(line)):
        path.write_bytes(whole + line[:length])
        again = Releases(tmp_path)
        again.go_on(releases.name, 1)
        assert again.record(1, bytes.fromhex("cd" * 32))
        assert path.read_bytes() == whole + written._line(2, "cd" * 32)
        assert not again.record(0, bytes(32))


def test_any_other_damage_is_refused_or_only_refuses(tmp_path: Path) -> None:
    """Every byte turned, every line left out or moved: never is another digest let pass."""
    releases = Releases(tmp_path)
    releases.begin()
    digests = [bytes([number]) * 32 for number in (1, 2, 3)]
    for position, digest in enumerate(digests):
        releases.record(position, digest)
    path = tmp_path / RELEASES
    whole = path.read_bytes()
    head, *lines = whole.splitlines(True)
    spoilt = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    spoilt += [head + b"".join(kept) for kept in (lines[1:], lines[::2], lines[::-1], [*lines, lines[0]])]
    spoilt += [whole + rest for rest in (b"\0", b"\n", b"{}\n", b'{"step": 4}\n', bytes(200), lines[0][:-1])]
    for content in spoilt:
        path.write_bytes(content)
        again = Releases(tmp_path)
        try:
            again.go_on(releases.name, 1)  # the last step of a checkpoint; two more were released since
        except FileRefused:
            continue
        for position, digest in enumerate(digests):
            with pytest.raises(PlanViolation, match="first result"):
                again.record(position, digest[::-1][:-1] + b"\xff")
    path.write_bytes(whole)
    Releases(tmp_path).go_on(releases.name, 3)


@pytest.mark.parametrize("left", [0, 5, 9])
def test_a_list_that_ends_before_its_checkpoint_is_refused(tmp_path: Path, left: int) -> None:
    life(tmp_path, resume=False, until=15)
    path = tmp_path / RELEASES
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[: 1 + left]))
    with pytest.raises(FileRefused, match="before its checkpoint"):
        trainer(tmp_path, resume=True, seed=Secure())


def test_a_list_that_is_missing_or_another_trainings_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        life(tmp_path / name, resume=False, until=15)
    shutil.copy(tmp_path / "one" / RELEASES, tmp_path / "other" / RELEASES)
    with pytest.raises(FileRefused, match="whose checkpoint this is"):
        trainer(tmp_path / "other", resume=True, seed=Secure())
    (tmp_path / "other" / RELEASES).unlink()
    with pytest.raises(FileRefused, match="which lists what was released, got none"):
        trainer(tmp_path / "other", resume=True, seed=Secure())


def test_without_its_checkpoints_a_run_that_released_something_does_not_begin_again(tmp_path: Path) -> None:
    """With a seed it would draw the same noise; with fresh noise, releases would be in no ledger."""
    life(tmp_path, resume=False, until=15, seed=3)
    for path in tmp_path.glob("step-*"):
        shutil.rmtree(path)
    with pytest.raises(FileRefused, match="checkpoints were removed"):
        trainer(tmp_path, resume=True, seed=3)


def test_a_crash_before_the_first_checkpoint_leaves_a_folder_to_begin_in(tmp_path: Path) -> None:
    Releases(tmp_path / "run").begin()
    shown, refusal = life(tmp_path / "run")
    assert refusal is None
    assert len(shown) == STEPS


def test_a_checkpoint_of_before_there_was_a_list_is_refused(tmp_path: Path) -> None:
    life(tmp_path, resume=False, until=1)
    (state,) = tmp_path.glob("step-*/state.json")
    body = json.loads(state.read_text())
    state.write_text(json.dumps(body | {"version": 1}))
    with pytest.raises(FileRefused, match="must be of version 2, got version=1"):
        trainer(tmp_path, resume=True, seed=Secure())


def test_two_lives_at_once_agree_or_one_is_refused(tmp_path: Path) -> None:
    """As two processes would: step by step in turns, on the same data and on other data."""
    life(tmp_path, resume=False, until=1)
    same, other, third = (trainer(tmp_path, resume=True, seed=Secure()) for _ in range(3))
    pairs = zip(same.batches(data()), other.batches(data()), third.batches(data(changed=True)), strict=False)
    refused = 0
    for one, two, three in pairs:
        same.step(one)
        other.step(two)
        assert torch.equal(weights(same), weights(other))
        try:
            third.step(three)
        except PlanViolation:
            refused += 1
            break
        assert torch.equal(weights(same), weights(third))
    assert refused


def test_two_that_begin_at_once_in_one_folder_do_not_both_release(tmp_path: Path) -> None:
    """Neither saw the other's checkpoint: the later one has the folder."""
    first, second = Releases(tmp_path), Releases(tmp_path)
    first.begin()
    second.begin()
    assert second.record(0, bytes(32))
    with pytest.raises(FileRefused, match="another's"):
        first.record(0, bytes(32))


def test_nobody_writes_between_a_look_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that a step is not there yet: without a lock both would write it down and show their result."""
    slow, quick = Releases(tmp_path), Releases(tmp_path)
    slow.begin()
    quick.go_on(slow.name, 0)
    passed: list[str] = []
    write = Releases._append

    def other() -> None:
        with suppress(PlanViolation):
            quick.record(0, bytes(32))
            passed.append("quick")

    thread = threading.Thread(target=other)

    def wait_for_other(self: Releases, line: bytes) -> None:
        if self is slow:
            thread.start()
            thread.join(0.5)
        write(self, line)

    monkeypatch.setattr(Releases, "_append", wait_for_other)
    with suppress(PlanViolation):
        slow.record(0, bytes(31) + b"1")
        passed.append("slow")
    thread.join()
    assert passed == ["slow"]


def test_steps_are_in_order(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    releases.begin()
    with pytest.raises(PlanViolation, match="in order, got step 2 after 0"):
        releases.record(1, bytes(32))


def test_with_another_store_of_which_it_knows_nothing_the_folder_goes_on_with_nothing(tmp_path: Path) -> None:
    """As if the store had been restored from a copy: it has forgotten what came after, the folder has not."""

    def made(name: str) -> Trainer:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        store = Store.create(tmp_path / name, Budget(900.0, 1e-4), dataset="d", rows=ROWS)
        return Trainer(
            model, loss, PLAN, torch.optim.SGD(model.parameters(), lr=1.0), seed=Secure(), store=store,
            checkpoints=Checkpoints(tmp_path / "kept", 50, resume=True),
        )  # fmt: skip

    first = made("one.db")
    for _, batch in zip(range(8), first.batches(data()), strict=False):
        first.step(batch)
    with pytest.raises(PlanViolation, match="must list what its run has released, got 0 of 8 steps"):
        made("other.db")
    assert not Store(tmp_path / "other.db").entries()


@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_release_that_cannot_be_written_down_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    made = trainer(tmp_path, resume=False, seed=Secure())
    batch = next(made.batches(data()))
    before = weights(made)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(FileRefused, match="Nothing was released"):
        made.step(batch)
    monkeypatch.undo()
    assert torch.equal(weights(made), before)
    assert len((tmp_path / RELEASES).read_bytes().splitlines()) == 1
