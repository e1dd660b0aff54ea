"""Two processes on one store: what threads cannot show, because they share locks, caches and a process id."""

import subprocess
import sys
from contextlib import closing
from fractions import Fraction
from pathlib import Path

from fuzzing.seeds import ROWS, plan

from decrescendo.budget import Budget
from decrescendo.store import Store

TAKE = """
import sys
from decrescendo.errors import ImpossibleBudget
from decrescendo.ledger import Release
from decrescendo.plan import Plan
from decrescendo.store import Store
plan = Plan.load(sys.argv[2])
planned = plan.ledger
sys.stdin.readline()  # both begin at once
for number in range(8):
    store = Store(sys.argv[1])
    try:
        account = store.start(plan, label=sys.argv[3])
    except ImpossibleBudget:
        print("refused")
        continue
    for position in range(len(planned)):
        release = Release(float(planned.sample_rate[position]), float(planned.noise_multiplier[position]))
        account.record(position, release, bytes([position]))
    print("granted", flush=True)
    store.close()
"""


def test_two_processes_on_one_store_never_overspend(tmp_path: Path) -> None:
    """Room for five runs, two processes that want eight each, at once."""
    path = tmp_path / "ledger.db"
    plan().save(tmp_path / "plan.json")
    Store.create(path, Budget(5.5 * plan().guarantee.epsilon, 1e-3), dataset="patients", rows=ROWS).close()
    lives = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(path), str(tmp_path / "plan.json"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    for life in lives:
        assert life.stdin is not None
        life.stdin.write("go\n")
        life.stdin.flush()
    said = [life.communicate(timeout=120) for life in lives]
    assert [life.returncode for life in lives] == [0, 0], said
    assert sum(out.count("granted") for out, _ in said) == 5
    assert sum(out.count("refused") for out, _ in said) == 11
    with closing(Store(path)) as store:
        entries = store.entries()
        assert [entry.released for entry in entries] == [plan().ledger] * 5
        total = sum((cost[0] for _, cost in store._entries(store._connection)), Fraction(0))
        assert total <= Fraction(store.budget.epsilon)
