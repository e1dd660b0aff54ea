"""A budget for many runs: what is reserved, what is refused, and what a file may be."""

import contextlib
import json
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from decrescendo.accounting import Pld
from decrescendo.accounting.budget import Budget, Unit
from decrescendo.accounting.filters import RenyiFilter
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.clipping import Batch
from decrescendo.errors import (
    DecrescendoError,
    FileRefused,
    ImpossibleBudget,
    InvalidType,
    InvalidValue,
    PlanViolation,
)
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer, fit, train
from decrescendo.training.store import Account, Store

from .conftest import ROWS, make, plan


def release(agreed: Plan, position: int) -> Release:
    return Release(agreed.sampling.sample_rate, float(agreed.noise_multiplier[position]))


def take(account: Account, steps: int) -> None:
    assert isinstance(account.agreed, Plan)
    for position in range(steps):
        account.record(position, release(account.agreed, position), bytes([position]))


def test_whole_plans_are_reserved_until_nothing_fits(path: Path) -> None:
    store = make(path)
    accounts = [store.start(plan(), label=name) for name in "abc"]
    before = path.read_bytes(), store.to_json()
    with pytest.raises(ImpossibleBudget, match=r"within \(3.5, 1e-05\), got one more of \(1, 1e-06\).*left \(0.5"):
        store.start(plan(), label="d")
    assert (path.read_bytes(), store.to_json()) == before
    store.start(plan(0.4))
    # What ended early stays reserved: when it ended may have depended on what it released.
    take(accounts[0], 2)
    accounts[0].finish()
    with pytest.raises(ImpossibleBudget):
        store.start(plan(0.4))


@cache
def spent_alone(one: Plan) -> float:
    """By the accountant, asked here: once a plan, as it takes a second."""
    return Pld().bracket(one.ledger, one.budget.delta)[1]


@settings(max_examples=2)
@given(
    asked=st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), max_size=8),
    rule=st.sampled_from(["sum", "renyi:12"]),
)
def test_what_is_granted_is_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory, asked: list[float], rule: str
) -> None:
    """Against the accountants, asked afresh for everything together."""
    store = make(tmp_path_factory.mktemp("store") / "s.db", 2.2, 4e-6, rule)
    granted: list[Plan] = []
    refused: list[Plan] = []
    for epsilon in asked:
        try:
            store.start(plan(epsilon))
            granted.append(plan(epsilon))
        except ImpossibleBudget:
            refused.append(plan(epsilon))

    def over(plans: list[Plan]) -> bool:
        if rule == "sum":
            spent = [spent_alone(p) for p in plans]
            return sum(map(Fraction, spent), Fraction(0)) > Fraction(2.2) or len(plans) * Fraction(1e-6) > Fraction(
                4e-6
            )
        joint = sum((p.ledger for p in plans), Ledger())
        guard = RenyiFilter(Budget(2.2, 4e-6), 12)
        return guard.limit < sum(
            guard.cost(Release(r.sample_rate, r.noise_multiplier)) * r.count for r in joint.distinct()
        ) * (1 - 1e-12)

    assert not over(granted)
    assert all(over([*granted, more]) for more in dict.fromkeys(refused))
    assert [entry.agreed for entry in store.entries()] == granted


def test_no_rule_grants_more_than_the_true_composition(path: Path) -> None:
    """What each rule lets through, judged together by `Pld`, is within the budget at its delta."""
    for rule, epsilon, least in (("sum", 0.25, 4), ("renyi:12", 0.5, 2), ("declared", 2.0, 6)):
        store = make(path.with_name(rule.replace(":", "") + ".db"), 2.2, 4e-6, rule)
        taken = 0
        while taken < 40:
            try:
                store.start(plan(epsilon))
            except ImpossibleBudget:
                break
            taken += 1
        assert least <= taken < 40  # nothing more fits
        joint = sum((entry.agreed.ledger for entry in store.entries() if isinstance(entry.agreed, Plan)), Ledger())
        assert Pld().bracket(joint, 4e-6)[1] <= 2.2


