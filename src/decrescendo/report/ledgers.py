"""Ledgers from files that people have: a plan, a run, or noise multipliers as JSON or CSV."""

import csv
import io
import os
import re
from pathlib import Path
from typing import Any, cast

from decrescendo.accounting import Ledger, Release
from decrescendo.base import strict_json
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.plan import Plan

COLUMNS = ("noise_multiplier", "sample_rate", "count")


def read_ledger(path: str | os.PathLike[str], *, sample_rate: float | None = None) -> tuple[Ledger, float | None]:
    """The ledger in a file, and the delta it was planned for (``None`` where the file has none).

    Args:
        path: a plan; the folder of a run; a JSON list of noise multipliers, one a step; or CSV: one noise
            multiplier a line, or columns named noise_multiplier, sample_rate, count (the last two optional)
            in a first line.
        sample_rate: in (0, 1], for files that do not say it.

    Raises:
        FileRefused: not readable as any of these.
        InvalidValue: a sample rate is needed and missing, or given although the file says it; a number
            outside its range.
    """
    if Path(path).is_dir():
        _check_rate_is_free(path, sample_rate)
        from decrescendo.training.run import Run  # needs torch, which no other file does

        run = Run.load(path)
        return run.covered, run.plan.budget.delta
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a readable text file, got {error}") from None
    if text.lstrip().startswith("{"):
        _check_rate_is_free(path, sample_rate)
        plan = Plan.load(Path(path))
        return plan.ledger, plan.budget.delta
    if text.lstrip().startswith("["):
        return _from_json(path, text, sample_rate), None
    return _from_csv(path, text, sample_rate), None


def agreed_in(path: str | os.PathLike[str]) -> Agreement | None:
    """What was agreed before the training that a plan file or a run's folder is about; ``None`` for bare noise.

    Accountants cover noise that was fixed in advance. If it was decided during the run, only its filter's budget is a
    guarantee.
    """
    if Path(path).is_dir():
        from decrescendo.training.run import Run  # needs torch, which no other file does

        return Run.load(path).plan
    with Path(path).open("rb") as file:
        begins = file.read(64).lstrip(b"\xef\xbb\xbf \n\r\t")
    return Plan.load(Path(path)) if begins.startswith(b"{") else None


def _check_rate_is_free(path: object, sample_rate: float | None) -> None:
    if sample_rate is not None:
        raise InvalidValue(f"sample_rate must not be given for {path}, which says it, got sample_rate={sample_rate}")


def _needed(path: object, sample_rate: float | None) -> float:
    if sample_rate is None:
        raise InvalidValue(f"sample_rate must be given for {path}, which has noise multipliers only, got none")
    return sample_rate


def _from_json(path: object, text: str, sample_rate: float | None) -> Ledger:
    try:
        values: Any = strict_json.loads(text)
    except ValueError as error:
        raise FileRefused(f"{path} must be a JSON list of noise multipliers, got {error}") from None
    try:
        if isinstance(values, list) and any(isinstance(one, bool) for one in cast("list[object]", values)):
            raise TypeError("a truth value")
        return Ledger.of(values, _needed(path, sample_rate))
    except TypeError as error:
        raise FileRefused(f"{path} must be a JSON list of numbers, one a step, got {error}") from None


def _from_csv(path: object, text: str, sample_rate: float | None) -> Ledger:
    try:
        lines = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileRefused(f"{path} must hold noise multipliers, got {error}") from None
    if not lines:
        raise FileRefused(f"{path} must hold noise multipliers, got an empty file")
    if ";" in "".join(lines[0]):
        raise FileRefused(f"{path} must have commas between values, and points in numbers, got semicolons")
    names = [cell.strip() for cell in lines[0]]
    if names[0] in COLUMNS:
        unknown = sorted(set(names) - set(COLUMNS))
        if unknown or len(set(names)) != len(names) or "noise_multiplier" not in names:
            raise FileRefused(f"{path} must have columns {', '.join(COLUMNS)}, got {', '.join(names)}")
        body = lines[1:]
        if not body:
            raise FileRefused(f"{path} must hold noise multipliers, got only the names of columns")
    elif not re.search(r"\d", names[0]):
        raise FileRefused(f"{path} must have columns {', '.join(COLUMNS)}, got {', '.join(names)}")
    else:
        names, body = ["noise_multiplier"], lines
    if "sample_rate" in names:
        _check_rate_is_free(path, sample_rate)
    releases: list[Release] = []
    for number, row in enumerate(body, start=1):
        if len(row) != len(names):
            raise FileRefused(f"{path} must have {len(names)} values a line, got {len(row)} in row {number}")
        cells = dict(zip(names, row, strict=True))
        try:
            if any("_" in cell for cell in row):  # Python's own way to write 10 as 1_0
                raise ValueError("an underscore")
            releases.append(
                Release(
                    float(cells["sample_rate"]) if "sample_rate" in cells else _needed(path, sample_rate),
                    float(cells["noise_multiplier"]),
                    int(cells.get("count", "1")),
                )
            )
        except DecrescendoError:
            raise
        except ValueError as error:
            raise FileRefused(f"{path} must hold numbers, got {error} in row {number}") from None
    return Ledger(releases)
