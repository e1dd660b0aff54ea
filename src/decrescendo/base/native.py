"""Loads the C kernels that `hatch_build.py` compiles where there is a compiler, and runs work on torch's threads.

Kernels are optional: ``DECRESCENDO_COMPILED=0`` disables all.
"""

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEST = 2  # the fastest version of a kernel to use if the processor has it: 2 (AVX-512), 1 (AVX2), 0


def kernel(source: Path, suffix: str = "") -> Any:
    """The function compiled from ``source``, or ``None`` if kernels are disabled or none was built from this version of
    the file and its headers. Its name has their hash in it, and then ``suffix``."""
    if os.environ.get("DECRESCENDO_COMPILED") == "0" or sys.byteorder != "little":
        return None
    try:
        headers = {*source.parent.glob("*.h"), *Path(__file__).parent.glob("rng/*.h")}
        texts = [path.read_bytes() for path in (source, *sorted(headers, key=lambda path: path.name))]
        digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
        library = ctypes.CDLL(str(source.with_name(f"_{source.stem}.so")))
        return getattr(library, f"decrescendo_{source.stem}_{digest}{suffix}")
    except (OSError, AttributeError):
        return None


@functools.cache
def gomp_parallel() -> int | None:
    """The address of GOMP_parallel in torch's OpenMP runtime, if torch is imported; ``None``: work runs on one
    thread."""
    for path in sorted((Path(str(sys.modules["torch"].__file__)).parent / "lib").glob("libgomp*.so*")):
        try:
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, _WORK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def on_all_threads(work: Callable[[], None]) -> None:
    """Call ``work`` on each of torch's threads at once, where torch was imported; on one thread elsewhere.

    Threads of our own would fight with torch's, which spin for a while after their work (docs/adr/0016).

    >>> found = []
    >>> on_all_threads(lambda: found.append(1))
    >>> len(found) >= 1
    True
    """
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    address = gomp_parallel() if threads > 1 else None
    if address is None:
        work()
        return
    errors: list[BaseException] = []

    def guarded(_: int | None) -> None:
        try:
            work()
        except BaseException as error:  # C code would lose the error
            errors.append(error)

    _PARALLEL(address)(_WORK(guarded), None, threads, 0)
    if errors:
        raise errors[0]
