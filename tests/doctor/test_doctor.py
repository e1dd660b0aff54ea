"""The doctor finds every fault that was put into a training, and none in a clean one."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
import doctor_trainings as trainings

from decrescendo.doctor import Certainty, Diagnosis
from decrescendo.doctor.examine import diagnosis

_STANDIN = Path(__file__).parents[1] / "support" / "standin_opacus"


def observed(folder: Path, text: str) -> Diagnosis:
    """What `examine` says, with the script in a fork of this process: torch is imported already."""
    script, kept = folder / "train.py", folder / "kept"
    script.write_text(text)
    kept.mkdir()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with open(folder / "output", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            import warnings

            warnings.simplefilter("ignore")
            os.chdir(folder)
            if importlib.util.find_spec("opacus") is None:
                sys.path.insert(1, str(_STANDIN))
            from decrescendo.doctor.runner import main

            main(kept, 3, str(script), [])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return diagnosis(script, script, kept)


@pytest.mark.parametrize("name", trainings.CLEAN | trainings.CLEAN_BY_HAND)
def test_nothing_is_found_in_a_clean_training(tmp_path: Path, name: str) -> None:
    found = observed(tmp_path, (trainings.CLEAN | trainings.CLEAN_BY_HAND)[name])
    assert not found.findings, found.describe()
    assert not found.unseen, found.describe()


@pytest.mark.parametrize("name", trainings.FAULTY)
def test_a_fault_with_opacus_is_found(tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()


@pytest.mark.parametrize("name", trainings.FAULTY_BY_HAND)
def test_a_fault_of_a_loop_by_hand_is_found(tmp_path: Path, name: str) -> None:
    check, text = trainings.FAULTY_BY_HAND[name]
    found = observed(tmp_path, text)
    assert check in {finding.check for finding in found.findings}, found.describe()
    if check in ("sensitivity", "noise"):
        assert any(f.check == check and f.certainty is Certainty.PROVEN for f in found.findings), found.describe()
