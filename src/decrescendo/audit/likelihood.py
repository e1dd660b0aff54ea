"""The best evidence that one record took part in sums of known sampling and noise."""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp
from scipy.stats import binom


def participation_evidence(
    seen: Float[np.ndarray, " ..."], sample_rate: float, noise_multiplier: float, rows: int = 1
) -> Float[np.ndarray, " ..."]:
    """log(1 - p + p exp((2 x - 1)/(2 z^2))): the log-likelihood ratio of one step for a record that pulls by C.

    Adds up over steps. By Neyman and Pearson no other function of the releases distinguishes better, if x is N(0, z^2)
    without the record and N(1, z^2) where it was drawn: the pair of laws that accountants compose.

    Args:
        seen: x, the noisy sum along the record's direction, in units of C; any shape.
        sample_rate: p in (0, 1].
        noise_multiplier: z > 0.
        rows: k that pull together, one person's: then it is the sum over how many of them were drawn.

    >>> participation_evidence(np.array([0.5]), 0.5, 1.0)
    array([0.])
    """
    if rows > 1:
        j = np.arange(rows + 1.0)
        exponents = np.multiply.outer(seen, j) - j**2 / 2
        logs = binom.logpmf(j, rows, sample_rate)
        return np.asarray(logsumexp(exponents / noise_multiplier**2 + logs, axis=-1))
    exponent = (2 * seen - 1) / (2 * noise_multiplier**2)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + exponent)
