"""A server whose replies and deadlines come on several threads or from shared memory, whose calls break off, and whose
folder two servers have."""

import copy
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import nn

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.base.rng import Secure, SecureStream
from decrescendo.clipping import Diagnostics
from decrescendo.errors import DecrescendoError, InvalidValue, PlanViolation
from decrescendo.federated import Placement, Reply, RoundReport, Server, Verdict, prepare
from decrescendo.federated.contents import Contents
from decrescendo.federated.journal import LOCK
from decrescendo.federated.replies import Replies
from decrescendo.federated.rounds import OWN_NOISE
from decrescendo.federated.summing import ExactSum
from decrescendo.training.store import Account, Store

from .conftest import CLIENTS, make_plan, sgd

SIZE, EVERYBODY = 20_000, 0.999 * CLIENTS


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def serving(
    placement: Placement = Placement.CENTRAL, seed: int | Secure = 3, **other: object
) -> tuple[nn.Module, Server]:
    torch.manual_seed(0)
    model = nn.Linear(SIZE, 1, bias=False)
    nn.init.zeros_(model.weight)
    plan = make_plan(cohort=EVERYBODY)
    return model, Server(model, plan, sgd(model, 1.0), seed=seed, placement=placement, **other)  # type: ignore[arg-type]


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What calls return or raise, each in a thread of its own."""
    start, found = threading.Barrier(len(calls)), list[object]()

    def call(one: Callable[[], object]) -> None:
        start.wait()
        try:
            found.append(one())
        except DecrescendoError as error:
            found.append(error)

    threads = [threading.Thread(target=call, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_round_is_closed_once() -> None:
    """Two threads released each sum twice with noise of its own: (2, 1e-5) stated, 4.98 true."""
    _, server = serving()
    while not server.done:
        server.open()
        before = server.spent
        ended = at_once(*[server.close] * 4)
        assert server.spent == before + 1
        assert sorted(type(end).__name__ for end in ended) == [*["PlanViolation"] * 3, "RoundReport"]


def test_a_client_is_added_once() -> None:
    """Eight answers of one client at a time were all added: 8 C_t."""
    for _ in range(9):
        _, server = serving()
        opened = server.open()
        update = {"weight": torch.full((1, SIZE), opened.round.clip_norm / SIZE**0.5)}
        reply = Reply(opened.cohort[0], opened.round.number, opened.round.run, update)
        server._rounds.streams.noise = SecureStream.fresh()  # what is looked at is the sum
        answers = at_once(*[lambda: server.receive(reply).verdict] * 8)  # noqa: B023 (called before the next)
        assert answers.count(Verdict.ACCEPTED) + answers.count(Verdict.RECLIPPED) == 1
        assert answers.count(Verdict.REPEATED) == 7
        assert server._rounds.replies.total is not None
        assert float(server._rounds.replies.total.value()["weight"].norm()) <= opened.round.clip_norm


def test_a_deadline_waits_for_the_reply_that_is_being_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` took the noise of a reply for present that was not in the sum yet: 0.83 of what was planned."""
    _, server = serving(Placement.DISTRIBUTED)
    opened = server.open()
    asked = opened.round
    update = prepare({"weight": torch.zeros(1, SIZE)}, asked, SecureStream.fresh())
    adding, closed, order = threading.Event(), threading.Event(), list[str]()
    add = ExactSum.add

    def slow(self: ExactSum, *args: object) -> None:
        adding.set()
        closed.wait(0.5)
        add(self, *args)  # type: ignore[arg-type]
        order.append("added")

    def close() -> None:
        adding.wait()
        server.close()
        order.append("closed")
        closed.set()

    monkeypatch.setattr(ExactSum, "add", slow)
    at_once(lambda: server.receive(Reply(opened.cohort[0], asked.number, asked.run, update)), close)
    assert order == ["added", "closed"]


