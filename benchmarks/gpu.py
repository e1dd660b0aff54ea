"""Everything that needs a CUDA device, by one command.

    make gpu                                    # in the project's environment
    python benchmarks/gpu.py                    # on a machine with Python and torch, and nothing else

Parts, each in processes of its own, within 25 minutes together: the tests marked ``gpu``; two processes on one device,
by NCCL and by gloo; noise; what of a step is the device's; the engine beside the peers that are installed, with memory.
What there is goes to ``results/gpu/report.json`` and ``report.md``. A part that cannot run
says why. Without a device nothing is run.

Packages that are missing are replaced by empty ones, so that everything imports; what calls one fails, and says so.
``--device cpu`` rehearses the parts.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "src", ROOT / "papers" / "src")
MINUTES = 25.0
# Contenders that need no package but torch, and the peers; a peer that is missing says so in the table.
CONTENDERS = ("decrescendo", "decrescendo-without-noise", "vmap", "opacus-hooks", "opacus-ghost")

EMPTY = '''
class Absent:
    """In place of a package that is not installed."""
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __getitem__(self, item):
        return item[0] if isinstance(item, tuple) else object
    def __or__(self, other):
        return self
    __ror__ = __or__
    def __call__(self, *args, **kwargs):
        raise ImportError("a package that this needs is not installed: {package}")
_ABSENT = Absent()
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _ABSENT
'''


def imported() -> set[str]:
    """Every module of another project that a source imports, with its packages."""
    found: set[str] = set()
    for path in (path for folder in SOURCES for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                parts = name.split(".")
                found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return found


def stand_ins(folder: Path) -> list[str]:
    """Write empty packages for what is not installed; their names."""
    missing: set[str] = set()
    for name in sorted(imported()):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top.startswith("decrescendo"):
            continue
        if top in missing or importlib.util.find_spec(top) is None:
            missing.add(top)
            place = folder.joinpath(*name.split("."))
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").write_text(EMPTY.replace("{package}", name))
    if not any(importlib.metadata.distributions(name="decrescendo")):  # a run names its version
        said = folder / "decrescendo-0.dist-info"
        said.mkdir()
        (said / "METADATA").write_text("Metadata-Version: 2.1\nName: decrescendo\nVersion: 0\n")
    return sorted(missing)


def part(name: str, device: str, seconds: float, environment: dict[str, str]) -> dict[str, Any]:
    """One part, in a process: what it found, or how it failed."""
    begun = time.monotonic()
    command = [
        sys.executable,
        str(Path(__file__)),
        "--part",
        name,
        "--device",
        device,
        "--seconds",
        str(seconds),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            timeout=seconds + 60,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        found = json.loads(lines[-1]) if lines else {"failed": tail}
    except subprocess.TimeoutExpired:
        found = {"failed": [f"more than {seconds + 60:.0f} s"]}
    return found | {"seconds": round(time.monotonic() - begun, 1)}


def tests(device: str, seconds: float) -> dict[str, Any]:
    """The tests marked ``gpu``, folder by folder: a conftest of the root needs packages that may be missing."""
    if importlib.util.find_spec("pytest") is None:
        return {"failed": ["pytest is not installed"]}
    mark = "pytest.mark.gpu"
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text(encoding="utf-8")]
    found: dict[str, Any] = {}
    for path in sorted(files):
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "addopts=--import-mode=importlib",
            "-o", "filterwarnings=", f"--confcutdir={path.parent}", "-p", "no:cacheprovider", str(path),
        ]  # fmt: skip
        command += ["--collect-only"] if device == "cpu" else []
        if device == "cuda" and importlib.util.find_spec("xdist"):  # the tests of one device share it
            command += ["-n", str(min(8, os.cpu_count() or 1))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
        lines = done.stdout.strip().splitlines()
        said = [line for line in lines[:-1] if line.startswith(("FAILED", "ERROR"))] + lines[-1:]
        found[str(path.relative_to(ROOT))] = said or done.stderr.splitlines()[-1:]
    return found


def _training(device: str, world: Any = None) -> tuple[dict[str, Any], float]:
    """A few private steps of a small network: its weights, and milliseconds of a step."""
    import torch
    from torch import nn

    from decrescendo.clipping import Engine
    from decrescendo.optim import apply, privatise
    from decrescendo.plans.sampling import PoissonSampling
    from decrescendo.training.processes.world import Alone

    ranks = Alone() if world is None else world
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)).to(device)
    data = torch.randn(512, 64, device=device), torch.randint(10, (512,), device=device)
    engine = Engine(
        model, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampling, noise = PoissonSampling(512, 128), torch.Generator().manual_seed(1)
    rows = torch.arange(128, device=device)[ranks.rank :: ranks.size]
    begun = time.perf_counter()
    for step in range(10):
        batch = tuple(column[(rows + 31 * step) % 512] for column in data)
        noisy, _ = ranks.release(
            lambda batch=batch: engine.clipped_sum(batch, 1.0),
            lambda clipped: (privatise(clipped, 1.0, sampling, noise), b""),
            lambda *_: None,
        )
        apply(noisy, model, optimizer)
    milliseconds = (time.perf_counter() - begun) * 100
    return {name: value.detach().cpu() for name, value in model.named_parameters()}, milliseconds


def ranks(device: str, seconds: float) -> dict[str, Any]:
    """Two processes on one device, against one."""
    found: dict[str, Any] = {}
    for backend in ("nccl", "gloo") if device == "cuda" else ("gloo",):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += [str(Path(__file__)), "--part", f"rank-{backend}", "--device", device]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=min(seconds / 2, 180), check=False
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            said = [line for line in done.stderr.splitlines() if "Error" in line or "Duplicate" in line]
            said.sort(key=lambda line: "Duplicate" not in line)  # the reason, before what follows from it
            found[backend] = json.loads(lines[-1]) if lines else {"failed": said[:2]}
        except subprocess.TimeoutExpired:
            found[backend] = {"failed": ["hangs"]}
    return found


def rank(backend: str, device: str) -> dict[str, Any]:
    """One of two processes."""
    from decrescendo.distributed import join

    world = join(timeout=120, gradients="nccl" if backend == "nccl" else "gloo")
    together, milliseconds = _training(device, world)
    if world.rank:
        return {}
    alone, before = _training(device)
    error = max(float((together[name] - value).abs().max()) for name, value in alone.items())
    return {"largest difference of weights": error, "ms a step": milliseconds, "ms a step of one": before}


def noise(device: str, seconds: float) -> dict[str, Any]:
    """Milliseconds of noise for sums on the device, by size and source; and whether it is the CPU's."""
    import torch

    from decrescendo.base.rng import SecureStream, on_device
    from decrescendo.base.rng.keystream import ReservedWords
    from decrescendo.clipping import ClippedSum, Diagnostics
    from decrescendo.optim import privatise
    from decrescendo.plans.sampling import PoissonSampling

    class Words(ReservedWords):
        """With further words that need no package."""

        def further(self, index: int) -> Iterator[int]:
            for number in itertools.count():
                yield int.from_bytes(hashlib.sha256(f"{index} {number}".encode()).digest()[:8], "little")

    del seconds
    sampling, words = PoissonSampling(1000, 10), Words(bytes(32), 5)
    block = on_device.chacha20(bytes(32), torch.tensor([0], device=device))[0, 0].item()
    sums = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    same = on_device.add_gaussian(sums.to(device), 1.5, words).cpu().equal(on_device.add_gaussian(sums, 1.5, words))
    found: dict[str, Any] = {
        "ChaCha20 is RFC 8439's": block.to_bytes(8, "little", signed=True).hex() == "76b8e0ada0f13d90",
        "noise is the CPU's to the bit": same,
    }
    for size in (26_010, 10_000_000):
        clipped = ClippedSum({"w": torch.zeros(size, device=device)}, 1.0, Diagnostics(0, 0, 0, 0.0))

        def drawn(make: Callable[[], Any], clipped: ClippedSum = clipped) -> Callable[[], torch.Tensor]:
            stream = make()
            return lambda: privatise(clipped, 1.0, sampling, stream).gradients["w"]

        for name, make in {
            "seed": lambda drawn=drawn: drawn(torch.Generator),
            "seed, on the device": lambda drawn=drawn: drawn(lambda: torch.Generator(device=device)),
            "Secure": lambda drawn=drawn: drawn(SecureStream.fresh),
            "ChaCha20 on the device": lambda sums=clipped.gradients["w"]: (
                lambda: on_device.add_gaussian(sums, 1.0, words)
            ),
        }.items():
            try:
                draw, times = make(), []
                for _ in range(4):
                    begun = time.perf_counter()
                    draw().sum().item()
                    times.append((time.perf_counter() - begun) * 1e3)
                found[f"{size}, {name}"] = round(min(times), 3)
            except Exception as error:  # a source that cannot work here says why; the others go on
                found[f"{size}, {name}"] = str(error)
    return found


