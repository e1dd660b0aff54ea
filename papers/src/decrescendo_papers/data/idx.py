"""The IDX format of the MNIST family: a header of big-endian integers, then the values row by row."""

import gzip
import io
import math
import zlib

import numpy as np
from jaxtyping import UInt8

from decrescendo.errors import FileRefused

UNSIGNED_BYTE = 0x08
LARGEST = 2**30
MOST_DIMENSIONS = 8


def parse_idx(content: bytes, name: str = "file") -> UInt8[np.ndarray, "..."]:
    """The array in a gzip-compressed IDX file of unsigned bytes.

    Args:
        content: the whole compressed file.
        name: what to call it in an error.

    Raises:
        FileRefused: not gzip, cut off, not IDX of unsigned bytes, or not as long as its header announces.

    >>> header = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big")
    >>> parse_idx(gzip.compress(header + bytes(range(6))))
    array([[0, 1, 2],
           [3, 4, 5]], dtype=uint8)
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            raw = packed.read(LARGEST + 1)  # a small file can announce, and unpack to, more than there is memory
    except (OSError, EOFError, zlib.error) as error:
        raise FileRefused(f"{name} must be a complete gzip file, got one that does not unpack ({error})") from None
    if len(raw) > LARGEST:
        raise FileRefused(f"{name} must unpack to at most {LARGEST} bytes, got more")
    if len(raw) < 4 or raw[:2] != b"\x00\x00" or raw[2] != UNSIGNED_BYTE or raw[3] == 0:
        raise FileRefused(f"{name} must begin like an IDX file of unsigned bytes, got {raw[:4].hex() or 'nothing'}")
    start = 4 + 4 * raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw[4 : min(start, len(raw) - len(raw) % 4)], dtype=">u4"))
    expected = start + math.prod(shape)
    if len(shape) != raw[3] or len(raw) != expected or len(shape) > MOST_DIMENSIONS:
        raise FileRefused(
            f"{name} must hold the bytes its header announces, in at most {MOST_DIMENSIONS} dimensions, got "
            f"{len(raw)} bytes, announced as shape {shape}"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)