def test_a_reply_is_copied_before_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client wrote to shared memory between the look at its norm and the sum: 1,000 where C_t was 1."""
    _, server = serving()
    opened = server.open()
    sent = torch.zeros(1, SIZE)
    norm = "decrescendo.federated.replies.norm_of"

    def measured(tensors: dict[str, torch.Tensor]) -> float:
        found = float(torch.cat([value.flatten() for value in tensors.values()]).double().norm())
        sent.fill_(1e3)
        return found

    monkeypatch.setattr(norm, measured)
    reply = Reply(opened.cohort[0], opened.round.number, opened.round.run, {"weight": sent})
    assert server.receive(reply).verdict is Verdict.ACCEPTED
    assert server._rounds.replies.total is not None
    assert not server._rounds.replies.total.value()["weight"].any()


def test_a_sum_is_copied_before_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    model, server = serving()
    opened = server.open()
    sent = torch.zeros(1, SIZE)
    check = Replies.check_sum

    def checked(self: Replies, *args: object) -> None:
        check(self, *args)  # type: ignore[arg-type]
        sent.fill_(1e6)

    monkeypatch.setattr(Replies, "check_sum", checked)
    seen = Diagnostics(examples=1, nonfinite=0, clipped=0, loss_sum=0.0)
    report = server.release({"weight": sent}, len(opened.cohort), seen)
    assert isinstance(report, RoundReport)
    assert float(model.weight.detach().abs().max()) < 10


def test_a_folder_whose_lock_was_removed_has_one_server(tmp_path: Path) -> None:
    """Two servers released two sums with one noise: their difference was a client's part, without any."""
    _, first = serving(journal=tmp_path / "run")
    first.open()
    (tmp_path / "run" / LOCK).unlink()
    _, second = serving(journal=tmp_path / "run")
    second.open()
    second.close()
    with pytest.raises(PlanViolation, match="one server"):
        first.close()
    second.open()
    second.close()
    second.stop()
    _, third = serving(journal=tmp_path / "run")
    assert third.spent == 2


def test_a_folder_put_back_ends_its_server(tmp_path: Path) -> None:
    """The lock is the same file, the state is not the one that this server wrote."""
    _, server = serving(journal=tmp_path / "run")
    server.open()
    (state,) = (tmp_path / "run").glob("*-00*")
    shutil.copytree(state, tmp_path / "copy")
    server.close()
    (newest,) = (tmp_path / "run").glob("*-00*")
    shutil.rmtree(newest)
    shutil.move(tmp_path / "copy", state)
    with pytest.raises(PlanViolation, match="one server"):
        server.open(), server.close()


@pytest.mark.parametrize("seed", [3, Secure()], ids=["seed", "secure"])
def test_a_forked_server_releases_nothing(seed: int | Secure) -> None:
    """A web server that forks after it made its server: parent and child had one noise."""
    _, server = serving(seed=seed)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            server.open()
            os.write(write, b"opened")
        except PlanViolation as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "in the process that began it" in os.read(read, 999).decode()
    server.open()
    server.close()
    assert server.spent == 1


def test_another_thread_than_the_stores_releases_nothing(tmp_path: Path) -> None:
    """It is found out before a round is closed, and not in its midst."""
    store = Store.create(tmp_path / "ledger.db", Budget(10.0, 1e-3, Unit.CLIENT), dataset="clients", rows=CLIENTS)
    _, server = serving(seed=Secure(), store=store)
    server.open()
    (refused,) = at_once(server.close)
    assert isinstance(refused, InvalidValue)
    assert server.spent == 0
    server.close()
    assert store.entries()[0].released.steps == server.spent == 1