def engine(device: str, seconds: float) -> dict[str, Any]:
    """Workload after workload while there is time, into results/engine as `make` would."""
    folder = ROOT / "results" / "gpu" / "engine"
    from benchmarks.engine.workloads import workloads

    end, found = time.monotonic() + seconds, {}
    known = workloads(__import__("torch").device(device))
    for name in sorted(known, key=lambda name: known[name].extra):  # what is beside the point, last
        if time.monotonic() > end - 60:
            found[name] = "no time left"
            continue
        command = [sys.executable, "-m", "benchmarks.engine", "run", "--workloads", name, "--device", device]
        command += ["--contenders", *CONTENDERS, "--results", str(folder), "--force", "--seconds", "10"]
        command += ["--print-only", "--rounds", "1", "--no-memory"] if device == "cpu" else []
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=end - time.monotonic(), check=False
            )
            found[name] = [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()][-8:]
        except subprocess.TimeoutExpired:
            found[name] = "no time left"
    return found


def kernels(device: str, seconds: float) -> dict[str, Any]:
    """What the device computes of a step, and what the step takes: the rest is Python, which hides behind kernels that
    take longer."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.engine.contenders import Setting
    from benchmarks.engine.contenders.ours import EngineInPython
    from benchmarks.engine.contenders.plain import Plain
    from benchmarks.engine.timing import WARM_UP, timed
    from benchmarks.engine.workloads import workloads

    del seconds
    place = torch.device(device)
    found: dict[str, Any] = {}
    for name in ("transformer", "vit-tiny"):
        setting = Setting(workloads(place)[name], place)
        found[name] = {}
        for contender in ("plain", "decrescendo"):
            step = Plain(setting) if contender == "plain" else EngineInPython(setting)
            for _ in range(WARM_UP):
                step.step()
            times = sorted(timed(step, place) for _ in range(5))
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                timed(step, place)
            busy = sum(event.self_device_time_total for event in seen.key_averages())
            found[name][contender] = {"ms a step": times[2] * 1e3, "ms of kernels": busy / 1e3}
    return found


PARTS = {
    "tests": (tests, 0.2), "ranks": (ranks, 0.2), "noise": (noise, 0.1), "kernels": (kernels, 0.1),
    "engine": (engine, 0.4),
}  # fmt: skip


def page(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"# On {report['device']}", "", f"torch {report['torch']}, Python {report['python']}.", ""]
    lines += ["Not installed: " + (", ".join(report["not installed"]) or "nothing that is needed") + ".", ""]
    for name, found in report["parts"].items():
        lines += [f"## {name}", "", *(f"- {key}: {value}" for key, value in found.items()), ""]
    return "\n".join(lines)


def main() -> None:
    """Run the parts, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=60 * MINUTES)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks import measured_at

    if arguments.part:
        known = arguments.part
        backend = known.partition("-")[2]
        found = rank(backend, arguments.device) if backend else PARTS[known][0](arguments.device, arguments.seconds)
        if found:
            print(json.dumps(found), flush=True)
        return
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing was run")
        return
    with tempfile.TemporaryDirectory() as name:
        missing = stand_ins(Path(name))
        paths = [*map(str, SOURCES), str(ROOT), name, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        report: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device,
            "torch": torch.__version__, "python": sys.version.split()[0], "not installed": missing, "parts": {},
        }  # fmt: skip
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # a copy without its history
            report |= measured_at()
        for known in arguments.parts:
            share = PARTS[known][1] * arguments.seconds
            report["parts"][known] = part(known, arguments.device, share, environment)
            print(f"{known}: {json.dumps(report['parts'][known])}", flush=True)
    if arguments.device == "cuda":
        target = ROOT / "results" / "gpu"
        target.mkdir(parents=True, exist_ok=True)
        (target / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        (target / "report.md").write_text(page(report))


if __name__ == "__main__":
    main()
