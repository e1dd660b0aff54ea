"""Folders: a run of this library, or one with checkpoints of Opacus'."""

from pathlib import Path

from decrescendo.accounting import rounded
from decrescendo.doctor.budgets import bracket_of
from decrescendo.doctor.checkpoint import examine_checkpoint
from decrescendo.doctor.finding import Certainty, Diagnosis, Finding, ordered
from decrescendo.errors import DecrescendoError, FileRefused
from decrescendo.training.run import Run

_ENDINGS = (".pt", ".pth", ".ckpt")


def examine_folder(path: Path) -> Diagnosis:
    """A run of this library, accounted again; or the checkpoints in a folder, the newest last.

    Raises:
        FileRefused: neither a run nor a checkpoint is in it.
    """
    files = sorted((file for file in path.iterdir() if file.suffix in _ENDINGS), key=lambda file: file.stat().st_mtime)
    if (path / "plan.json").exists() or not files:
        return _run(path)
    read = [examine_checkpoint(file) for file in files]
    return Diagnosis(
        str(path), ordered([f for one in read for f in one.findings]),
        tuple(f"{one.subject}: {fact}" for one in read for fact in one.facts),
    )  # fmt: skip


def _run(path: Path) -> Diagnosis:
    try:
        run = Run.load(path)
    except DecrescendoError as error:
        raise FileRefused(f"{path} must be the folder of a run, or have checkpoints in it: {error}") from None
    findings: list[Finding] = []
    said = run.guarantee
    budget = run.plan.budget
    facts = [str(said), f"{run.covered!r}"]
    ends = bracket_of(run.covered, said.delta) if said.kind != "estimate" and budget.unit.value == "example" else None
    if ends is not None and ends[0] > said.epsilon:
        findings.append(Finding(
            "budget", Certainty.RECOMPUTED, f"the run says epsilon {said.epsilon:g}, its ledger costs at least "
            f"{rounded(ends[0], 'down', 6)}", "the guarantee does not hold", str(path),
        ))  # fmt: skip
    if said.kind == "estimate":
        findings.append(Finding(
            "budget", Certainty.RECOMPUTED, f"the run's epsilon is an estimate of {said.accountant}, no bound",
            "compute a bound with the accountant Pld", str(path),
        ))  # fmt: skip
    facts += [str(assumption) for assumption in run.assumptions]
    return Diagnosis(str(path), ordered(findings), tuple(facts))
