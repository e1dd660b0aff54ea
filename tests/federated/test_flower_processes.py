"""The Flower adapter on real processes: a SuperLink, three SuperNodes, loopback, and whatever can happen to them."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason='flwr is not installed: pip install "decrescendo[federated]"')

from flower_processes import FlowerProcesses, wait_until
from safetensors.torch import load_file

from decrescendo.errors import InvalidValue
from decrescendo.federated import Clients, Outcome, Placement, simulate
from decrescendo.federated.journal import Journal
from decrescendo.plans.plan import Plan

from .conftest import make_plan

pytestmark = pytest.mark.slow
APP = Path(__file__).parent / "flower_app"


def _problem() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedtest_problem", APP / "fedtest" / "problem.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


problem = _problem()


def node(shard: int) -> str:
    return f"node{shard}"


def start_node(flower: FlowerProcesses, shard: int) -> None:
    flower.start_node(node(shard), {"shard": shard, "folder": str(flower.folder / f"shard{shard}")})


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerProcesses]:
    """One SuperLink and three SuperNodes for all tests of this file, as in real life."""
    with FlowerProcesses(tmp_path_factory.mktemp("flower")) as flower:
        for shard in range(3):
            start_node(flower, shard)
        yield flower


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def submit(flower: FlowerProcesses, folder: Path, plan: Plan, **config: str | float) -> None:
    plan.save(folder / "plan.json")
    (folder / "server.pid").unlink(missing_ok=True)
    # Each test is a run of its own: its name keeps the nodes' memories of the same plan apart.
    number = flower.run(APP, {"folder": str(folder), "name": folder.name, **config})
    (folder / "run").write_text(str(number))


def runs(pid: int) -> bool:
    """Whether a process is there and not a zombie, which nobody may have waited for yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait(flower: FlowerProcesses, folder: Path, what: Callable[[], object], seconds: float = 1500) -> None:
    """Until ``what`` holds; if the server app ends before that, its log is the failure's message."""

    def ended() -> bool:
        file = folder / "server.pid"
        return file.exists() and not runs(int(file.read_text()))

    try:
        wait_until(lambda: what() or ended(), seconds, "the run")
    except TimeoutError:
        pytest.fail(flower.logs())
    if not what():
        pytest.fail(flower.log_of(int((folder / "run").read_text())))


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def finish(flower: FlowerProcesses, folder: Path) -> dict[str, torch.Tensor]:
    wait(flower, folder, (folder / "done.json").exists)
    return load_file(folder / "weights.safetensors")


def simulated(
    plan: Plan,
    folder: Path,
    placement: Placement = Placement.CENTRAL,
    dropouts: Callable[..., Any] | None = None,
) -> Outcome:
    model = problem.make_model()
    return simulate(
        model,
        problem.loss,
        Clients.equal(problem.all_records(), records=1),
        plan,
        problem.make_optimizer(model),
        seed=problem.SEED,
        placement=placement,
        dropouts=dropouts,
        name=folder.name,
    )


def assert_same(found: dict[str, torch.Tensor], expected: Outcome) -> None:
    for name, value in expected.weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


def test_twenty_rounds_give_the_weights_of_the_simulator(flower: FlowerProcesses, folder: Path) -> None:
    plan = make_plan([1.5] * 20, [0.5 * 0.97**t for t in range(20)])
    start = time.monotonic()
    submit(flower, folder, plan)
    found = finish(flower, folder)
    print(f"20 rounds in {time.monotonic() - start:.0f} s")
    assert_same(found, simulated(plan, folder))
    rounds = rounds_of(folder)
    assert [r["number"] for r in rounds] == list(range(1, 21))
    assert all(r["missing"] == 0 for r in rounds)
    assert json.loads((folder / "done.json").read_text()) == {"steps": 20, "as_planned": True}


def test_shares_give_the_weights_of_the_simulator(flower: FlowerProcesses, folder: Path) -> None:
    plan = make_plan([1.5] * 3, [0.5] * 3)
    submit(flower, folder, plan, placement="distributed")
    assert_same(finish(flower, folder), simulated(plan, folder, Placement.DISTRIBUTED))


def test_what_bad_clients_send_is_counted_and_nothing_unclipped_enters(flower: FlowerProcesses, folder: Path) -> None:
    # C is far below every gradient: an honest update has norm C, and so has a huge one that was clipped again.
    plan = make_plan([1.5] * 8, [1e-3] * 8, cohort=30)
    faults = {2: "huge", 3: "nan", 4: "shapes", 5: "old", 6: "twice", 7: "empty", 8: "exit"}
    submit(flower, folder, plan, faults=" ".join(f"{number}:0:{fault}" for number, fault in faults.items()))
    found = finish(flower, folder)
    gone = (3, 4, 5, 7, 8)

    def dropouts(number: int, client: int) -> bool:
        return number in gone and client in problem.SHARDS[0]

    assert_same(found, simulated(plan, folder, dropouts=dropouts))
    counts = [r["verdicts"] for r in rounds_of(folder)]
    bad = ["ACCEPTED", "RECLIPPED", "NONFINITE", "SHAPES", "OTHER_ROUND", "REPEATED", "UNREADABLE"]
    for number, verdict in enumerate(bad[1:], start=2):
        assert counts[number - 1].get(verdict, 0) > 0
    last = rounds_of(folder)[7]
    assert last["errors"] + last["silent"] == 1
    assert last["missing"] > 0