def test_plans_are_judged_here_whatever_they_say(path: Path) -> None:
    """A plan put together by hand with a tiny promise costs what its noise costs."""
    dear = plan(2.0)
    liar = Plan(
        Budget(0.1, 1e-6), dear.sampling, dear.schedule,
        type(dear.guarantee)(0.1, 1e-6, Unit.EXAMPLE, "nobody", "upper"),
    )  # fmt: skip
    with pytest.raises(ImpossibleBudget):
        make(path, 1.5).start(liar)


def test_declared_runs_cannot_come_after_a_release(path: Path) -> None:
    store = make(path, composition="declared")
    first = store.start(plan(0.5))
    store.start(plan(0.5))
    take(first, 1)
    with pytest.raises(ImpossibleBudget, match="declared before the first"):
        store.start(plan(0.25))


def test_adaptive_runs_take_their_whole_budget(path: Path) -> None:
    adaptive = AdaptivePlan(Budget(1.0, 1e-6), plan().sampling, "RenyiFilter(order=12)", 10, "validation decay")
    store = make(path, 1.5)
    account = store.start(adaptive)
    account.record(0, Release(0.02, 3.3), b"x")
    with pytest.raises(PlanViolation):
        account.record(10, Release(0.02, 3.3), b"x")
    with pytest.raises(ImpossibleBudget):
        store.start(adaptive)
    for rule in ("renyi:12", "declared"):
        with pytest.raises(InvalidValue, match="decided during the run"):
            make(path.with_name(rule[:5]), composition=rule).start(adaptive)


@pytest.mark.parametrize("opened", ["once", "anew before each release"])
def test_an_adaptive_run_records_what_its_filter_grants_and_nothing_else(path: Path, opened: str) -> None:
    """The filter was never asked: one release too loud, or of another rate, and nobody could read the store again."""
    adaptive = AdaptivePlan(Budget(1.0, 1e-6), plan().sampling, "RenyiFilter(order=12)", 200, "by hand")
    store, guard = make(path), RenyiFilter(adaptive.budget, 12)
    account = store.start(adaptive)
    position = 0
    for noise in [3.3, 0.2, 2.0, 1e-9, 3.3, 0.0, *[1.2] * 30]:
        step = Release(adaptive.sampling.sample_rate, noise)
        if opened != "once":
            account = store.account(account.id)
        with pytest.raises(PlanViolation, match="reserved for it"):
            account.record(position, Release(0.5, 3.3), b"x")
        if guard.request(step):
            assert account.record(position, step, b"x")
            assert not account.record(position, step, b"x")
            position += 1
        else:
            with pytest.raises(PlanViolation, match="what its filter grants"):
                account.record(position, step, b"x")
        if noise == 1.1 and not guard.request(Release(0.02, 30.0)):
            break
    assert 3 < position < 33  # all kinds of noise were asked for, and the budget came to its end
    entry = Store(path).entries()[0]
    assert entry.released.steps == position
    assert adaptive.replay(entry.released) is not None


def test_releases_are_those_of_the_plan_in_order_and_once(path: Path) -> None:
    store = make(path)
    account = store.start(plan())
    take(account, 2)
    assert account.entry().released == plan().ledger.first(2)
    # The same step again, with the same result: a crash came between, and it counts once.
    assert account.record(1, release(plan(), 1), bytes([1])) is False
    assert account.entry().released == plan().ledger.first(2)
    for position, what, digest, words in (
        (1, release(plan(), 1), b"other", "first result"),
        (3, release(plan(), 3), b"", "in order"),
        (2, Release(0.02, 0.5), b"", "reserved for it"),
        (4, release(plan(), 3), b"", "reserved for it"),
    ):
        with pytest.raises(PlanViolation, match=words):
            account.record(position, what, digest)
    assert account.entry().released == plan().ledger.first(2)
    account.finish()
    with pytest.raises(PlanViolation, match="finished"):
        account.record(2, release(plan(), 2), b"")


def test_everything_is_there_when_opened_again(path: Path) -> None:
    store = make(path)
    account = store.start(plan(), label="first try")
    take(account, 3)
    store.close()
    again = Store(path)
    (entry,) = again.entries()
    assert (entry.id, entry.label, entry.state) == (account.id, "first try", "open")
    assert entry.agreed == plan()
    assert entry.released == plan().ledger.first(3)
    assert again.account(account.id).record(3, release(plan(), 3), b"")
    exported = json.loads(again.to_json())
    assert exported["runs"][0]["released"]["noise_multiplier"] == plan().noise_multiplier.tolist()
    assert "left (2.5" in exported["summary"]


