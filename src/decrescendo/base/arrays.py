"""Read-only arrays: a plan that an accountant certified cannot change."""

import numpy as np
from jaxtyping import Shaped


def read_only(array: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """A copy of ``array`` that cannot be made writable again: the noise that was certified is what runs.

    A flag alone can be taken back by ``setflags(write=True)``; an array over immutable bytes cannot be written to.

    >>> read_only(np.array([1.0])).setflags(write=True)
    Traceback (most recent call last):
    ValueError: cannot set WRITEABLE flag to True of this array
    """
    return np.ndarray(array.shape, array.dtype, buffer=array.tobytes())