def test_a_node_killed_in_mid_round_is_missing_and_may_come_back(flower: FlowerProcesses, folder: Path) -> None:
    plan = make_plan([1.5] * 3, [0.5] * 3, cohort=20)
    # Long enough for a busy machine to answer in; a round waits for the dead node so long.
    submit(flower, folder, plan, faults="2:1:hang", **{"round-timeout": 150.0})
    wait(flower, folder, (folder / "hanging").exists)
    flower.kill(node(1))
    start_node(flower, 1)  # at once: its clients are refused while the dead node is taken for alive
    found = finish(flower, folder)
    rounds = rounds_of(folder)
    assert rounds[1]["silent"] + rounds[1]["errors"] == 1
    assert rounds[1]["missing"] > 0
    back = rounds[2]["missing"] == 0
    dropouts = lambda now, client: (  # noqa: E731
        (now == 2 or (now == 3 and not back)) and client in problem.SHARDS[1]
    )
    assert_same(found, simulated(plan, folder, dropouts=dropouts))


def is_free(journal: Path) -> bool:
    """A killed process is a zombie before the last of its threads has let go of its files."""
    try:
        Journal(journal).close()
    except InvalidValue:
        return False
    return True


@pytest.mark.parametrize("placement", ["central", "distributed"])
def test_a_killed_server_goes_on_and_never_under_reports(flower: FlowerProcesses, folder: Path, placement: str) -> None:
    plan = make_plan([1.5] * 5, [0.5] * 5, cohort=20)
    submit(flower, folder, plan, placement=placement)
    wait(flower, folder, lambda: len(rounds_of(folder)) >= 2)
    server = int((folder / "server.pid").read_text())
    with pytest.raises(InvalidValue, match="held by another"):
        Journal(folder / "journal")
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not runs(server), 60, "the server is dead")
    wait_until(lambda: is_free(folder / "journal"), 60, "the journal is let go")
    seen = len(rounds_of(folder))
    journal = Journal(folder / "journal")
    entry = journal.read()
    journal.close()
    assert entry is not None
    assert entry.facts["spent"] >= seen  # what was released is in the ledger, whenever the kill came
    submit(flower, folder, plan, placement=placement)
    found = finish(flower, folder)
    assert json.loads((folder / "done.json").read_text()) == {"steps": 5, "as_planned": True}
    if placement == "central":
        assert_same(found, simulated(plan, folder))


def test_a_killed_superlink_ends_the_run_and_a_new_one_goes_on(tmp_path: Path) -> None:
    plan = make_plan([1.5] * 4, [0.5] * 4, cohort=20)
    folder = tmp_path / "run"
    folder.mkdir()
    with FlowerProcesses(tmp_path / "flower") as flower:
        for shard in range(3):
            start_node(flower, shard)
        submit(flower, folder, plan)
        wait(flower, folder, lambda: len(rounds_of(folder)) >= 1)
        flower.kill("superlink")
        flower.start_link()
        # The new one knows none of the nodes (401), and they end: they are started again, with what they remember.
        for shard in range(3):
            flower.kill(node(shard))
            start_node(flower, shard)
        submit(flower, folder, plan)
        found = finish(flower, folder)
    assert_same(found, simulated(plan, folder))
    assert json.loads((folder / "done.json").read_text()) == {"steps": 4, "as_planned": True}


def test_the_example_project_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "federated"
    sources = f"{APP.parents[2] / 'src'}{os.pathsep}{example}"
    subprocess.run(
        [sys.executable, str(example / "make_plan.py"), "8"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": sources},
        check=True,
    )
    with FlowerProcesses(tmp_path / "flower") as flower:
        for shard in range(3):
            folder = str(flower.folder / f"shard{shard}")
            flower.start_node(node(shard), {"shard": shard, "shards": 3, "folder": folder})
        config = {"plan": str(tmp_path / "plan.json"), "folder": str(tmp_path / "server")}
        run = flower.run(example, config)
        said = tmp_path / "server" / "statement.txt"
        try:
            wait_until(said.exists, 900, "the example's statement")
        except TimeoutError:
            pytest.fail(flower.log_of(run) + flower.logs())
    assert said.read_text().startswith("(8, 0.001)-DP per client")
