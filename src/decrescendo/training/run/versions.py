"""Which packages computed a run."""

import functools
import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers.

    >>> sorted(versions())
    ['decrescendo', 'numpy', 'python', 'torch']
    """
    packages = ("decrescendo", "numpy", "torch")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


@functools.cache
def _version(name: str) -> str:
    """As installed: a file that is long to parse, read once for all runs of a process."""
    return version(name)
