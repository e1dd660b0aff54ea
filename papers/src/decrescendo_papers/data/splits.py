"""Splits of data sets that come without one: fixed for ever, the same on every machine, blind to what is split."""

import hashlib

import numpy as np
from jaxtyping import Int

from decrescendo.errors import check_integer


def published_order(name: str, count: int) -> Int[np.ndarray, " count"]:
    """The indices 0 .. count - 1 in the order of the SHA-256 of ``"<name> <index>"``.

    A permutation that depends on nothing but its arguments: not on the data, and not on a random generator
    whose stream a new version may change. Its first part is the train half of a split, the rest the test half.

    Args:
        name: of the data set.
        count: number of examples, >= 0.

    Raises:
        InvalidType: ``count`` is not a whole number.
        InvalidValue: ``count`` < 0.

    >>> published_order("toy", 5).tolist()
    [4, 3, 1, 0, 2]
    """
    size = check_integer("count", count, at_least=0)
    keys = [hashlib.sha256(f"{name} {index}".encode()).digest() for index in range(size)]
    return np.array(sorted(range(size), key=keys.__getitem__), dtype=np.int64)
