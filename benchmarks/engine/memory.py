"""Peak memory of one step: each contender in a process of its own."""

import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.contenders import Step
from benchmarks.engine.timing import WARM_UP, synchronise, warm_up

# Seconds that a contender has for its steps and all that goes before them.
PATIENCE = 240
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# Blocks of 64 KiB and more go back to the system when they are freed, so that resident memory is what is held.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def memory_apart(module: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """What a module that prints `memory_here` finds in a fresh process; a reason under "failed" or "too slow"."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *module],
            capture_output=True,
            text=True,
            env=environment | _ALLOCATOR,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return {"too slow": f"getting ready and {WARM_UP + 1} steps took more than {PATIENCE} s"}
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"failed": last[0]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def memory_here(step: Step, device: torch.device) -> dict[str, Any]:
    """Bytes at the highest point of one step, after warm-up, above the level before the very first step."""
    gc.collect()
    level = _now()
    synchronise(device)
    on_device = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    warm_up(step, device)
    gc.collect()
    exact = _clear_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step.step()
    synchronise(device)
    report: dict[str, Any] = {"host bytes": _peak() - level, "over warm-up too": not exact}
    if device.type == "cuda":
        report["device bytes"] = torch.cuda.max_memory_allocated(device) - on_device
    return report


def _clear_peak() -> bool:
    """Start the peak anew; ``False`` where the system cannot (then it counts from the start of the process)."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    return _field("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _now() -> int:
    return _field("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


_UNIT = 1 if sys.platform == "darwin" else 1024


def _field(name: str) -> int | None:
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def environment(threads: int) -> dict[str, str]:
    """The environment of a measuring process: the same number of threads for torch, OpenMP and XLA."""
    return dict(os.environ) | {
        "OMP_NUM_THREADS": str(threads),
        "NPROC": str(threads),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
