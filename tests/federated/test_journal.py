"""Killed between any two calls and started again: the run goes on, and the ledger misses nothing that was seen."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from often import some
from torch import nn

from decrescendo.accounting.ledger import Ledger
from decrescendo.base.rng.secure import Secure
from decrescendo.errors import FileRefused, InvalidType, InvalidValue, PlanViolation
from decrescendo.federated import Clients, Outcome, Placement, Server, simulate
from decrescendo.federated import journal as journal_module
from decrescendo.federated import server as server_module
from decrescendo.federated.journal import Journal
from decrescendo.optim import AdamBC
from decrescendo.training.checkpoint import checkpoints as checkpoints_module
from decrescendo.training.checkpoint.checkpoints import read_state
from decrescendo.training.progress import Progress

from .conftest import adam, loss, make_model, make_plan, momentum, records, sgd
from .test_server import flat, honest

# Small cohorts: the tests below kill a run before each of its calls.
PLAN = partial(make_plan, cohort=3)
Build = Callable[[nn.Module], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kills here drop what is in memory; the machine does not lose its power."""
    monkeypatch.setattr(journal_module.os, "fsync", lambda handle: None)


HOLD = """
import sys
from decrescendo.federated.journal import Journal
journal = Journal(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


class Killed(Exception):
    """Stands for SIGKILL: everything in memory is dropped."""


alive: list[Server] = []


def start(folder: Path, placement: Placement, build: Build = sgd) -> Server:
    """What a server program does when it is started, the first time or again; the one before is dead by then."""
    while alive:
        alive.pop().stop()  # what the end of its process does: it lets go of the journal, and writes nothing
    model = make_model()
    server = Server(model, PLAN(), build(model), seed=3, placement=placement, journal=folder)
    alive.append(server)
    return server


def run(
    folder: Path, placement: Placement, kill_at: int | None, build: Build = sgd
) -> tuple[Outcome, list[int]]:
    """A whole run; the server is dropped before its ``kill_at``-th call, and started again.

    Returns:
        the outcome, and the rounds whose weights somebody has seen.
    """
    server, calls, seen = start(folder, placement, build), 0, list[int]()

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            raise Killed

    while True:
        try:
            called()
            if server.done:
                return server.finish(), seen
            opened = server.open()
            for client in opened.cohort:
                called()
                server.receive(honest(server, opened, client))
            called()
            server.close()
            called()
            seen.append(opened.round.number)
        except Killed:
            server = start(folder, placement, build)


@pytest.mark.slow
@pytest.mark.parametrize("build", some([sgd, momentum, adam, lambda m: AdamBC(m.parameters(), lr=0.05)], 1))
def test_a_trusted_server_killed_anywhere_ends_with_the_same_weights(build: Build, tmp_path: Path) -> None:
    undisturbed, _ = run(tmp_path / "whole", Placement.CENTRAL, None, build)
    calls = 3 * 3 + sum(report.cohort for report in undisturbed.reports)
    for kill_at in range(1, calls + 2):
        outcome, seen = run(tmp_path / f"{kill_at}", Placement.CENTRAL, kill_at, build)
        assert outcome.ledger == PLAN().ledger
        assert torch.equal(flat(dict(outcome.weights)), flat(dict(undisturbed.weights)))
        assert len(seen) == len(set(seen)) >= 2


@pytest.mark.parametrize("placement", some([Placement.DISTRIBUTED, Placement.LOCAL], 1))
def test_a_round_whose_replies_may_have_been_seen_is_spent(placement: Placement, tmp_path: Path) -> None:
    """It is lost: the ledger has it, the weights do not, and no client is asked for it again."""
    whole, _ = run(tmp_path / "whole", placement, None)
    calls = 3 * 3 + sum(report.cohort for report in whole.reports)
    lost = 0
    for kill_at in range(1, calls + 2):
        outcome, seen = run(tmp_path / f"{kill_at}", placement, kill_at)
        assert outcome.ledger == whole.ledger
        assert outcome.steps == 3
        assert seen == sorted(set(seen))
        lost += len(seen) < 3
        if placement is Placement.DISTRIBUTED:
            assert outcome.against_server is not None
            assert whole.against_server is not None
            assert outcome.against_server.epsilon >= whole.against_server.epsilon
    assert lost > 3


def killed_when_named(folder: Path) -> Callable[[Path], None]:
    def sync(path: Path) -> None:
        if path == folder:
            raise Killed

    return sync


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("moment", ["before", "written", "renamed", "after"])
def test_killed_while_the_journal_is_written(
    placement: Placement, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two changes on the disk: old state or new state, and the new one has the release."""
    server = start(tmp_path, placement)
    for number in (1, 2):
        opened = server.open()
        for client in opened.cohort:
            server.receive(honest(server, opened, client))
        if number == 2:
            break
        server.close()
    before = server.spent
    write = Journal.write

    def killed_write(self: Journal, state: Mapping[str, Any]) -> None:
        if moment == "before":
            raise Killed
        write(self, state)
        raise Killed

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "written":  # whole, and still under another name
            patch.setattr(Path, "rename", killed)
            patch.setattr(checkpoints_module.shutil, "rmtree", lambda *_, **__: None)
        elif moment == "renamed":  # beside the state before it
            patch.setattr(checkpoints_module, "sync_folder", killed_when_named(tmp_path))
        else:
            patch.setattr(Journal, "write", killed_write)
        old = flat(server.weights())
        with pytest.raises(Killed):
            server.close()
        assert torch.equal(flat(server.weights()), old), (
            "the weights moved before the journal had the release"
        )
    again = start(tmp_path, placement)
    new = moment in ("renamed", "after")
    assert again.spent == (2 if placement.shows_replies or new else 1)
    assert again.spent >= before
    assert torch.equal(flat(again.weights()), old) != new


