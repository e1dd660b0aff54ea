"""Is the noise on coordinates that no record touches as large as it was said to be? An exact test."""

import numpy as np
from jaxtyping import Float
from scipy.stats import chi2

from decrescendo.errors import InvalidValue


def noise_p_value(squares: Float[np.ndarray, " steps"], coordinates: int) -> float:
    """p-value of the released noise under its declared size, two-sided, over each step and all steps together.

    Args:
        squares: for each step, the sum over the coordinates of (x_t / z_t)^2, x in units of C_t: chi-squared with as
            many degrees of freedom as coordinates, if the noise is what the release says.
        coordinates: how many coordinates nothing but noise falls on, >= 1.

    Returns:
        Twice the smaller of the two-sided p-value of the total and T times the smallest two-sided p-value of a step;
        at most 1. Exact up to that correction for looking several times.

    Raises:
        InvalidValue: no steps or no coordinates; noise that is not a number.

    >>> rng = np.random.default_rng(0)
    >>> squares = (rng.standard_normal((10, 1000)) ** 2).sum(axis=1)
    >>> noise_p_value(squares, 1000) > 0.05, noise_p_value(0.9 * squares, 1000) < 1e-6
    (True, True)
    """
    if coordinates < 1 or not squares.size:
        raise InvalidValue(
            f"noise must be inspected on at least one coordinate in one step, got {coordinates} and {squares.size}"
        )
    if np.isnan(squares).any():
        raise InvalidValue("noise must be a number at each inspected coordinate, got NaN. What was released is broken")

    def two_sided(value: Float[np.ndarray, " n"], freedom: int) -> Float[np.ndarray, " n"]:
        return 2 * np.minimum(chi2.cdf(value, freedom), chi2.sf(value, freedom))

    total = float(two_sided(np.array([squares.sum()]), coordinates * squares.size)[0])
    step = float(two_sided(squares, coordinates).min()) * squares.size
    return min(1.0, 2 * min(total, step))
