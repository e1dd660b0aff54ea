"""`Strategy`: the matrix that says how the noise of different steps is correlated, and how large it is."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from decrescendo.base.arrays import read_only
from decrescendo.errors import InvalidValue

# Weights of the recursion are multiples of 2^-WEIGHT_BITS, so that sums of noise on a grid are exact in integers.
WEIGHT_BITS = 12
# Significant bits of a diagonal entry, at most: diagonal times weight, and the ratio of the two, are exact in float64.
_DIAGONAL_BITS = 30
_LARGEST_WEIGHT = 2.0 ** (52 - _DIAGONAL_BITS - WEIGHT_BITS)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """A lower-triangular matrix S with b bands: the noise of a run is S^-1 xi, xi independent and standard normal.

    Written as one row a band: ``matrix[k, t]`` is S[t + k, t], 0 where t + k is beyond the last step. So column t of
    ``matrix`` is column t of S, and its norm takes the place of 1/z_t in the accounts of the release of step t. The
    noise of step t on a sum of sensitivity 1 is

        n_t = (xi_t - sum_{0 < k < b} S[t, t - k] n_{t-k}) / S[t, t].

    Args:
        matrix: shape (b, T), b >= 2; the diagonal is above 0 and of at most 30 significant bits, and ratios
            S[t, t - k] / S[t, t] are multiples of 2^-12 below 1024: `rounded` makes it so.

    Raises:
        InvalidValue: a matrix that is anything else.

    >>> strategy = Strategy.rounded([[1.0, 1.0, 1.0], [-0.3, -0.3, 0.0]])
    >>> strategy.weights(1), 1 / strategy.noise_multiplier
    (array([-0.30004883]), array([1.04404..., 1.04404..., 1.        ]))
    """

    matrix: Float[np.ndarray, "bands steps"]

    def __init__(self, matrix: object) -> None:
        rows = _checked(matrix)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = _by_row(rows) / rows[0]
            whole = weights * 2.0**WEIGHT_BITS % 1 == 0
        if not whole.all() or (_shortened(rows[0]) != rows[0]).any():
            raise InvalidValue(
                f"a strategy must have ratios S[t, t - k] / S[t, t] that are multiples of 2^-{WEIGHT_BITS}, and a "
                f"diagonal of {_DIAGONAL_BITS} bits, got others. Make it with Strategy.rounded"
            )
        object.__setattr__(self, "matrix", read_only(rows))

    @classmethod
    def rounded(cls, matrix: object, scale: float = 1.0) -> "Strategy":
        """The strategy nearest to ``scale`` times ``matrix``; what is beyond the last step is left out."""
        rows = _checked(matrix, beyond=True)
        weights = np.rint(_by_row(rows) / rows[0] * 2.0**WEIGHT_BITS) / 2.0**WEIGHT_BITS
        if np.abs(weights).max(initial=0.0) >= _LARGEST_WEIGHT:
            raise InvalidValue(
                f"a strategy must have ratios S[t, t - k] / S[t, t] below {_LARGEST_WEIGHT:g}, got "
                f"{np.abs(weights).max():.4g}. Its columns move too fast"
            )
        return cls(_by_column(weights * _shortened(scale * rows[0]), _shortened(scale * rows[0])))

    def __reduce__(self) -> tuple[object, ...]:
        return Strategy, (self.matrix,)  # a copy's array is as read-only as its own

    @property
    def bands(self) -> int:
        """b."""
        return len(self.matrix)

    @property
    def steps(self) -> int:
        """T."""
        return self.matrix.shape[1]

    @property
    def noise_multiplier(self) -> Float[np.ndarray, " steps"]:
        """z_t = 1 over the norm of column t, what accountants must count: rounded down.

        Also of the noise that `scale` makes, which is 1/S[t, t] but for its own rounding.
        """
        largest = np.abs(self.matrix).max(axis=0)
        norm = largest * np.sqrt(np.sum((self.matrix / largest) ** 2, axis=0))
        return (1 - (self.bands + 16) * 2.0**-52) / norm

    def weights(self, step: int) -> Float[np.ndarray, " bands_less_1"]:
        """S[t, t - k] / S[t, t] for k = 1 .. b - 1, of the step t from 0: multiples of 2^-12; 0 where t < k."""
        return (
            np.array([self.matrix[k, step - k] if k <= step else 0.0 for k in range(1, self.bands)])
            / (self.matrix[0, step])
        )

    def scale(self, step: int) -> float:
        """1/S[t, t] of the step t from 0: the part of the noise that is new, on a sum of sensitivity 1."""
        return 1.0 / float(self.matrix[0, step])

    def noise_std(self) -> Float[np.ndarray, " steps"]:
        """The standard deviation of n_t, one a step, from 0: of the whole noise on a sum of sensitivity 1."""
        before = np.zeros((self.bands - 1, self.bands - 1))  # covariance of the last noises, the latest first
        found = np.empty(self.steps)
        for step in range(self.steps):
            weights = self.weights(step)
            shared = -before @ weights
            found[step] = variance = self.scale(step) ** 2 - weights @ shared
            before[1:, 1:] = before[:-1, :-1].copy()
            before[0, 0] = variance
            before[0, 1:] = before[1:, 0] = shared[:-1]
        return np.sqrt(found)

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self.matrix, other.matrix) if isinstance(other, Strategy) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.matrix.shape, self.matrix.tobytes()))


def _checked(matrix: object, *, beyond: bool = False) -> Float[np.ndarray, "bands steps"]:
    try:
        rows = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        rows = np.zeros((0, 0))
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise InvalidValue(f"a strategy must be an array of shape (bands, steps), bands >= 2, got {rows.shape}")
    left_out = np.arange(rows.shape[1]) + np.arange(len(rows))[:, None] >= rows.shape[1]
    if beyond:
        rows[left_out] = 0.0
    if not np.isfinite(rows).all() or rows[0].min() <= 0 or rows[left_out].any():
        raise InvalidValue(
            "a strategy must have finite values, a diagonal above 0, and 0 beyond the last step, got others"
        )
    return rows


def _by_row(columns: Float[np.ndarray, "bands steps"]) -> Float[np.ndarray, "bands_less_1 steps"]:
    """S[t, t - k] at [k - 1, t], from S[t + k, t] at [k, t]."""
    found = np.zeros((len(columns) - 1, columns.shape[1]))
    for k in range(1, min(len(columns), columns.shape[1])):
        found[k - 1, k:] = columns[k, :-k]
    return found


def _by_column(
    rows: Float[np.ndarray, "bands_less_1 steps"], diagonal: Float[np.ndarray, " steps"]
) -> Float[np.ndarray, "bands steps"]:
    """The inverse of `_by_row`, with the diagonal."""
    found = np.zeros((len(rows) + 1, diagonal.size))
    found[0] = diagonal
    for k in range(1, min(len(found), diagonal.size)):
        found[k, :-k] = rows[k - 1, k:]
    return found


def _shortened(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """``values`` rounded to `_DIAGONAL_BITS` significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**_DIAGONAL_BITS) / 2.0**_DIAGONAL_BITS, exponent)
