"""The types of curves, functions of the progress of training; and that progress."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from decrescendo.errors import check_integer

Curve = Callable[[Float[np.ndarray, " steps"]], Float[np.ndarray, " steps"]]


CurveOrValues = Curve | float | Sequence[float] | Float[np.ndarray, " steps"]


def progress(steps: int) -> Float[np.ndarray, " steps"]:
    """u = t/T for t = 1..T.

    >>> progress(4)
    array([0.25, 0.5 , 0.75, 1.  ])
    """
    count = check_integer("steps", steps, at_least=1)
    return np.arange(1, count + 1) / count
