"""The doctor finds every fault that was put into a training, and none in a clean one."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import doctor_trainings as trainings
import pytest
from often import some

from decrescendo.doctor import Certainty, Diagnosis
from decrescendo.doctor.examine import diagnosis

_SUPPORT = Path(__file__).parents[1] / "support"
Observe = Callable[[Path, str], Diagnosis]


@pytest.fixture(scope="module")
def observed() -> Generator[Observe]:
    """What `examine` says, by one process that has imported torch, and forks for each script."""
    installed = any(found.name == "opacus" for found in importlib.metadata.distributions())
    path = [] if installed else [str(_SUPPORT / "standin_opacus")]
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


@pytest.mark.parametrize("name", some(trainings.CLEAN | trainings.CLEAN_BY_HAND, 3))
def test_nothing_is_found_in_a_clean_training(observed: Observe, tmp_path: Path, name: str) -> None:
    found = observed(tmp_path, (trainings.CLEAN | trainings.CLEAN_BY_HAND)[name])
    assert not found.findings, found.describe()
    assert not found.unseen, found.describe()


@pytest.mark.parametrize("name", some(trainings.FAULTY, 6))
def test_a_fault_with_opacus_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()


@pytest.mark.parametrize("name", some(trainings.FAULTY_BY_HAND, 3))
def test_a_fault_of_a_loop_by_hand_is_found(observed: Observe, tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY_BY_HAND[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()
    if check in ("sensitivity", "noise"):
        assert any(f.check == check and f.certainty is Certainty.PROVEN for f in found.findings), (
            found.describe()
        )


def test_a_clipped_batch_is_found_where_large_records_have_no_gradient(
    observed: Observe, tmp_path: Path
) -> None:
    """With these weights the model gets the first record right, and ever more so the larger it is, or its negative."""
    check, text = trainings.FAULTY_BY_HAND["the batch is clipped"]
    found = observed(tmp_path, text.replace("import torch\n", "import torch\ntorch.manual_seed(1032)\n", 1))
    assert check in {finding.check for finding in found.findings}, found.describe()
