"""The versions of the packages that computed a run."""

import functools
import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that determine the numbers.

    >>> sorted(versions())
    ['decrescendo', 'numpy', 'python', 'torch']
    """
    packages = ("decrescendo", "numpy", "torch")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


@functools.cache
def _version(name: str) -> str:
    """The installed version; its metadata are slow to parse, so they are read once per process."""
    return version(name)
