"""Benchmarks are not run here, but a change of the package must not leave one behind that cannot start."""

import importlib
import sys
from pathlib import Path

import pytest

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