def test_the_release_is_recorded_before_the_optimiser_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(tmp_path, Placement.CENTRAL)

    def broken(*arguments: object) -> None:
        assert server.spent == 1
        (folder,) = tmp_path.glob("step-*")
        assert read_state(folder).state["spent"] == 1
        raise Killed

    server.open()
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "apply", broken)
        with pytest.raises(Killed):
            server.close()
    assert server.ledger == PLAN().ledger.first(1)
    whole = start(tmp_path / "other", Placement.CENTRAL)
    whole.open()
    whole.close()
    # The noisy mean was written with the ledger, so the step is made up for.
    assert torch.equal(flat(start(tmp_path, Placement.CENTRAL).weights()), flat(whole.weights()))


def test_the_first_round_too_is_done_again_with_its_cohort(tmp_path: Path) -> None:
    """Keys that nobody chose are on the disk before they are used."""
    cohorts: list[tuple[int, ...]] = []
    for _ in range(2):
        model = make_model()
        server = Server(
            model,
            make_plan(),
            sgd(model),
            seed=Secure(),
            placement=Placement.CENTRAL,
            journal=tmp_path / "run",
        )
        cohorts.append(server.open().cohort)
        server.stop()
    assert cohorts[0] == cohorts[1]  # two draws would be alike once in millions


def test_an_aborted_round_counts_and_moves_nothing(tmp_path: Path) -> None:
    for placement in Placement:
        server = start(tmp_path / placement.value, placement)
        before = flat(server.weights())
        server.open()
        server.abort()
        rate = 1.0 if placement is Placement.LOCAL else PLAN().sampling.sample_rate
        again = start(tmp_path / placement.value, placement)
        for known in (server, again):
            assert known.ledger == Ledger.of([2.0], rate)
            assert torch.equal(flat(known.weights()), before)
        assert again.open().round.number == 2


