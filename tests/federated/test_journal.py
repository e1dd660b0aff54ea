"""Killed between any two calls and started again: the run goes on, and the ledger misses nothing that was seen."""

import shutil
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

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.base.rng.secure import Secure
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidType, InvalidValue, PlanViolation
from decrescendo.federated import Clients, Outcome, Placement, Server, simulate
from decrescendo.federated import journal as journal_module
from decrescendo.federated import rounds as rounds_module
from decrescendo.federated.journal import Journal
from decrescendo.optim import AdamBC
from decrescendo.training.loop.progress import Progress
from decrescendo.training.persistence.checkpoint import checkpoints as checkpoints_module
from decrescendo.training.persistence.checkpoint.checkpoints import read_state
from decrescendo.training.store import Account, Store

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


def run(folder: Path, placement: Placement, kill_at: int | None, build: Build = sgd) -> tuple[Outcome, list[int]]:
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


@pytest.mark.parametrize("placement", some(list(Placement), 1))
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
        assert torch.equal(flat(server.weights()), old), "the weights moved before the journal had the release"
    again = start(tmp_path, placement)
    new = moment in ("renamed", "after")
    assert again.spent == (2 if placement.shows_replies or new else 1)
    assert again.spent >= before
    assert torch.equal(flat(again.weights()), old) != new


def test_the_release_is_recorded_before_the_optimiser_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(tmp_path, Placement.CENTRAL)

    def broken(*arguments: object) -> None:
        assert server.spent == 1
        (folder,) = tmp_path.glob("step-*")
        assert read_state(folder).state["spent"] == 1
        raise Killed

    server.open()
    with monkeypatch.context() as patch:
        patch.setattr(rounds_module, "apply", broken)
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
        Server(model, make_plan([3.0], [1.0]), sgd(model), seed=3, placement=Placement.CENTRAL, journal=tmp_path)
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


def test_a_journal_without_the_state_that_it_had_is_refused(tmp_path: Path) -> None:
    """A server that began anew would state 0 for what was spent, and draw the same noise again from its seed."""
    server = start(tmp_path, Placement.CENTRAL)
    server.open()
    server.close()
    server.stop()
    (state,) = tmp_path.glob("step-*")
    elsewhere = tmp_path.parent / "kept"
    state.rename(elsewhere)
    for _ in range(2):  # being refused lets go of the folder
        with pytest.raises(FileRefused, match="whose state was removed"):
            start(tmp_path, Placement.CENTRAL)
    elsewhere.rename(state)
    assert start(tmp_path, Placement.CENTRAL).spent == 1


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
    with pytest.raises(PlanViolation, match="let go"):
        server.open()
    assert torch.equal(flat(server.weights()), flat(again.weights()))
    again.open()
    again.close()


@pytest.mark.slow
def test_a_killed_process_lets_go_of_its_journal(tmp_path: Path) -> None:
    held = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
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
    outcome = once(lambda progress: False)
    assert outcome.ledger == PLAN().ledger
    assert outcome.resumed == (1,)
    with pytest.warns(UserWarning, match="finished|left|taken"):
        assert once(lambda progress: False).resumed == (1,)  # nothing was left to go on with
    assert "Resumed after step: 1." in outcome.to_run().statement().to_markdown()
    assert kept.type is Killed


def test_the_journal_is_private_and_small(tmp_path: Path) -> None:
    server = start(tmp_path, Placement.CENTRAL)
    for _ in range(3):
        server.open()
        server.close()
    files = sorted(tmp_path.rglob("*"))
    assert sorted(file.suffix for file in files) == ["", ".begun", ".json", ".lock", ".safetensors"]
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


