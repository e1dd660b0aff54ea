"""Measurements that write to results/ and pages in docs/. A package: else an installed one of that name would win."""

import datetime
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def measured_at() -> dict[str, str]:
    """The commit and the day of a measurement, for its JSON."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {"commit": commit.stdout.strip(), "date": datetime.date.today().isoformat()}


def words(found: Mapping[str, Any]) -> str:
    """When something was measured, for its page.

    >>> words({"commit": "1a2b3c4", "date": "2026-11-23"}), words({})
    ('measured at commit 1a2b3c4 on 2026-11-23', 'measured before commits were written down')
    """
    if "commit" not in found:
        return "measured before commits were written down"
    return f"measured at commit {found['commit']} on {found['date']}"
