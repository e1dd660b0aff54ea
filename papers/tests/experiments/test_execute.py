"""The executor: what is finished is kept, a killed one resumes, a run that dies does not take the others with it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from decrescendo_papers.experiments.execute import damaged, execute, missing
from decrescendo_papers.experiments.perform import perform
from decrescendo_papers.experiments.results import find, path_of
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import base_spec

from .conftest import spoil


def spec(seed: int = 0, *, method: str = "dynamic", steps: int = 3, model: str = "paper") -> Spec:
    settings = {"method": method, "rho_mu": 1.25, "rho_c": 3.3, "steps": steps, "seed": seed, "model": model}
    private = method != "none"
    return base_spec(
        "digits", epsilon=2.0 if private else 0.0, accountant="pld" if private else "none", settings=settings
    )


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.mark.slow
def test_what_is_finished_is_not_repeated_and_what_is_damaged_is(tmp_path: Path) -> None:
    specs = [spec(0), spec(1), spec(0, method="none"), spec(0)]
    first = execute(specs, tmp_path, jobs=2, console=quiet())
    assert (first.kept, first.done, first.failed) == (0, 3, {})
    before = {one: find(tmp_path, one) for one in specs}
    assert execute(specs, tmp_path, jobs=1, console=quiet()).kept == 3
    path = path_of(tmp_path, specs[1])
    spoil(path, specs[1])
    assert missing(specs, tmp_path) == [specs[1]]
    assert len(damaged(specs, tmp_path)) == 1
    shown = quiet()
    again = execute(specs, tmp_path, jobs=2, console=shown)
    assert (again.kept, again.done) == (2, 1)
    assert isinstance(shown.file, io.StringIO)
    assert f"left out, and run again if it is asked for: {path}, line" in shown.file.getvalue()
    assert find(tmp_path, specs[0]) == before[specs[0]]
    found = find(tmp_path, specs[1])
    assert found is not None
    assert found.metrics == perform(specs[1]).metrics  # in this process: the same numbers


@pytest.mark.slow
def test_one_failing_run_leaves_the_others_alone(tmp_path: Path) -> None:
    bad, good = spec(0, model="no such model"), spec(1)
    outcome = execute([bad, good], tmp_path, jobs=1, console=quiet())
    assert outcome.done == 1
    assert "model must be one of paper, tanh" in outcome.failed[bad.name]
    assert find(tmp_path, good) is not None
    assert find(tmp_path, bad) is None


def test_a_folder_that_cannot_be_written_to_is_found_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = quiet()
    with pytest.raises(OSError, match="file"):
        execute([spec(0)], tmp_path / "file" / "runs", jobs=1, console=shown)
    assert isinstance(shown.file, io.StringIO)
    assert shown.file.getvalue() == ""


SCRIPT = """
import sys
from pathlib import Path
from decrescendo_papers.experiments.execute import execute
from test_execute_specs import SPECS
if __name__ == "__main__":
    execute(SPECS, Path(sys.argv[1]), jobs=2)
"""
SPECS = """
from decrescendo_papers.experiments.table import base_spec
SPECS = [
    base_spec("digits", epsilon=2.0, accountant="pld", settings={"method": "constant", "steps": 20, "seed": seed})
    for seed in range(3)
]
"""


def start(tmp_path: Path, results: Path) -> subprocess.Popen[bytes]:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "test_execute_specs.py").write_text(SPECS)
    return subprocess.Popen(
        [sys.executable, "script.py", str(results)], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def finished(results: Path) -> int:
    """How many runs there are, a line each."""
    return sum(len(path.read_text().splitlines()) for path in results.glob("*.jsonl"))


def workers_of(process: subprocess.Popen[bytes]) -> list[Path]:
    """Of an executor, as far as they live: one may end between being listed and being looked at."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        process.kill()
        pytest.skip("children are listed on Linux only")
    found: list[Path] = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(Path(f"/proc/{child}"))
    return found


@pytest.mark.slow
def test_killed_again_and_again_it_ends_where_an_undisturbed_one_ends(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    began = time.monotonic()
    assert start(tmp_path, whole).wait(300) == 0
    undisturbed = time.monotonic() - began
    kills = 0
    for share in (0.5, 0.7, 0.6, 0.8, 0.65):
        process = start(tmp_path, torn)
        try:
            assert process.wait(share * undisturbed) == 0
        except subprocess.TimeoutExpired:
            kills += 1
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert start(tmp_path, torn).wait(300) == 0
    assert kills > 0
    assert finished(whole) == finished(torn) == 3
    sys.path.insert(0, str(tmp_path))
    from test_execute_specs import SPECS as ALL  # type: ignore[import-not-found]

    for one in ALL:
        first, second = find(whole, one), find(torn, one)
        assert first is not None
        assert second is not None
        assert first.metrics == second.metrics


@pytest.mark.slow
def test_a_killed_worker_costs_only_its_own_run(tmp_path: Path) -> None:
    """The process that computes is killed once; the run is tried again and everything gets finished."""
    process = start(tmp_path, tmp_path / "results")
    end, killed = time.monotonic() + 240, False
    while process.poll() is None and time.monotonic() < end:
        workers = workers_of(process)
        if not killed and workers and finished(tmp_path / "results"):
            os.kill(int(workers[0].name), signal.SIGKILL)
            killed = True
        time.sleep(0.05)
    assert killed
    assert process.returncode == 0
    assert finished(tmp_path / "results") == 3


@pytest.mark.slow
def test_workers_end_with_their_executor(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "results")
    workers: list[Path] = []
    end = time.monotonic() + 120
    while len(workers) < 2 and time.monotonic() < end:
        workers = workers_of(process)
        time.sleep(0.05)
    assert len(workers) == 2
    time.sleep(5)  # they are at work
    process.kill()  # itself only
    process.wait()
    end = time.monotonic() + 60
    while any(worker.exists() for worker in workers) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(worker.exists() for worker in workers)
