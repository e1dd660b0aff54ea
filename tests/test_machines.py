"""Facts: `make test-machines` plays machines unlike this one, runs tests that exist, and says which leg is red; its leg
`newest` has an environment of its own, and says which versions are in it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import machines
import pytest
from often import some

ROOT = Path(__file__).resolve().parents[1]
SEEN = """
import os, time, locale

def test_seen():
    assert {seen}
"""


def play(leg: str, seen: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A leg over one test, which looks at where it runs."""
    (folder / "test_seen.py").write_text(SEEN.format(seen=seen), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests/support/machines.py"), leg, "--processes", "1", "--only"]
    return subprocess.run(
        [*command, str(folder / "test_seen.py")], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leg", "seen"),
    some(
        [
            (
                "old-processor",
                "__import__('torch').backends.cpu.get_cpu_capability() in ('DEFAULT', 'NO AVX')",
            ),
            pytest.param(
                "avx2",
                "__import__('torch').backends.cpu.get_cpu_capability() in ('AVX2', 'DEFAULT', 'NO AVX')",
                marks=pytest.mark.slow,
            ),
            pytest.param("two-threads", "__import__('torch').get_num_threads() == 2", marks=pytest.mark.slow),
            (
                "no-kernel",
                "__import__('decrescendo.clipping.rules.compiled', fromlist=['x']).library() is None",
            ),
            pytest.param(
                "no-kernel",
                "__import__('decrescendo.clipping.rules.matrices', fromlist=['x']).library() is None",
                marks=pytest.mark.slow,
            ),
            pytest.param("hash-seed", "os.environ['PYTHONHASHSEED'].isdigit()", marks=pytest.mark.slow),
            pytest.param("time-zone", "time.tzname[0] == 'PST'", marks=pytest.mark.slow),
            pytest.param("plain-c", "locale.setlocale(locale.LC_ALL, '') == 'C'", marks=pytest.mark.slow),
        ],
        1,
    ),
)
def test_a_leg_is_another_machine(leg: str, seen: str, tmp_path: Path) -> None:
    done = play(leg, seen, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{leg}: passed in \d+ s: 1 passed in [\d.]+s\n", done.stdout)


@pytest.mark.slow
def test_the_locked_leg_cannot_write_above_the_checkout_or_says_why_it_is_skipped(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = play("locked", f"not os.access({str(ROOT.parent)!r}, os.W_OK)", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout or machines.LOCKED in done.stdout


@pytest.mark.slow
def test_a_red_leg_is_named_with_its_test_and_how_to_run_it_again(tmp_path: Path) -> None:
    done = play("time-zone", "time.tzname[0] == 'CET'", tmp_path)
    assert done.returncode == 1
    first, *rest = done.stdout.splitlines()
    assert first.startswith("time-zone: FAILED in")
    assert any("test_seen" in line for line in rest)
    assert "TZ=America/Los_Angeles" in rest[-1]


def test_a_leg_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = play("sundial", "True", tmp_path)
    assert done.returncode == 2
    assert "old-processor, avx2" in done.stderr
    assert "got sundial" in done.stderr


def test_legs_have_names_of_their_own_and_tests_that_exist() -> None:
    assert len({leg.name for leg in machines.LEGS}) == len(machines.LEGS)
    for leg in machines.LEGS:
        assert all((ROOT / path).exists() for path in leg.tests)
        assert leg.set or leg.locked or leg.newest
    everything = {path for leg in machines.LEGS for path in leg.tests}
    wanted = {f"tests/{name}" for name in ("accounting", "plans", "optim", "noise")}
    assert wanted | {f"papers/tests/{name}" for name in ("theory", "experiments", "data")} <= everything


def test_the_newest_leg_runs_all_tests() -> None:
    (leg,) = [leg for leg in machines.LEGS if leg.newest]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert list(leg.tests) == wanted["tool"]["pytest"]["ini_options"]["testpaths"]


def test_the_newest_leg_says_which_versions_are_not_the_pinned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    here = [{"name": "torch", "version": "99.1+cpu"}, {"name": "of no file", "version": "1"}]
    later = [{"name": "torch", "version": "99.1", "latest_version": "99.2"}]

    def listed(command: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=json.dumps(later if "--outdated" in command else here))

    monkeypatch.setattr(machines.subprocess, "run", listed)
    said = machines.versions(Path(sys.executable))
    assert said.startswith(f"0 packages as pinned; otherwise: torch 99.1 (pinned {pinned}); newer, but")
    assert said.endswith(": torch 99.2")


@pytest.mark.parametrize(
    ("fails", "code", "said"),
    [
        ("download", 0, "newest: skipped, pip reaches no package index"),
        ("install", 1, "newest: FAILED, pip could not install:\nno such version"),
        ("pytest", 1, "newest: FAILED in"),
        ("pyrefly", 1, "newest: FAILED, types:"),
        ("nothing", 0, "newest: passed in"),
    ],
)
def test_the_newest_leg_is_green_where_everything_is(
    fails: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for processes: the environment takes gigabytes."""
    commands: list[list[str]] = []

    def run(command: list[object], **_: object) -> SimpleNamespace:
        commands.append([str(part) for part in command])
        failed = any(Path(part).name == fails for part in commands[-1])
        return SimpleNamespace(returncode=int(failed), stdout="[]", stderr="no such version")

    monkeypatch.setattr(machines.subprocess, "run", run)
    monkeypatch.setattr(machines, "ROOM", 0)
    monkeypatch.setattr(sys, "argv", ["machines.py", "newest", "--torch", "9.8.7"])
    assert machines.main() == code
    assert said in capsys.readouterr().out
    assert all(str(machines.NEWEST) in command[0] for command in commands[2:])
    assert fails == "download" or "torch==9.8.7" in commands[2]


def test_the_newest_leg_is_skipped_where_the_disk_has_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "ROOM", 10**18)
    monkeypatch.setattr(sys, "argv", ["machines.py", "newest"])
    assert machines.main() == 0
    assert "newest: skipped, the disk must have" in capsys.readouterr().out


def test_the_test_processes_have_the_threads_that_are_asked_for() -> None:
    torch = pytest.importorskip("torch")
    assert torch.get_num_threads() == int(os.environ.get("OMP_NUM_THREADS") or 1)