def test_a_journal_of_another_run_or_damaged_is_refused(tmp_path: Path) -> None:
    server = start(tmp_path, Placement.CENTRAL)
    server.open()
    server.close()
    server.stop()
    model = make_model()
    with pytest.raises(FileRefused, match="of this run"):
        Server(
            model, make_plan([3.0], [1.0]), sgd(model), seed=3, placement=Placement.CENTRAL, journal=tmp_path
        )
    with pytest.raises(FileRefused, match="of this run"):
        start(tmp_path, Placement.DISTRIBUTED)
    with pytest.raises(FileRefused, match="written with the optimiser SGD"):
        start(tmp_path, Placement.CENTRAL, adam)
    (head,) = tmp_path.glob("step-*/state.json")
    text = head.read_text()
    assert '["spent", 1]' in text
    head.write_text(text.replace('["spent", 1]', '["spent", 0]'))
    with pytest.raises(FileRefused, match="checksum"):
        start(tmp_path, Placement.CENTRAL)
    head.write_text(text)
    tensors = head.with_name("tensors.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    with pytest.raises(FileRefused, match="other bytes"):
        start(tmp_path, Placement.CENTRAL)
    tensors.unlink()
    with pytest.raises(FileRefused, match="must be a readable file"):
        start(tmp_path, Placement.CENTRAL)


def test_a_journal_of_before_this_version_does_not_begin_anew(tmp_path: Path) -> None:
    """With a seed it would draw the noise of its first round again."""
    (tmp_path / "journal-private.json").write_text("{}")
    with pytest.raises(FileRefused, match="Finish the run with the version"):
        start(tmp_path, Placement.CENTRAL)


def test_a_journal_has_one_server(tmp_path: Path) -> None:
    """Two that go on from one state would release two different sums with the same noise."""
    server = start(tmp_path, Placement.CENTRAL)
    server.open()
    server.close()
    model = make_model()
    for _ in range(2):  # being refused does not let go of anything
        with pytest.raises(InvalidValue, match="held by another"):
            Server(model, PLAN(), sgd(model), seed=3, placement=Placement.CENTRAL, journal=tmp_path)
    again = start(tmp_path, Placement.CENTRAL)
    assert again.spent == 1
    server.open()
    with pytest.raises(PlanViolation, match="let go"):
        server.close()
    assert torch.equal(flat(server.weights()), flat(again.weights()))
    again.open()
    again.close()


def test_a_killed_process_lets_go_of_its_journal(tmp_path: Path) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert held.stdout is not None
    assert held.stdout.readline() == b"held\n"
    with pytest.raises(InvalidValue, match="held by another"):
        Journal(tmp_path)
    held.kill()
    held.communicate()
    Journal(tmp_path).close()


def test_a_simulation_that_fails_may_go_on(tmp_path: Path) -> None:
    clients = Clients.equal(records(), records=1)

    def once(callback: Callable[[Progress], bool]) -> Outcome:
        model = make_model()
        return simulate(
            model,
            loss,
            clients,
            PLAN(),
            sgd(model),
            seed=3,
            placement=Placement.CENTRAL,
            journal=tmp_path,
            callback=callback,
        )

    def failing(progress: Progress) -> bool:
        raise Killed

    with pytest.raises(Killed) as kept:  # a notebook keeps the last error, and so everything in its frames
        once(failing)
    assert once(lambda progress: False).ledger == PLAN().ledger
    assert kept.type is Killed


def test_the_journal_is_private_and_small(tmp_path: Path) -> None:
    server = start(tmp_path, Placement.CENTRAL)
    for _ in range(3):
        server.open()
        server.close()
    files = sorted(tmp_path.rglob("*"))
    assert sorted(file.suffix for file in files) == ["", ".json", ".lock", ".safetensors"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    with pytest.raises(PlanViolation):
        start(tmp_path, Placement.CENTRAL).open()


def test_an_optimiser_that_cannot_step_is_found_out_before_a_round_is_spent(tmp_path: Path) -> None:
    with pytest.raises(InvalidType, match="LBFGS"):
        start(tmp_path / "run", Placement.CENTRAL, lambda model: torch.optim.LBFGS(model.parameters()))
    assert not (tmp_path / "run").exists()


def test_an_optimiser_that_cannot_be_written_is_found_out_at_the_start(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["colour"] = object()
    with pytest.raises(InvalidType, match="state must be made of"):
        Server(model, PLAN(), optimizer, seed=3, placement=Placement.CENTRAL, journal=tmp_path)