class TestInALedger:
    """The ledger of the clients' data, which the command line makes with ``--unit client``."""

    def store(self, folder: Path, budget: Budget | None = None) -> Store:
        given = PLAN().budget
        budget = budget or Budget(1.5 * given.epsilon, 2 * given.delta, Unit.CLIENT)
        return Store.create(folder / "ledger.db", budget, dataset="phones", rows=40)

    def served(
        self, store: Store | None, placement: Placement = Placement.CENTRAL, cohort: int = 3, **more: Any
    ) -> Server:
        model = make_model()
        return Server(
            model,
            make_plan(cohort=cohort),
            sgd(model),
            placement=placement,
            store=store,
            **{"seed": Secure(), **more},
        )

    def rounds(self, server: Server, most: int = 9) -> None:
        while not server.done and most:
            opened, most = server.open(), most - 1
            for client in opened.cohort:
                server.receive(honest(server, opened, client))
            server.close()

    @pytest.mark.parametrize("placement", [Placement.CENTRAL, Placement.DISTRIBUTED])
    def test_a_run_is_reserved_and_each_round_written_down(self, placement: Placement, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        server = self.served(store, placement, name="first")
        assert "reserved (0," not in store.describe()
        self.rounds(server)
        (entry,) = store.entries()
        assert (entry.released, entry.state, entry.label) == (PLAN().ledger, "finished", "first")
        outcome = server.finish()
        assert outcome.account == f"phones, run {entry.id}"
        provenance = outcome.to_run().provenance
        assert provenance is not None
        assert (provenance.account, provenance.random) == (outcome.account, "secure")
        with pytest.raises(ImpossibleBudget, match="all runs together must stay within"):
            self.served(store, placement)

    def test_an_aborted_round_is_written_down(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        server = self.served(store)
        server.open()
        assert store.entries()[0].released.steps == 0
        server.abort()
        assert store.entries()[0].released.steps == 1

    def test_a_round_is_in_the_ledger_before_the_weights_move(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A ledger that cannot be written ends the round before anything of it can be seen."""
        store = self.store(tmp_path)
        server = self.served(store)
        before = flat(server.weights())
        server.open()

        def full(*given: object) -> bool:
            raise FileRefused("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(Account, "record", full)
            with pytest.raises(FileRefused, match="disk is full"):
                server.close()
        assert torch.equal(flat(server.weights()), before)
        with pytest.raises(PlanViolation, match="start it again from its journal"):
            server.open()

    @pytest.mark.parametrize("placement", [Placement.CENTRAL, Placement.DISTRIBUTED])
    def test_killed_between_journal_and_ledger_it_is_counted_once(
        self, placement: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, real = self.store(tmp_path, Budget(1e3, 0.1, Unit.CLIENT)), Account.record
        calls, moment = 0, 0

        def record(self: Account, *given: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == moment:
                raise Killed  # the journal has the round, the ledger has not
            new = real(self, *given)
            if calls == -moment:
                raise Killed  # both have it, and the weights have not moved
            return new

        monkeypatch.setattr(Account, "record", record)
        for place, at in enumerate((1, 2, 3, -1, -2, -3)):
            calls, moment, folder = 0, at, tmp_path / f"run {place}"
            server = self.served(store, placement, journal=folder)
            with pytest.raises(Killed):
                self.rounds(server)
            server.stop()
            assert len(store.entries()) == place + 1
            again = self.served(store, placement, journal=folder)
            self.rounds(again)
            entry = store.entries()[-1]
            assert len(store.entries()) == place + 1
            assert (entry.released, entry.state) == (PLAN().ledger, "finished")
            assert again.ledger == PLAN().ledger
            assert again.finish().account == f"phones, run {entry.id}"
            again.stop()

    def test_killed_before_it_is_reserved_it_is_reserved_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = self.store(tmp_path)

        def killed(*given: object, **named: object) -> Account:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Store, "start", killed)
            with pytest.raises(Killed):
                self.served(store, journal=tmp_path / "run")
        assert store.entries() == []
        for _ in range(2):
            self.served(store, journal=tmp_path / "run").stop()
            assert len(store.entries()) == 1

    def test_another_ledger_than_before_is_refused(self, tmp_path: Path) -> None:
        """None, one where there was none, an older copy put back, and a journal that is behind its ledger."""
        store, folder = self.store(tmp_path), tmp_path / "run"
        copied = tmp_path / "older.db"
        shutil.copy(tmp_path / "ledger.db", copied)
        server = self.served(store, journal=folder)
        self.rounds(server, most=1)
        shutil.copytree(folder, tmp_path / "behind")
        self.rounds(server, most=1)
        server.stop()
        with pytest.raises(PlanViolation, match="got none"):
            self.served(None, journal=folder)
        older = Store(copied)
        with pytest.raises(PlanViolation, match="must tell of the same rounds, got 0 and 2"):
            self.served(older, journal=folder)
        with pytest.raises(PlanViolation, match="must tell of the same rounds, got 2 and 1"):
            self.served(store, journal=tmp_path / "behind")
        self.served(None, journal=tmp_path / "bare").stop()
        server = self.served(None, journal=tmp_path / "bare")
        self.rounds(server, most=1)
        server.stop()
        with pytest.raises(PlanViolation, match="got one"):
            self.served(store, journal=tmp_path / "bare")
        self.served(store, journal=folder).stop()  # and each refusal let go of the journal

    @pytest.mark.parametrize("placement", [Placement.CENTRAL, Placement.DISTRIBUTED])
    def test_servers_on_copies_of_one_journal_do_not_both_go_on(self, placement: Placement, tmp_path: Path) -> None:
        """Both were open before either moved; the second released another sum under the first one's noise. (Of 40
        clients 30 are expected: a round of none, which is no other sum, comes once in 10^24 runs.)"""
        given = make_plan(cohort=30).budget
        store = self.store(tmp_path, Budget(2 * given.epsilon, 3 * given.delta, Unit.CLIENT))
        self.served(store, placement, 30, journal=tmp_path / "one").stop()
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        first, second = (self.served(store, placement, 30, journal=tmp_path / name) for name in ("one", "two"))
        self.rounds(first, most=1)
        before = flat(second.weights())
        with pytest.raises(PlanViolation, match=r"must have its first result|must be opened once"):
            self.released_nothing(second)
        second.stop()
        assert torch.equal(flat(second.weights()), before)
        if placement is Placement.CENTRAL:
            with pytest.raises(PlanViolation, match="must have its first result"):
                self.served(store, placement, 30, journal=tmp_path / "two")

    def released_nothing(self, server: Server) -> None:
        server.open()
        server.close()

    def test_what_a_ledger_cannot_add_up_is_refused(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        with pytest.raises(InvalidValue, match="seed must be Secure"):
            self.served(store, seed=3)
        with pytest.raises(InvalidValue, match="placement local"):
            self.served(store, Placement.LOCAL)
        examples = Store.create(tmp_path / "other.db", Budget(9.0, 1e-3), dataset="rows", rows=40)
        with pytest.raises(InvalidValue, match="must protect the store's unit"):
            self.served(examples)
        assert store.entries() == examples.entries() == []

    def test_a_simulation_is_counted_too(self, tmp_path: Path) -> None:
        store, model = self.store(tmp_path), make_model()
        clients = Clients.equal(records(), records=1)
        outcome = simulate(
            model, loss, clients, PLAN(), sgd(model), seed=Secure(), placement=Placement.CENTRAL, store=store
        )
        assert store.entries()[0].released == outcome.ledger == PLAN().ledger
        assert outcome.account.startswith("phones, run ")


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("attendance", [], "the attendance of 3 rounds, got 0"),
        ("attendance", [(3, 4)] * 3, "0 <= replies <= members, got 4 of 3"),
        ("attendance", [(3, -1)] * 3, "0 <= replies <= members"),
        ("assumptions", "ab", "a str where a list must be"),
        ("assumptions", [3], "an assumption must be a str, got int"),
        ("resumed", None, "the journal must fit"),
        ("resumed", ["a"], "resumed must be a whole number"),
        ("resumed", [-1], "resumed must be"),
        ("spent", "three", "spent must be a whole number"),
    ],
)
def test_a_journal_that_tells_less_than_was_seen_is_refused(
    tmp_path: Path, entry: str, value: object, words: str
) -> None:
    """With no attendance the server was said to have learned nothing: epsilon 0."""
    run(tmp_path / "run", Placement.DISTRIBUTED, None)
    while alive:
        alive.pop().stop()
    journal = Journal(tmp_path / "run")
    journal.write({**(journal.read() or {}), entry: value})
    journal.close()
    with pytest.raises(FileRefused, match=words):
        start(tmp_path / "run", Placement.DISTRIBUTED)
