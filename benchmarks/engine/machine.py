"""What it was measured on: kinds of hardware and versions, no names of machines."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.contenders import CONTENDERS


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, GPU."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
    return found


def versions() -> dict[str, str]:
    """Python, and the packages of all contenders that are installed."""
    names = sorted({name for contender in CONTENDERS.values() for name in contender.packages})
    found = {"python": platform.python_version()}
    for name in names:
        if name == "decrescendo":
            import decrescendo

            found[name] = decrescendo.__version__
            continue
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
