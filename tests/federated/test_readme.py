"""The README of the federated example, followed to the letter: a fresh environment, a fresh home, real processes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='flwr is not installed: pip install "decrescendo[federated]"')

ROOT = Path(__file__).parents[2]
PAGE = "examples/federated/README.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
PORTS = (8000, 9094, 9095, 9096)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / PAGE).read_text(encoding="utf-8"))


def test_the_page_has_the_blocks_that_the_test_follows() -> None:
    assert [kind for kind, _ in blocks()] == ["sh", "sh", "toml", "sh"]
    install, start, address, run = (text for _, text in blocks())
    assert "pip install" in install
    assert start.count("flower-supernode") == 3
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", start + address)) == {"8000"}, "the one port of a SuperLink"
    assert run.startswith("flwr run")


def environment(folder: Path) -> dict[str, str]:
    """A Python environment and a home of their own. What is installed here is seen there, so that pip fetches nothing
    but what builds the package."""
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    scripts = place / "bin"
    (found,) = place.glob("lib/python*/site-packages")
    (found / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Flower is seen there too; its commands must use this Python, in which the package is installed.
    for script in Path(sysconfig.get_path("scripts")).glob("fl*w*r*"):
        text = script.read_text(encoding="utf-8").partition("\n")[2]
        (scripts / script.name).write_text(f"#!{scripts / 'python'}\n{text}", encoding="utf-8")
        (scripts / script.name).chmod(0o755)
    (folder / "home").mkdir()
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": os.pathsep.join([str(scripts), sysconfig.get_path("scripts"), os.environ["PATH"]]),
        "HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@contextmanager
def own_network(within: float = 600) -> Generator[list[str]]:
    """What commands begin with to have a loopback, and so all ports, of their own; where the system does not let us,
    the page's ports are waited for."""
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 7200"]
    try:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        holder = None
    if holder is not None and holder.stdout is not None and holder.stdout.readline() == "up\n":
        try:
            yield ["nsenter", "--net", "--target", str(holder.pid)]
        finally:
            holder.stdout.close()
            holder.kill()
            holder.wait()
        return
    end = time.monotonic() + within
    while any(is_taken(port) for port in PORTS):
        if time.monotonic() > end:
            pytest.skip(f"other programs listen on ports {PORTS}")
        time.sleep(5)
    yield []


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_the_page_works_to_the_letter(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    here = (checkout / PAGE).parent
    surroundings = environment(tmp_path)
    install, start, address, run = (text for _, text in blocks())

    def follow(text: str, seconds: float, inside: Sequence[str] = ()) -> None:
        command = [*inside, "bash", "-ec", text]
        done = subprocess.run(command, cwd=here, env=surroundings, timeout=seconds, capture_output=True, text=True)
        if "No matching distribution found for hatchling" in done.stderr:
            pytest.skip("pip cannot reach a package index")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    follow(install, 600)
    (tmp_path / "home/.flwr").mkdir()
    (tmp_path / "home/.flwr/config.toml").write_text(address)
    groups: list[subprocess.Popen[bytes]] = []
    with own_network() as inside:
        try:
            for number, line in enumerate(start.splitlines()):
                with (tmp_path / f"terminal-{number}.log").open("wb") as log:
                    command = [*inside, "bash", "-c", line]
                    groups.append(
                        subprocess.Popen(
                            command,
                            cwd=here,
                            env=surroundings,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
                time.sleep(10 if number == 0 else 1)
            follow(run, 3000, inside)
            result = tmp_path / "home/digits/server"
            end = time.monotonic() + 60
            while not (result / "statement.txt").exists() and time.monotonic() < end:
                time.sleep(1)
            said = (result / "statement.txt").read_text()
            assert said.startswith("(8, 0.001)-DP per client")
            assert (result / "weights.safetensors").exists()
        finally:
            for path in sorted(tmp_path.glob("terminal-*")):
                print(path.read_text(errors="replace")[-2000:])
            for group in groups:
                os.killpg(group.pid, signal.SIGKILL)
                group.wait()
