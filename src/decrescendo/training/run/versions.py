"""Which packages computed a run."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers.

    >>> sorted(versions())
    ['decrescendo', 'numpy', 'python', 'torch']
    """
    packages = ("decrescendo", "numpy", "torch")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
