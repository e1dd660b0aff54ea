"""Privacy curves of noise multipliers that decay over epochs, the papers' baselines."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from decrescendo.errors import check_integer, check_real
from decrescendo.plans.progress import Curve


def _epoch(epochs: int) -> Callable[[Float[np.ndarray, " steps"]], Float[np.ndarray, " steps"]]:
    count = check_integer("epochs", epochs, at_least=1)
    return lambda u: np.clip(np.ceil(u * count - 1e-9) - 1, 0, count - 1)


def exponential_noise_decay(k: float, *, epochs: int) -> Curve:
    """Privacy curve 1/z_e for z_e = z_0 exp(-k e) in epoch e = 0, 1, ..; k >= 0. Yu et al. 2019.

    >>> from decrescendo.plans.progress import progress
    >>> exponential_noise_decay(np.log(2.0), epochs=2)(progress(4)).round(6)
    array([1., 1., 2., 2.])
    """
    rate, epoch = check_real("k", k, at_least=0), _epoch(epochs)
    return lambda u: np.exp(rate * epoch(u))


def step_noise_decay(k: float, *, period: int, epochs: int) -> Curve:
    """Privacy curve 1/z_e for z_e = z_0 k^floor(e/period); 0 < k < 1. Yu et al. 2019.

    >>> from decrescendo.plans.progress import progress
    >>> step_noise_decay(0.5, period=2, epochs=4)(progress(4))
    array([1., 1., 2., 2.])
    """
    factor, epoch = check_real("k", k, above=0, below=1), _epoch(epochs)
    every = check_integer("period", period, at_least=1)
    return lambda u: factor ** -np.floor(epoch(u) / every)


def time_noise_decay(k: float, *, epochs: int) -> Curve:
    """Privacy curve 1/z_e for z_e = z_0/(1 + k e); k >= 0. Yu et al. 2019.

    >>> from decrescendo.plans.progress import progress
    >>> time_noise_decay(1.0, epochs=3)(progress(3))
    array([1., 2., 3.])
    """
    rate, epoch = check_real("k", k, at_least=0), _epoch(epochs)
    return lambda u: 1 + rate * epoch(u)


def polynomial_noise_decay(k: float, *, z_0: float, z_end: float, period: int, epochs: int) -> Curve:
    """Privacy curve 1/z_e for z_e = (z_0 - z_end)(1 - e/period)^k + z_end, z_end from epoch ``period`` on. Yu et al.

    Args:
        k: power, > 0.
        z_0, z_end: first and last noise multiplier up to one common factor, which calibration sets; both > 0.
        period: epochs until z_end is reached, >= 1.

    >>> from decrescendo.plans.progress import progress
    >>> 1 / polynomial_noise_decay(1.0, z_0=3.0, z_end=1.0, period=2, epochs=4)(progress(4))
    array([3., 2., 1., 1.])
    """
    power, epoch = check_real("k", k, above=0), _epoch(epochs)
    first, last = check_real("z_0", z_0, above=0), check_real("z_end", z_end, above=0)
    until = check_integer("period", period, at_least=1)
    return lambda u: 1 / ((first - last) * np.maximum(1 - epoch(u) / until, 0.0) ** power + last)