class TestCallsThatBreakOff:
    """By memory, Ctrl-C or a full disk: the round, or the server, ends there."""

    def one_share(self, server: Server) -> Reply:
        opened = server.open()
        asked = opened.round
        update = prepare({"weight": torch.zeros(1, SIZE)}, asked, SecureStream.fresh())
        return Reply(opened.cohort[0], asked.number, asked.run, update)

    @pytest.mark.parametrize("placement", [Placement.CENTRAL, Placement.DISTRIBUTED])
    @pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
    def test_a_reply_that_broke_off_ends_its_round(
        self, placement: Placement, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its client was taken for present, and its noise was not there: 0 where 2 were promised."""
        _, server = serving(placement)
        reply = self.one_share(server)
        add = ExactSum.add

        def broken(self: ExactSum, *args: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(ExactSum, "add", broken)
            with pytest.raises(error):
                server.receive(reply)
        assert add is ExactSum.add
        for call in (server.close, server.open, lambda: server.receive(reply)):
            with pytest.raises(PlanViolation, match="Abort the round"):
                call()
        assert not server.abort().released
        assert server.spent == 1
        server.open()
        server.close()
        assert server.ledger == server.plan.ledger.first(2)

    def test_what_cannot_be_written_down_ends_its_server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It went on, and the next round could not be written down either, nor the run be gone on with."""
        store = Store.create(tmp_path / "ledger.db", Budget(10.0, 1e-3, Unit.CLIENT), dataset="clients", rows=CLIENTS)
        given = {"seed": Secure(), "store": store, "journal": tmp_path / "run"}
        _, server = serving(**given)  # type: ignore[arg-type]
        server.open()

        def locked(*_: object) -> bool:
            raise OSError("database is locked")

        with monkeypatch.context() as patched:
            patched.setattr(Account, "record", locked)
            with pytest.raises(OSError, match="locked"):
                server.close()
        with pytest.raises(PlanViolation, match="start it again from its journal"):
            server.open()
        server.stop()
        _, again = serving(**given)  # type: ignore[arg-type]
        while not again.done:
            again.open()
            again.close()
        assert store.entries()[0].released == again.plan.ledger

    @pytest.mark.parametrize(
        "value",
        [
            torch.zeros(1, SIZE, dtype=torch.complex64),
            torch.zeros(1, SIZE, dtype=torch.bool),
            torch.zeros(1, SIZE).to_sparse(),
            torch.zeros(1, SIZE, device="meta"),
            torch.zeros(SIZE),
        ],
    )
    def test_a_sum_of_another_kind_is_refused(self, value: torch.Tensor) -> None:
        _, server = serving()
        server.open()
        seen = Diagnostics(examples=1, nonfinite=0, clipped=0, loss_sum=0.0)
        with pytest.raises(InvalidValue, match="dense real tensors"):
            server.release({"weight": value}, 1, seen)
        assert server.spent == 0

    def test_a_journal_is_held_by_its_server_on_any_thread(self, tmp_path: Path) -> None:
        """A round closed by another thread was wasted, and a folder let go there stayed held."""
        _, server = serving(journal=tmp_path / "run")
        server.open()
        (report,) = at_once(server.close)
        assert isinstance(report, RoundReport)
        assert at_once(server.stop) == [None]
        _, again = serving(journal=tmp_path / "run")
        assert again.spent == 1

    def test_the_word_of_a_placement_is_the_placement(self) -> None:
        _, server = serving("distributed")  # type: ignore[arg-type]
        assert OWN_NOISE in server.assumptions

    def test_a_reply_that_broke_off_while_it_was_read_was_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By itself, with one share of noise: epsilon 0 was stated against the server, where it was 17."""
        _, server = serving(Placement.DISTRIBUTED)
        reply = self.one_share(server)

        def broken(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Contents, "of_reply", broken)
            with pytest.raises(KeyboardInterrupt):
                server.receive(reply)
        server.close()
        assert [replies for _, replies in server._books.attendance] == [1]
        assert not server.finish().secure_sum
        server.open()
        server.close()
        assert [replies for _, replies in server._books.attendance] == [1, 0]

    def test_a_server_has_no_copies(self) -> None:
        _, server = serving()
        for copied in (copy.copy, copy.deepcopy):
            with pytest.raises(PlanViolation, match="must not be copied"):
                copied(server)
