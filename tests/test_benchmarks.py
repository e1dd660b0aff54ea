"""Benchmarks are not run here, but a change of the package must not leave one behind that cannot start."""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

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


@pytest.mark.parametrize("name", ["accounting", "run", "secure"])
def test_a_speed_page_is_that_of_its_result(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    assert benchmark.PAGE.read_text() == benchmark.render(json.loads(benchmark.RESULT.read_text()))


@pytest.mark.parametrize("name", ["batch_curves", "clipping_rules"])
def test_the_page_of_an_experiment_is_that_of_its_result(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    found = json.loads(benchmark.FOUND.read_text(encoding="utf-8"))
    assert benchmark.PAGE.read_text(encoding="utf-8") == benchmark.page(found)


def test_a_verdict_is_that_of_paired_differences() -> None:
    benchmark = importlib.import_module("benchmarks.batch_curves")
    assert benchmark.verdict(np.array([1.0, 1.1, 0.9, 1.0, 1.05])) == "better"
    assert benchmark.verdict(-np.array([1.0, 1.1, 0.9, 1.0, 1.05])) == "worse"
    assert benchmark.verdict(np.array([0.0, 0.1, -0.1, 0.05, -0.05])) == "undecided"
    assert benchmark.verdict(np.zeros(5)) == "undecided"


def test_the_page_of_the_engine_is_that_of_its_results(tmp_path: Path) -> None:
    importlib.import_module("benchmarks.engine.page").write(ROOT / "results/engine", tmp_path)
    assert (tmp_path / "engine-speed.md").read_text() == (ROOT / "docs/reference/engine-speed.md").read_text()


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
