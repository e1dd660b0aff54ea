"""Files that are whole or not there, whatever happens while they are written."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Put ``content`` into the file ``path``, on the disk: a crash leaves the old file or none, never half of one.

    Written beside and renamed; two writers at once leave the file of one of them.

    Args:
        path: in a folder that exists.
        content: text is written as UTF-8.
        mode: who may read it.

    Raises:
        OSError: the disk is full, read-only or failing, or the folder is not there. Nothing is left beside the file.
        ValueError: a name that no file can have.
    """
    raw = content.encode() if isinstance(content, str) else content
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, mode)  # mkstemp makes it readable by its owner only
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
