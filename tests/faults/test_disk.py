"""A full, read-only or failing disk: an error that says so, what was there untouched, nothing half written, and no
release that is not written down; and a file that is written is whole, with the rights asked for and nothing beside it.

Permissions do not stop an administrator, and tests may run as one: so the disk itself fails here. Files are written up
to a limit of the system (RLIMIT_FSIZE, in a process of its own), or the call that fails on a read-only or full disk
is made to fail (the n-th one, for every n)."""

import errno
import json
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing.judging import found
from fuzzing.seeds import ROWS, plan
from often import some

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.release import Release
from decrescendo.base import sealed as kept
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import DecrescendoError, FileRefused
from decrescendo.federated.journal import Journal
from decrescendo.plans.plan import Plan
from decrescendo.training.persistence.checkpoint import Checkpoint, Checkpoints, Releases
from decrescendo.training.run import Run
from decrescendo.training.store import Store

TENSORS = {"weight": torch.arange(6, dtype=torch.float32)}


def _save_plan(folder: Path) -> None:
    plan().save(folder / "plan.json")


def _save_run(folder: Path) -> None:
    Run(plan(), plan().ledger, plan().guarantee, TENSORS).save(folder / "run")


def _save_checkpoint(folder: Path) -> None:
    Checkpoints(folder / "kept", 1, resume=True).save(Checkpoint(2, {"model": TENSORS}))


def _save_releases(folder: Path) -> None:
    releases = Releases(folder / "released")
    releases.begin()
    for position in range(2):
        releases.record(position, bytes([position]) * 32)


def _save_kept(folder: Path) -> None:
    kept.write(folder / "result.json", "x", 1, {"score": 0.5})


def _save_journal(folder: Path) -> None:
    journal = Journal(folder / "journal")
    try:
        journal.write({"round": 2, "weights": TENSORS})
    finally:
        journal.close()


def _save_store(folder: Path) -> None:
    Store.create(folder / "new.db", Budget(5.0, 1e-5), dataset="patients", rows=ROWS).close()


WRITERS = (_save_plan, _save_run, _save_checkpoint, _save_releases, _save_kept, _save_journal, _save_store)
CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir", "link", "ftruncate", "lseek")


def _failing(name: str, at: int, code: int, counted: list[int]) -> Callable[..., Any]:
    original = getattr(os, name)

    def call(*given: Any, **named: Any) -> Any:
        counted[0] += 1
        if counted[0] == at:
            raise OSError(code, os.strerror(code))
        return original(*given, **named)

    return call


def _attempt(write: Callable[[Path], None], folder: Path) -> str | None:
    """What it says when it fails."""
    try:
        write(folder)
    except (DecrescendoError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("write", some(WRITERS, 3), ids=lambda write: write.__name__[6:])
@pytest.mark.parametrize(
    "code", some([errno.ENOSPC, errno.EROFS, errno.EACCES], 1), ids=lambda code: errno.errorcode[code]
)
def test_a_disk_that_fails_at_any_call_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], code: int
) -> None:
    """Every call of the operating system that it makes, each in turn the one that fails."""
    failures = 0
    for name in CALLS:
        at = 0
        while True:
            at += 1
            folder = tmp_path / f"{name}{at}"
            folder.mkdir()
            counted = [0]
            with monkeypatch.context() as patched:
                patched.setattr(os, name, _failing(name, at, code, counted))
                said = _attempt(write, folder)
            failures += said is not None
            if said is not None:
                assert said  # in words
                left = [path for path in found(folder) if ".tmp" in path or ".part" in path or ".new" in path]
                assert left == []
                # Whole (the last call was only to make sure of it) or not there; a second try is not in its own way.
                if not any((folder / name).exists() for name in ("new.db", "run", "released/releases.jsonl")):
                    write(folder)
            _check(folder)
            if counted[0] < at:
                break
    assert failures


