"""Files that the page opens: plans, runs, noise multipliers, and stores of many runs."""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from decrescendo.accounting import Ledger
from decrescendo.base.assumption import assumption_lines
from decrescendo.base.assumptions import assumptions_in
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue
from decrescendo.plans import AdaptivePlan, Plan
from decrescendo.plans.agreement import Agreement
from decrescendo.report.ledgers import read_ledger
from decrescendo.studio.facts import Subject
from decrescendo.training.run import entries

RUN_FILES = ("run.json", "plan.json", "adaptive_plan.json")
SQLITE = b"SQLite format 3\0"
Opened = tuple[list[Subject], dict[str, Any] | None]


def from_path(path: Path, *, sample_rate: float, delta: float) -> Opened:
    """What is at ``path``: a file, or the folder of a run. See `from_files`."""
    try:
        if path.is_dir():
            files = {name: (path / name).read_bytes() for name in RUN_FILES if (path / name).is_file()}
            if "run.json" not in files:
                raise FileRefused(f"{path} must be the folder of a run, got one without run.json")
            return from_files(files, sample_rate=sample_rate, delta=delta)
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                return _store(path)
        return from_files({path.name: path.read_bytes()}, sample_rate=sample_rate, delta=delta)
    except OSError as error:
        raise FileRefused(f"{path} must be a readable file, got {error.strerror or error}") from None


def from_files(files: Mapping[str, bytes], *, sample_rate: float, delta: float) -> Opened:
    """What some files hold, by their names: subjects to show, and of a store its table.

    Args:
        files: a plan, a store, or noise multipliers as `report.ledgers.read_ledger` takes them; or ``run.json`` with
            ``plan.json`` or ``adaptive_plan.json`` of a run's folder.
        sample_rate, delta: for files that do not say them.

    Raises:
        FileRefused, InvalidValue: none of these.
    """
    if "run.json" in files:
        return [_run(files)], None
    if len(files) != 1:
        raise FileRefused(
            f"one file must be opened at a time, or run.json with plan.json of a run, got {', '.join(files) or 'none'}"
        )
    ((name, content),) = files.items()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(name).name or "file")
        try:
            path.write_bytes(content)
        except (OSError, ValueError):  # of the page's own making: "..", or too long for a name
            raise FileRefused(f"a file must have a name that a file can have, got {name[:40]!r}") from None
        try:
            if content.startswith(SQLITE):
                return _store(path)
            if content.lstrip(b"\xef\xbb\xbf \n\r\t").startswith(b"{"):
                return [Subject.of(name, Plan.load(path))], None
            return [_ledger(path, sample_rate, delta)], None
        except DecrescendoError as error:
            raise FileRefused(str(error).replace(f"{folder}/", "")) from None


def _ledger(path: Path, sample_rate: float, delta: float) -> Subject:
    try:
        ledger, _ = read_ledger(path)
        note = f"Judged at delta {delta:g}, from the controls."
    except InvalidValue as error:
        if "sample_rate must be given" not in str(error):
            raise
        ledger, _ = read_ledger(path, sample_rate=sample_rate)
        note = f"Judged at sample rate {sample_rate:.4g} and delta {delta:g}, from the controls."
    if not len(ledger):
        raise FileRefused(f"{path} must hold noise multipliers, got none")
    return Subject(path.name, ledger, delta, notes=(note,))


def _run(files: Mapping[str, bytes]) -> Subject:
    content = entries.checked_content(files["run.json"], "run.json")
    kind = "adaptive_plan" if content["version"] == entries.ADAPTIVE_VERSION else "plan"
    agreed_file = files.get(f"{kind}.json")
    if agreed_file is None:
        raise FileRefused(f"run.json must be opened with {kind}.json of the same folder, got it alone")
    if entries.sha256_of(agreed_file) != content["plan_sha256"]:
        raise FileRefused(f"{kind}.json must be the file that run.json was written with, got another one")
    text = agreed_file.decode("utf-8", errors="replace")
    try:
        ledger, guarantee = (
            entries.read_ledger(content["ledger"]),
            entries.read_guarantee(content["guarantee"]),
        )
        notes = [f"A run: {ledger.steps:,} steps were taken, in {content['seconds']:.1f} s."]
        notes += [f"{name}: {value:.4g}" for name, value in content["metrics"].items()]
        notes += [content["stopped"]] if content.get("stopped") else []
        telemetry = entries.read_telemetry(content.get(entries.TELEMETRY))
        notes += assumption_lines(assumptions_in(content.get("provenance", {})))
        if kind == "plan":
            plan = Plan.from_json(text, source="plan.json")
            subject = Subject.of("run", plan, notes=tuple(notes))
            clips = content.get(entries.CLIP_NORM) or subject.clip_norm  # those that followed telemetry, of steps taken
            about = {
                "promise": str(guarantee),
                "guarantee": guarantee,
                "clip_norm": clips,
                "telemetry": telemetry,
            }
            return replace(subject, **about)
        agreed = AdaptivePlan.from_json(text, source="adaptive_plan.json")
        notes.append(
            "Noise was decided during the run: the filter's budget is its price, whatever accountants say below."
        )
        return Subject(
            "adaptive run",
            ledger,
            agreed.budget.delta,
            str(guarantee),
            clip_norm=content["clip_norm"],
            notes=tuple(notes),
            guarantee=guarantee,
            adaptive=True,
            telemetry=telemetry,
        )
    except (*entries.UNREADABLE, DecrescendoError) as error:
        raise FileRefused(f"run.json must hold a run, got one that does not fit together ({error})") from None


def _store(path: Path) -> Opened:
    from decrescendo.training.store import Store

    with closing(Store(path)) as store:
        runs = store.entries()
        subjects = [_agreed(entry.label or entry.id[:8], entry.agreed, entry.released) for entry in runs]
        rows = [
            [
                entry.label or entry.id[:8], entry.who, entry.started[:16], entry.agreed.budget.epsilon,
                entry.agreed.budget.delta, f"{entry.released.steps} of {entry.agreed.steps}", entry.state,
            ]
            for entry in runs
        ]  # fmt: skip
        return subjects, {
            "title": f"{store.dataset}: {store.rows:,} rows, one {store.budget.protected} protected",
            "words": store.describe(),
            "budget": store.budget.epsilon,
            "rows": rows,
        }


def _agreed(title: str, agreed: Agreement, released: Ledger) -> Subject:
    if agreed.planned is None:
        note = "Noise is decided during the run: the filter's budget is its price."
        told = agreed.guarantee
        return Subject(title, released, agreed.budget.delta, str(told), notes=(note,), guarantee=told, adaptive=True)
    return Subject.of(title, Plan.from_json(agreed.to_json()), notes=(f"Released: {released.steps:,} steps.",))
