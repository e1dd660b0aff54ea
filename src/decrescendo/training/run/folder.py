"""Checks that a run can be saved into a folder."""

import itertools
import os
import tempfile
import warnings
from pathlib import Path

from decrescendo.errors import (
    InvalidValue,
)


def check_free(folder: Path) -> None:
    """Check that ``folder`` can be created and written; also called before a training, so that its result is
    not lost."""
    folder = folder.resolve()
    if _is_used(folder):
        raise InvalidValue(f"folder must be new or empty, got folder={str(folder)!r}. A run is never overwritten")
    _check_name(folder)
    parent = next(path for path in folder.parents if path.exists())
    try:
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=parent).cleanup()
    except OSError as error:
        raise InvalidValue(
            f"folder must be in a place that can be written, got folder={str(folder)!r} ({error.strerror})"
        ) from None


def free_folder(folder: Path) -> Path:
    """``folder``, or one beside it, with a warning, if it has something in it: a run that was trained must not be lost
    for its name."""
    _check_name(folder.resolve())
    if folder.is_symlink():
        folder = folder.resolve()  # a link cannot be replaced by a folder
    if not _is_used(folder):
        return folder
    free = next(
        beside for number in itertools.count(2) if not _is_used(beside := folder.with_name(f"{folder.name}-{number}"))
    )
    warnings.warn(f"{folder} is taken, and a run is never overwritten: saved in {free}", stacklevel=3)
    return free


def renamed(staging: Path, target: Path) -> Path:
    """Rename a folder to ``target``, or to one beside it if another process has saved a run there since."""
    try:
        os.replace(staging, target)
    except OSError:
        target = free_folder(target)
        os.replace(staging, target)
    return target


def _check_name(folder: Path) -> None:
    """Check that a folder is none that is worked in, or above: no other can be renamed to it."""
    if folder in (Path.cwd(), *Path.cwd().parents):
        raise InvalidValue(
            f"folder must be another than the one worked in, got folder={str(folder)!r}. Name a new one in it"
        )


def _is_used(folder: Path) -> bool:
    try:
        return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise InvalidValue(
            f"folder must be one that can be read, got folder={str(folder)!r} ({error.strerror})"
        ) from None
