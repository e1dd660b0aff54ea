"""Processes on one store, or in one folder of checkpoints: what threads cannot show, which share locks and caches."""

import json
import subprocess
import sys
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from fuzzing.seeds import ROWS, plan
from often import some

from decrescendo.accounting.budget import Budget
from decrescendo.training.persistence.checkpoint import Releases
from decrescendo.training.store import Store
from decrescendo.training.store.reading import read_entries

TAKE = """
import sys
from decrescendo.errors import ImpossibleBudget
from decrescendo.accounting.release import Release
from decrescendo.plans.plan import Plan
from decrescendo.training.store import Store
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
        total = sum((cost[0] for _, cost in read_entries(store._connection, path, store.composition)), Fraction(0))
        assert total <= Fraction(store.budget.epsilon)


STEPS = 40
RELEASE = """
import json, sys
from decrescendo.training.persistence.checkpoint import Releases
from decrescendo.errors import PlanViolation
releases, own = Releases(sys.argv[1]), int(sys.argv[3])
releases.go_on(sys.argv[2], 0)
sys.stdin.readline()  # all begin at once
passed = []
for position in range(int(sys.argv[4])):
    try:
        passed.append((position, releases.record(position, bytes([own]) * 32)))
    except PlanViolation:
        break
print(json.dumps(passed))
"""


@pytest.mark.parametrize(
    "owns",
    some(
        [pytest.param((1, 1, 1), id="same", marks=pytest.mark.slow), pytest.param((1, 2, 3), id="different")],
        0,
    ),
)
def test_processes_in_one_folder_never_let_two_results_of_one_step_pass(tmp_path: Path, owns: tuple[int, ...]) -> None:
    """The same noise on two sums: whoever comes second has the first result, or is refused."""
    releases = Releases(tmp_path)
    releases.begin()
    lives = [
        subprocess.Popen(
            [sys.executable, "-c", RELEASE, str(tmp_path), releases.name, str(own), str(STEPS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for own in owns
    ]  # fmt: skip
    for life in lives:
        assert life.stdin is not None
        life.stdin.write("go\n")
        life.stdin.flush()
    said = [life.communicate(timeout=120) for life in lives]
    assert [life.returncode for life in lives] == [0] * len(owns), said
    passed = [(own, *entry) for own, (out, _) in zip(owns, said, strict=True) for entry in json.loads(out)]
    for position in range(STEPS):
        here = [(own, new) for own, place, new in passed if place == position]
        assert len({own for own, _ in here}) == 1
        assert sum(new for _, new in here) == 1  # written down once
    releases.go_on(releases.name, STEPS)