def test_a_release_is_in_the_file_when_record_returns(path: Path) -> None:
    """A copy of it, as after a crash of this process, has it; and the disk was waited for."""
    store = make(path)
    account = store.start(plan())
    take(account, 1)
    assert store._connection.execute("PRAGMA synchronous").fetchone()[0] == 3
    assert os.listdir(path.parent) == [path.name]
    shutil.copy(path, path.with_name("copy.db"))
    assert Store(path.with_name("copy.db")).entries()[0].released == plan().ledger.first(1)


def _start(path: Path) -> bool:
    store = Store(path)
    try:
        store.start(plan(0.25))
    except ImpossibleBudget:
        return False
    finally:
        store.close()
    return True


@pytest.mark.slow
def test_runs_at_the_same_time_never_overspend(path: Path) -> None:
    """Two hundred that want a quarter each of a budget of two and a bit, over several connections at once."""
    make(path, 2.1, 1e-3).close()
    plan(0.25)
    with ThreadPoolExecutor(16) as pool:
        granted = sum(pool.map(lambda _: _start(path), range(200)))
    assert granted == 8
    assert len(Store(path).entries()) == 8


@pytest.mark.parametrize("wrong", ["rows", "unit"])
def test_runs_on_something_else_are_refused(path: Path, wrong: str) -> None:
    if wrong == "rows":
        store = Store.create(path, Budget(3.0, 1e-5), dataset="others", rows=ROWS + 1)
    else:
        store = Store.create(path, Budget(3.0, 1e-5, Unit.CLIENT), dataset="clients", rows=ROWS)
    with pytest.raises(InvalidValue, match="store's"):
        store.start(plan())
    assert store.entries() == []


def test_a_store_is_made_once(path: Path) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(InvalidValue, match="exists"):
        make(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["ledger.db"]
    for rule in ("", "max", "renyi", "renyi:x", "renyi:1"):
        with pytest.raises(DecrescendoError):
            make(path.with_name("other.db"), composition=rule)
        assert not path.with_name("other.db").exists()


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"SQLite format 3\0" + bytes(200), json.dumps({"format": "x"}).encode()]
)
def test_foreign_files_are_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FileRefused):
        Store(path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["ledger.db"]


def test_somebody_elses_database_is_refused_untouched(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE runs (number)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FileRefused, match="another kind"):
        Store(path)
    assert path.read_bytes() == before


@given(data=st.data())
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes changed, or an end cut off: a clear error, or the same content."""
    path = tmp_path_factory.mktemp("damage") / "s.db"
    store = make(path)
    take(store.start(plan()), 3)
    whole = store.to_json()
    store.close()
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(content) - 1))
        for offset in range(data.draw(st.integers(1, 64))):
            if at + offset < len(content):
                content[at + offset] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with contextlib.suppress(FileRefused):
        assert json.loads(Store(path).to_json())["runs"][0]["agreed"] == json.loads(whole)["runs"][0]["agreed"]


@pytest.mark.parametrize("version", [0, 99])
def test_a_store_of_another_version_is_left_alone(path: Path, version: int) -> None:
    make(path).close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FileRefused, match=f"of version 1, got {version}"):
        Store(path)
    assert path.read_bytes() == before


def test_a_forked_process_opens_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidValue, match="forked"):
        store.entries()


def test_a_store_that_cannot_be_written_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(path)
    account = store.start(plan())
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(FileRefused, match="Nothing was released"):
        account.record(0, release(plan(), 0), b"")
    with pytest.raises(InvalidValue, match="can be written"):
        make(path.parent / "missing" / "s.db")


class TestOneFile:
    """What lay in a log beside the file was lost with it, and each name of a file had a log of its own."""

    def test_a_second_name_is_refused_and_a_copy_is_not(self, path: Path) -> None:
        make(path).close()
        second = path.with_name("second.db")
        os.link(path, second)
        for name in (path, second):
            with pytest.raises(FileRefused, match="no other name"):
                Store(name)
        second.unlink()
        shutil.copy(path, second)
        assert Store(path).budget == Store(second).budget

    def test_a_symbolic_link_is_the_file_itself(self, path: Path) -> None:
        store = make(path)
        link = path.with_name("link.db")
        link.symlink_to(path)
        take(Store(link).start(plan()), 1)
        assert store.entries()[0].released.steps == 1

    def test_what_lies_beside_it_holds_nothing(self, path: Path) -> None:
        """Between two releases, whatever is removed: also under other runs that have the file open."""
        store, other = make(path), Store(path)
        account = store.start(plan(), label="a")
        take(account, 2)
        for file in path.parent.iterdir():
            if file != path:
                file.unlink()
        assert other.entries()[0].released.steps == 2
        other.start(plan(), label="b")
        take(account, 3)
        assert [entry.released.steps for entry in store.entries()] == [3, 0]

    def test_a_store_with_a_log_beside_it_is_refused(self, path: Path) -> None:
        """Somebody else's program put it into WAL mode; the remedy of the error helps."""
        store = make(path)
        take(store.start(plan()), 2)
        store.close()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA journal_mode = WAL")
            other.execute("SELECT * FROM runs").fetchall()
            with pytest.raises(FileRefused, match="mode of one file"):
                Store(path)
            other.execute("PRAGMA journal_mode = DELETE")
        assert Store(path).entries()[0].released == plan().ledger.first(2)
        assert os.listdir(path.parent) == [path.name]

    def test_a_store_is_made_once_by_many_threads(self, path: Path) -> None:
        """Their unfinished files had one name: "cannot rollback", "disk I/O error"."""

        def made(_: int) -> str:
            try:
                make(path).close()
            except InvalidValue as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(made, range(8)))
        assert found.count("") == 1
        assert all("which exists" in words for words in found if words)
        assert os.listdir(path.parent) == [path.name]


