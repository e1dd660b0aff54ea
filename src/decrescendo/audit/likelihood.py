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


def turns_evidence(
    seen: Float[np.ndarray, " steps"],
    strategy: Float[np.ndarray, "bands steps"],
    rates: Float[np.ndarray, " steps"],
) -> float:
    """The log-likelihood ratio of a run of correlated noise for a record that pulls by C at each of its turns.

    S times the sums has independent noise, in which the record at step t is I_t times column t of S. Of one group
    columns share no step, so that each is one release of `participation_evidence`; the group is drawn, so that the
    ratio is the mean over groups.

    Args:
        seen: the noisy sums along the record's direction, each in units of its C_t.
        strategy: row k holds S[t + k, t], as `Plan.strategy`.
        rates: of the group whose turn it is.

    >>> turns_evidence(np.array([0.5]), np.array([[1.0], [0.0]]), np.array([1.0]))  # of one group of two
    0.0
    """
    bands, steps = strategy.shape
    white = np.zeros(steps)
    for k in range(min(bands, steps)):
        white[k:] += strategy[k, : steps - k] * seen[: steps - k]
    along = np.zeros(steps)
    for k in range(min(bands, steps)):
        along[: steps - k] += strategy[k, : steps - k] * white[k:]
    norm = np.linalg.norm(strategy, axis=0)
    each = np.array([participation_evidence(x, p, z) for x, p, z in zip(along / norm**2, rates, 1 / norm, strict=True)])
    return float(logsumexp([each[g::bands].sum() for g in range(bands)]) - np.log(bands))
