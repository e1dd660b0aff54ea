"""One process that runs trainings under the doctor's observers."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from decrescendo.doctor import Diagnosis
from decrescendo.doctor.examine import diagnosis

_SUPPORT = Path(__file__).parents[1] / "support"
Observe = Callable[[Path, str], Diagnosis]


@pytest.fixture(scope="session")
def observed() -> Generator[Observe]:
    """What `examine` says, by one process that has imported torch, and forks for each script."""
    installed = any(found.name == "opacus" for found in importlib.metadata.distributions())
    path = [str(_SUPPORT / "standin_peers"), *([] if installed else [str(_SUPPORT / "standin_opacus")])]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)]),
    }
    forker = subprocess.Popen(
        [sys.executable, str(_SUPPORT / "doctor_forker.py")], env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def observe(folder: Path, text: str) -> Diagnosis:
        script, kept = folder / "train.py", folder / "kept"
        script.write_text(text)
        kept.mkdir()
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write(json.dumps([str(script), str(kept)]) + "\n")
        forker.stdin.flush()
        assert forker.stdout.readline() == "done\n"
        return diagnosis(script, script, kept)

    with forker:
        yield observe
        forker.kill()