class TestWordsOfWhatIsLeft:
    """They said "left (2.00002, 1.99999e-05)" of (3, 3e-05) after a run of (1, 1e-05)."""

    def test_they_are_what_a_person_expects(self, path: Path) -> None:
        store = make(path, 3.0, 3e-5)
        store.start(plan(1.0, delta=1e-5))
        assert store.describe().startswith("reserved (1, 1e-05), left (2, 2e-05) of (3, 3e-05)")

    def test_a_plan_for_what_they_say_fits(self, path: Path) -> None:
        store = make(path, 3.0, 3e-5)
        store.start(plan(1.0, delta=1e-5))
        store.start(plan(2.0, delta=2e-5))
        with pytest.raises(ImpossibleBudget, match=r", 0\) of"):
            store.start(plan(0.25, delta=1e-9))

    def test_numbers_add_up_as_they_are_written(self, path: Path) -> None:
        """0.1 and 0.2 are 0.3, of epsilons and of deltas; the floats' sum is a little more."""
        store = make(path, 0.3, 3e-6)
        for epsilon, delta in ((0.1, 1e-6), (0.2, 2e-6)):
            budget = Budget(epsilon, delta)
            store.start(AdaptivePlan(budget, PoissonSampling(ROWS, 10), "a filter", 5, "a policy"))
        assert "left (0, 0)" in store.describe()
        with pytest.raises(ImpossibleBudget):
            store.start(plan(0.25, delta=1e-9))


@pytest.mark.parametrize("through", ["train", "Trainer", "fit"])
def test_a_name_is_in_the_list(path: Path, through: str) -> None:
    store, model, data = make(path), nn.Linear(1, 1), (torch.zeros(ROWS, 1), torch.ones(ROWS, 1))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if through == "train":
        train(model, loss, data, plan(), optimizer, seed=0, store=store, name="winter")
    elif through == "fit":
        fit(model, loss, data, plan(), seed=0, optimizer="sgd", learning_rate=0.1, store=store, name="winter")
    else:
        Trainer(model, loss, plan(), optimizer, seed=0, store=store, name="winter")
    assert [entry.label for entry in store.entries()] == ["winter"]
    with pytest.raises(InvalidValue, match="name must be given with a store"):
        Trainer(model, loss, plan(), optimizer, seed=0, name="winter")
    with pytest.raises(InvalidType, match="name must be"):
        Trainer(model, loss, plan(), optimizer, seed=0, store=store, name=3)  # type: ignore[arg-type]
