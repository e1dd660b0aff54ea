"""`examine`: runs a script with observers, and says what is wrong with its privacy."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from decrescendo.doctor.checkpoint import examine_checkpoint
from decrescendo.doctor.compare import compared
from decrescendo.doctor.events import read_events
from decrescendo.doctor.finding import Diagnosis, Finding, ordered
from decrescendo.doctor.folder import examine_folder
from decrescendo.doctor.rules import read_source
from decrescendo.doctor.source import script_of
from decrescendo.doctor.verdicts import Seen, found_in
from decrescendo.errors import FileRefused

STEPS = 3
LONGEST = 180.0  # seconds


def examine(
    path: str | os.PathLike[str], arguments: Sequence[str] = (), *, steps: int = STEPS, timeout: float = LONGEST
) -> Diagnosis:
    """What is wrong with a training.

    Args:
        path: a script or a notebook, which is run; the folder of a run; or a checkpoint of Opacus'.
        arguments: the script's own.
        steps: of the optimiser, after which the script is stopped, >= 1.
        timeout: seconds after which it is stopped all the same.

    Raises:
        FileRefused: there is no such file, or it is none of these.
    """
    path = Path(path)
    if path.is_dir():
        return examine_folder(path)
    if not path.is_file():
        raise FileRefused(f"the doctor must be given a script, a folder or a checkpoint, got {path}: no such file")
    if path.suffix not in (".py", ".ipynb"):
        return examine_checkpoint(path)
    with tempfile.TemporaryDirectory() as kept:
        script = script_of(path, Path(kept))
        findings, unseen = read_source(script)
        facts: list[str] = []
        if steps:
            more, facts, missing = _run(script, arguments, steps, timeout, Path(kept))
            findings, unseen = [*findings, *more], [*unseen, *missing]
        named = [_relative(finding, script, path) for finding in findings]
    return Diagnosis(str(path), ordered(named), tuple(facts), tuple(unseen))


def _run(
    script: Path, arguments: Sequence[str], steps: int, timeout: float, kept: Path
) -> tuple[list[Finding], list[str], list[str]]:
    """The findings of a run, its facts, and what it could not show."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "decrescendo.doctor.runner", str(kept), str(steps), str(script), *arguments]
    unseen = []
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
        errors = done.stderr
    except subprocess.TimeoutExpired:
        errors = ""
        unseen.append(f"all that comes after {timeout:g} seconds, when the script was stopped")
    events = read_events(kept)
    seen = Seen(events)
    end = seen.of("end")
    if end and end[0]["how"] == "error":
        unseen.append(f"all that comes after the script's error: {end[0]['error']}")
    elif not end and not unseen:
        last = errors.strip().splitlines()[-1:] or [""]
        unseen.append(f"the run, which ended by itself: {last[0]}")
    if not seen.of("step") and not seen.of("bypass"):
        unseen.append("a step of the training: none was reached, and what follows is read from the source alone")
        return found_in(seen)[0], [], unseen
    findings, facts = found_in(seen)
    moved, said, missing = compared(kept, seen)
    return [*findings, *moved], [*facts, *said], [*unseen, *missing]


def _relative(finding: Finding, script: Path, path: Path) -> Finding:
    """Files below the script's folder by their short names, and a notebook by its own."""
    where = Path(finding.file)
    if finding.file and where.resolve() == script.resolve():
        file = path.name
    else:
        file = os.path.relpath(where, path.parent) if finding.file else path.name
    return Finding(finding.check, finding.certainty, finding.says, finding.costs, file, finding.line)
