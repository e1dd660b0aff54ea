"""The engine against plain training and against other libraries: ``python -m benchmarks.engine run``, then ``page``.

Results of a kind of device lie in one file, ``results/engine/cpu.jsonl``: a line a workload, sorted by name.
"""

import json
import os
from pathlib import Path


def read(results: Path, device: str) -> dict[str, dict]:
    """By workload; empty where nothing was measured."""
    path = results / f"{device}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {report["workload"]: report for report in map(json.loads, lines)}


def keep(results: Path, device: str, report: dict) -> None:
    """In the place of an earlier one of this workload."""
    found = read(results, device) | {report["workload"]: report}
    beside = results / f"{device}.part"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text("".join(json.dumps(found[name]) + "\n" for name in sorted(found)))
    os.replace(beside, results / f"{device}.jsonl")
