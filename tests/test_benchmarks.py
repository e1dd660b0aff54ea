"""Benchmarks are not run here, but a change of the package must not leave one behind that cannot start."""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

# Modules that import a library we compare with, which the lock file does not have.
PEERS = {"opacus", "jax", "jaxlib", "jax_privacy", "opake", "atheris"}

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # (One of them uses a test.)
    monkeypatch.setattr(sys, "path", [str(ROOT), str(ROOT / "tests"), *sys.path])
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in PEERS:
            raise


@pytest.mark.parametrize("name", ["accounting", "growth", "run", "secure"])
def test_a_speed_page_is_that_of_its_result(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    assert benchmark.PAGE.read_text() == benchmark.render(json.loads(benchmark.RESULT.read_text()))


@pytest.mark.parametrize("name", ["batch_curves", "clipping_rules"])
def test_the_page_of_an_experiment_is_that_of_its_result(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    found = json.loads(benchmark.FOUND.read_text(encoding="utf-8"))
    assert benchmark.PAGE.read_text(encoding="utf-8") == benchmark.page(found)


def test_the_page_of_the_controllers_is_that_of_their_results() -> None:
    benchmark = importlib.import_module("benchmarks.telemetry")
    assert benchmark.PAGE.read_text(encoding="utf-8") == benchmark.page()


def test_a_verdict_is_that_of_paired_differences() -> None:
    benchmark = importlib.import_module("benchmarks.batch_curves")
    assert benchmark.verdict(np.array([1.0, 1.1, 0.9, 1.0, 1.05])) == "better"
    assert benchmark.verdict(-np.array([1.0, 1.1, 0.9, 1.0, 1.05])) == "worse"
    assert benchmark.verdict(np.array([0.0, 0.1, -0.1, 0.05, -0.05])) == "undecided"
    assert benchmark.verdict(np.zeros(5)) == "undecided"


def test_what_is_said_of_the_cost_of_the_proof_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "results/engine/proof.json").read_text())["rows"]
    shares = [row["share"] for row in rows if not row["extra"]]
    text = (ROOT / "docs/explanation/engine.md").read_text()
    for share in (np.median(shares), min(shares), max(shares)):
        assert f"{100 * share:.1f} %" in text


def growing(size: int, private: float) -> dict[str, Any]:
    """Made-up times and bytes: a plain step in proportion to its size, and a private one that grows by a power."""
    ways = {"plain": float(size), "private": 2.0 * size**private}
    return {way: {"seconds": [much] * 7, "bytes": 2**20 * much} for way, much in ways.items()}


@pytest.mark.parametrize(
    ("private", "words"), [(1.0, "within 10 %"), (1.09, "within 10 %"), (0.8, "flatter"), (1.3, "steeper")]
)
def test_a_slope_is_that_of_a_line_through_logarithms(private: float, words: str) -> None:
    benchmark = importlib.import_module("benchmarks.growth")
    line = [{"batch": size, **growing(size, private)} for size in benchmark.BATCHES]
    for quantity in benchmark.QUANTITIES:
        found = benchmark.slopes(line, "batch", quantity)
        assert found == pytest.approx({"plain": 1.0, "private": private})
        assert benchmark.verdict(**found) == words


@pytest.mark.slow
def test_the_page_of_growth_says_what_is_left_out(tmp_path: Path) -> None:
    benchmark = importlib.import_module("benchmarks.growth")
    sizes = {"batch": benchmark.BATCHES, "parameters": (10**4, 10**5, 10**6, 10**7, 10**8)}
    points: list[dict[str, Any]] = [
        {"family": family, "sweep": sweep, "batch": 16, "parameters": 10**6} | {sweep: size} | growing(size, 1.3)
        for family in benchmark.FAMILIES
        for sweep in benchmark.SWEEPS
        for size in sizes[sweep]
    ]
    last = points[-1]
    last.pop("plain"), last.pop("private")
    last["left out"] = "about 31 s a step"
    found = {
        "commit": "1a2b3c4", "date": "2026-11-24", "machine": {"cpu": "a processor", "cores": 2}, "load": 0.1,
        "minutes": 12.0, "points": points,
    }  # fmt: skip
    page = " ".join(benchmark.render(found).split())
    assert "Of 16 slopes 0 are plain training's within 10 %, 0 are flatter and 16 steeper. 1 size is left out" in page
    assert "| 100,000,000 | about 31 s a step |" in page
    assert "measured at commit 1a2b3c4 on 2026-11-24, on a processor" in page
    benchmark.draw(found, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_of_the_engine_is_that_of_its_results(tmp_path: Path) -> None:
    importlib.import_module("benchmarks.engine.page").write(ROOT / "results/engine", tmp_path)
    assert (tmp_path / "engine-speed.md").read_text() == (ROOT / "docs/reference/engine-speed.md").read_text()


@pytest.mark.slow
def test_the_gpu_command_says_where_there_is_no_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "no CUDA device here: nothing was run\n"


@pytest.mark.slow
def test_the_gpu_command_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    """Rehearsed on the CPU, by a Python that sees these two and what torch itself needs."""
    packages = (
        "torch",
        "torchgen",
        "numpy",
        "typing_extensions",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "fsspec",
    )
    place = tmp_path / "packages"
    place.mkdir()
    for name in (*packages, "markupsafe", "filelock", "numpy.libs", "functorch"):
        for found in Path(sysconfig.get_path("purelib")).glob(f"{name}*"):
            if found.name in (name, f"{name}.py"):
                (place / found.name).symlink_to(found)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    surroundings = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    command = [
        str(bare / "bin/python"),
        str(ROOT / "benchmarks/gpu.py"),
        "--device",
        "cpu",
        "--seconds",
        "900",
    ]
    done = subprocess.run(
        [*command, "--parts", "noise", "ranks"],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
        env=surroundings,
    )
    noise, ranks = (json.loads(line.partition(": ")[2]) for line in done.stdout.splitlines())
    assert isinstance(noise["26010, seed"], float)
    assert "not installed" in noise["26010, Secure"]
    assert ranks["gloo"]["largest difference of weights"] < 1e-5
