"""Checks that a run can be saved into a folder."""

import itertools
import tempfile
import warnings
from pathlib import Path

from decrescendo.errors import (
    InvalidValue,
)


def check_free(folder: Path) -> None:
    """Check that ``folder`` can be created and written; also called before a training, so that its result is
    not lost."""
    if _is_used(folder):
        raise InvalidValue(
            f"folder must be new or empty, got folder={str(folder)!r}. A run is never overwritten"
        )
    if folder.absolute() == Path.cwd():  # no other folder can be renamed to it
        raise InvalidValue(
            f"folder must be another than the one worked in, got folder={str(folder)!r}. Name a new one in it"
        )
    parent = next(path for path in folder.absolute().parents if path.exists())
    try:
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=parent).cleanup()
    except OSError as error:
        raise InvalidValue(
            f"folder must be in a place that can be written, got folder={str(folder)!r} ({error.strerror})"
        ) from None


def free_folder(folder: Path) -> Path:
    """``folder``, or one beside it, with a warning, if it has something in it: a run that was trained must not be lost
    for its name."""
    if not _is_used(folder):
        return folder
    free = next(
        beside
        for number in itertools.count(2)
        if not _is_used(beside := folder.with_name(f"{folder.name}-{number}"))
    )
    warnings.warn(
        f"{folder} has something in it, and a run is never overwritten: saved in {free}", stacklevel=3
    )
    return free


def _is_used(folder: Path) -> bool:
    try:
        return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise InvalidValue(
            f"folder must be one that can be read, got folder={str(folder)!r} ({error.strerror})"
        ) from None
