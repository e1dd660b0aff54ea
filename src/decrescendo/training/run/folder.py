"""Checks that a run can be saved into a folder."""

import tempfile
from pathlib import Path

from decrescendo.errors import (
    InvalidValue,
)


def check_free(folder: Path) -> None:
    """Check that ``folder`` can be created and written; also called before a training, so that its result is
    not lost."""
    try:
        used = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise InvalidValue(
            f"folder must be one that can be read, got folder={str(folder)!r} ({error.strerror})"
        ) from None
    if used:
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
