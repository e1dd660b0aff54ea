"""Real Flower processes on loopback: a SuperLink, SuperNodes, ``flwr run``; started, watched, killed, cleaned up."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path

CONNECTION = "loopback"


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return when ``condition`` holds, or fail with ``what``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} seconds")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class FlowerProcesses:
    """One SuperLink and its SuperNodes, each in a process group of its own; a context manager.

    Everything Flower writes goes below ``folder``; logs are in ``folder/logs``. Nothing is sent to anybody:
    telemetry, update checks and the installation of an app's dependencies are off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._groups: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "home").mkdir(exist_ok=True)
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        scripts = sysconfig.get_path("scripts")
        sources = Path(__file__).parents[2] / "src"
        self._environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{sources}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "HOME": str(folder / "home"),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def __enter__(self) -> "FlowerProcesses":
        try:
            self.start_link()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def start_link(self) -> None:
        """The SuperLink, and wait until it listens."""
        self._start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port))
        wait_until(lambda: _listens(self.port), 120, "the SuperLink listens")

    def start_node(self, name: str, config: Mapping[str, str | int]) -> None:
        """A SuperNode with this node configuration."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        link, port = f"127.0.0.1:{self.port}", str(free_port())
        self._start(
            name, "flower-supernode", "--insecure", "--superlink", link, "--host", "127.0.0.1", "--port", port,
            "--node-config", settings,
        )  # fmt: skip

    def run(self, app: Path, config: Mapping[str, str | int | float]) -> int:
        """``flwr run``: build the app, submit it, and give the number of the run."""
        overrides = self.folder / "run-config.toml"
        overrides.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        done = subprocess.run(
            ["flwr", "run", str(app), CONNECTION, "--run-config", str(overrides), "--format", "json"],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        answer = json.loads(done.stdout)
        if not answer.get("success"):
            raise RuntimeError(f"flwr run: {done.stdout} {done.stderr}")
        return int(answer["run-id"])

    def log_of(self, run: int) -> str:
        """What the server app of a run has logged."""
        return subprocess.run(
            ["flwr", "log", str(run), CONNECTION, "--show"],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        ).stdout

    def kill(self, name: str) -> None:
        """SIGKILL to a process and all its children: no goodbye to anybody."""
        group = self._groups.pop(name)
        _signal(group, signal.SIGKILL)
        group.wait()

    def stop(self) -> None:
        """End everything."""
        for group in self._groups.values():
            _signal(group, signal.SIGKILL)
        for group in self._groups.values():
            group.wait()
        self._groups.clear()

    def logs(self) -> str:
        """The ends of all logs, for the message of a test that fails."""
        files = sorted((self.folder / "logs").iterdir())
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._groups[name] = subprocess.Popen(
                command,
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _signal(group: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group.pid, number)
