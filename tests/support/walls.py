"""Memory that ends where a page begins that may not be touched, for processes that are to die if they do."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_kept: list[mmap.mmap] = []


def ending_at_a_wall(numbers: int, kind: str, value: float = 1) -> tuple[int, "np.ndarray[Any, Any]"]:
    """An array of ``value`` whose last number is the last before a wall, and its address; it stays for good."""
    size = numbers * np.dtype(kind).itemsize
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    block = mmap.mmap(-1, pages + mmap.PAGESIZE)
    _kept.append(block)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages), mmap.PAGESIZE, 0) == 0
    array = np.frombuffer(block, kind, numbers, pages - size)
    array[:] = value
    return address + pages - size, array


def walled(script: str, *cases: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    """A process of its own that calls ``case``, which the script defines, for each of these and says ``done``."""
    code = f"from walls import ending_at_a_wall\n{script}\nfor one in {cases!r}:\n    case(*one)\nprint('done')"
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