def _check(folder: Path) -> None:
    """What is there can be read."""
    if (folder / "plan.json").exists():
        assert Plan.load(folder / "plan.json") == plan()
    if (folder / "run").exists():
        assert Run.load(folder / "run").plan == plan()
    if (folder / "kept").exists() and any(folder.glob("kept/step-*")):
        assert Checkpoints(folder / "kept", 1, resume=True).newest() is not None
    if (folder / "released" / "releases.jsonl").exists():
        name = json.loads((folder / "released" / "releases.jsonl").read_bytes().splitlines()[0])["name"]
        Releases(folder / "released").go_on(name, 0)
    if (folder / "result.json").exists():
        assert kept.read(folder / "result.json", "x", 1) == {"score": 0.5}
    if (folder / "journal").exists():
        journal = Journal(folder / "journal")
        state = journal.read()
        journal.close()
        assert state is None or state["round"] == 2
    if (folder / "new.db").exists():
        with closing(Store(folder / "new.db")) as store:
            assert store.rows == ROWS


def _limited(limit: int) -> Callable[[], None]:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the call fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return limit_files


FILL = """
import sys
from decrescendo.errors import FileRefused
from decrescendo.accounting.release import Release
from decrescendo.training.store import Store
store = Store(sys.argv[1])
account = store.account("a" * 32)
planned = account.agreed.ledger
for position in range(len(planned)):
    rate, noise = float(planned.sample_rate[position]), float(planned.noise_multiplier[position])
    try:
        account.record(position, Release(rate, noise), bytes(3000))
    except FileRefused as error:
        print(position, error)
        break
"""


@pytest.mark.slow
def test_a_store_on_a_full_disk_says_so_and_lists_what_was_recorded(tmp_path: Path) -> None:
    """Files may grow to so many bytes, then every write fails: the release that did not fit is not there."""
    path = tmp_path / "ledger.db"
    with closing(Store.create(path, Budget(5.0, 1e-5), dataset="patients", rows=ROWS)) as store:
        store.start(plan(), id="a" * 32)
    done = []
    for limit in (33_000, 38_000, 43_000):
        life = subprocess.run(
            [sys.executable, "-c", FILL, str(path)],
            capture_output=True,
            text=True,
            preexec_fn=_limited(limit),
        )
        assert life.returncode == 0, life.stderr
        recorded = len(plan().ledger)
        if life.stdout:
            recorded = int(life.stdout.split()[0])
            assert "Nothing was released" in life.stdout
        with closing(Store(path)) as store:
            assert store.entries()[0].released == plan().ledger.first(recorded)
        done.append(recorded)
    assert done[0] < len(plan().ledger)  # it was full


def test_a_store_on_a_read_only_disk_is_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(Store.create(path, Budget(5.0, 1e-5), dataset="patients", rows=ROWS)) as store:
        account = store.start(plan())
        store._connection.execute("PRAGMA query_only = ON")
        rate, noise = plan().sampling.sample_rate, float(plan().noise_multiplier[0])
        with pytest.raises(FileRefused, match="Nothing was released"):
            account.record(0, Release(rate, noise), b"")
        assert store.entries()[0].released.steps == 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Checkpoints(tmp_path / "kept", 1, resume=True)
    folder.save(Checkpoint(1, {"model": TENSORS}))
    before = found(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileRefused, match="No space left"):
        folder.save(Checkpoint(2, {"model": TENSORS}))
    assert found(tmp_path) == before
    newest = folder.newest()
    assert newest is not None
    assert newest.step == 1


def test_what_a_killed_life_left_is_swept_up(tmp_path: Path) -> None:
    """Half a checkpoint holds random streams: it must not lie about for ever."""
    (tmp_path / ".step-000000001.4711").mkdir(parents=True)
    (tmp_path / ".step-000000001.4711" / "state.json").write_text("{")
    Checkpoints(tmp_path, 1, resume=True).save(Checkpoint(1, {"model": TENSORS}))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


@pytest.mark.parametrize(("content", "raw"), [("é\n", b"\xc3\xa9\n"), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_it_has_the_bytes_and_the_rights_that_were_asked_for(tmp_path: Path, content: str | bytes, raw: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("what was there")
    for mode in (0o644, 0o600):
        write_whole(path, content, mode=mode)
        assert path.read_bytes() == raw
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_was_there_stays_if_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "file"
    path.write_text("what was there")

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_who_keeps_files_to_himself_keeps_these_too(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "file", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_no_folder_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", "new")
    with pytest.raises(ValueError, match="null"):
        write_whole(tmp_path / "a\0b", "new")
