"""Files of public data sets: found locally or downloaded once, and never believed without their SHA-256."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from decrescendo.base import require
from decrescendo.errors import DataUnavailable, FileRefused

FOLDER_VARIABLE = "DECRESCENDO_DATA"


def sha256_hex(content: bytes) -> str:
    """SHA-256 of ``content`` in hexadecimal digits.

    >>> sha256_hex(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a data set: where it comes from and what its bytes must be.

    Args:
        folder: name of the data set's folder.
        name: file name.
        url: where it is downloaded from; ``None`` for a file that can only be put into a folder.
        sha256: what ``digest`` gives for the file as downloaded.
        digest: SHA-256 of the file, or of what is in it, for an archive whose bytes are made anew on each request.
            Raises ``ValueError`` for what it cannot read.
    """

    folder: str
    name: str
    url: str | None
    sha256: str
    digest: Callable[[bytes], str] = sha256_hex


def read(file: RemoteFile) -> bytes:
    """The verified bytes of ``file``, from the folder named by ``DECRESCENDO_DATA`` or downloaded.

    Edge cases:
        a file in ``DECRESCENDO_DATA`` (as ``<folder>/<name>`` or flat as ``<name>``) with other bytes:
            refused by name unless the other layout has the right one; never replaced, never passed over.
        an interrupted or wrong download: never enters the cache.
        a damaged file in the cache: downloaded again.

    Raises:
        FileRefused: the bytes are not those of ``file``.
        DataUnavailable: nothing local, and no download or a failed one.
        MissingExtra: pooch is needed and not installed.
    """
    found = find_local(file)
    if found is not None:
        return found
    content = _download(file).read_bytes()
    # What is parsed is what was hashed: the file could have changed on disk since pooch looked at it.
    if not _is_right(file, content):
        raise FileRefused(f"the cached {file.name} must have SHA-256 {file.sha256[:16]}.., got other bytes")
    return content


def find_local(file: RemoteFile) -> bytes | None:
    """The verified bytes of ``file`` from the folder named by ``DECRESCENDO_DATA``, ``None`` if it is not there.

    Raises:
        FileRefused: only other bytes are there under its name.
    """
    refused: list[Path] = []
    local = os.environ.get(FOLDER_VARIABLE)
    for path in [] if not local else [Path(local) / file.folder / file.name, Path(local) / file.name]:
        if path.is_file():
            content = path.read_bytes()
            if _is_right(file, content):
                return content
            refused.append(path)
    if refused:
        raise FileRefused(
            f"{refused[0]} must have SHA-256 {file.sha256[:16]}.., got other bytes. "
            f"Is it damaged, or of another data set? Replace it, or unset {FOLDER_VARIABLE} to download"
        )
    return None


def _is_right(file: RemoteFile, content: bytes) -> bool:
    try:
        return file.digest(content) == file.sha256
    except ValueError:
        return False


def _download(file: RemoteFile) -> Path:
    if file.url is None:
        raise DataUnavailable(
            f"{file.folder}/{file.name} must be in a folder named in {FOLDER_VARIABLE}, got none. "
            "There is no address to download exactly these bytes from"
        )
    pooch = require("pooch")
    folder = Path(pooch.os_cache("decrescendo")) / file.folder
    plain = file.digest is sha256_hex
    if not plain and (folder / file.name).is_file() and not _is_right(file, (folder / file.name).read_bytes()):
        (folder / file.name).unlink()  # damaged: pooch compares hashes of whole files only

    def checked(url: str, target: object, caller: object) -> None:
        pooch.HTTPDownloader()(url, target, caller)
        if not _is_right(file, Path(str(target)).read_bytes()):
            raise ValueError("other contents")

    try:
        return Path(
            pooch.retrieve(
                file.url,
                known_hash=f"sha256:{file.sha256}" if plain else None,
                fname=file.name,
                path=folder,
                downloader=None if plain else checked,
            )
        )
    except OSError as error:
        why = type(error).__name__ + (f" ({error.strerror})" if error.strerror else "")
        raise DataUnavailable(
            f"{file.folder}/{file.name} must be on this machine or downloadable, got {why} from {file.url}. "
            f"Download it by other means into a folder and name the folder in {FOLDER_VARIABLE}"
        ) from None  # the five errors below it say nothing that this does not
    except ValueError as error:
        # The hash is compared before pooch moves the download into the cache; a wrong one is a ValueError.
        raise FileRefused(
            f"the download of {file.name} must have SHA-256 {file.sha256[:16]}.., got other bytes from "
            f"{file.url}. Try again, or put the file into a folder named in {FOLDER_VARIABLE}"
        ) from error
