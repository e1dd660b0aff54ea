"""A server whose replies and deadlines come on several threads, from shared memory, to a folder that two have."""

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
from decrescendo.federated.journal import LOCK
from decrescendo.federated.summing import ExactSum
from decrescendo.training.store import Store

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
        server._noise = SecureStream.fresh()  # what is looked at is the sum
        answers = at_once(*[lambda: server.receive(reply).verdict] * 8)  # noqa: B023 (called before the next)
        assert answers.count(Verdict.ACCEPTED) + answers.count(Verdict.RECLIPPED) == 1
        assert answers.count(Verdict.REPEATED) == 7
        assert server._total is not None
        assert float(server._total.value()["weight"].norm()) <= opened.round.clip_norm


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
    norm = "decrescendo.federated.server.norm_of"

    def measured(tensors: dict[str, torch.Tensor]) -> float:
        found = float(torch.cat([value.flatten() for value in tensors.values()]).double().norm())
        sent.fill_(1e3)
        return found

    monkeypatch.setattr(norm, measured)
    reply = Reply(opened.cohort[0], opened.round.number, opened.round.run, {"weight": sent})
    assert server.receive(reply).verdict is Verdict.ACCEPTED
    assert server._total is not None
    assert not server._total.value()["weight"].any()


def test_a_sum_is_copied_before_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    model, server = serving()
    opened = server.open()
    sent = torch.zeros(1, SIZE)
    check = Server._check_sum

    def checked(self: Server, *args: object) -> None:
        check(self, *args)  # type: ignore[arg-type]
        sent.fill_(1e6)

    monkeypatch.setattr(Server, "_check_sum", checked)
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
    store = Store.create(
        tmp_path / "ledger.db", Budget(10.0, 1e-3, Unit.CLIENT), dataset="clients", rows=CLIENTS
    )
    _, server = serving(seed=Secure(), store=store)
    server.open()
    (refused,) = at_once(server.close)
    assert isinstance(refused, InvalidValue)
    assert server.spent == 0
    server.close()
    assert store.entries()[0].released.steps == server.spent == 1
