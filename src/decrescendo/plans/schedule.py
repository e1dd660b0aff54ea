"""`Schedule`: the noise multiplier and the clip norm of every step of a run."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from decrescendo.base.arrays import read_only
from decrescendo.base.limits import SMALLEST_CLIP_NORM
from decrescendo.errors import InvalidValue, check_array, check_integer

# The most steps: more would take hours of calibration and gigabytes.
LARGEST_STEPS = 10_000_000


def check_steps(steps: object) -> int:
    """``steps`` as an ``int`` in 1 .. `LARGEST_STEPS`, or an error that says what to change.

    >>> check_steps(10**12)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: steps must be <= 10000000, got steps=1000000000000. ...
    """
    count = check_integer("steps", steps, at_least=1)
    if count > LARGEST_STEPS:
        shown = count if count < 10**18 else f"a number of {len(str(count))} digits" if count < 10**4000 else "more"
        raise InvalidValue(
            f"steps must be <= {LARGEST_STEPS}, got steps={shown}. A schedule has a value for each; take larger batches"
        )
    return count


@final
@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Noise multiplier z_t and clip norm C_t for t = 1..T; index 0 of the arrays is step 1.

    Privacy sees z_t only; learning sees both. The noise added to a sum clipped to C_t has standard deviation
    s_t = z_t C_t (Du et al. write sigma_t for s_t).

    Args:
        noise_multiplier: z_t >= 0, finite, one value a step. Zero means no noise, and no privacy.
        clip_norm: C_t >= 1e-12, the same length; infinite (no clipping) only where there is no noise either.

    Raises:
        InvalidValue: a value outside its range (named by its index), or lengths that differ, or no step at all.

    >>> Schedule([2.0, 1.0], [1.0, 0.5]).noise_std
    array([2. , 0.5])
    """

    noise_multiplier: Float[np.ndarray, " steps"]
    clip_norm: Float[np.ndarray, " steps"]

    def __init__(self, noise_multiplier: object, clip_norm: object) -> None:
        noise = check_array("noise_multiplier", noise_multiplier, at_least=0)
        clip = _clip_norms(clip_norm, noise)
        if noise.size == 0:
            raise InvalidValue("a schedule must have at least one step, got noise_multiplier of length 0")
        if noise.size != clip.size:
            raise InvalidValue(
                "noise_multiplier and clip_norm must have one value a step each, "
                f"got {noise.size} and {clip.size} values"
            )
        object.__setattr__(self, "noise_multiplier", read_only(noise))
        object.__setattr__(self, "clip_norm", read_only(clip))

    def __reduce__(self) -> tuple[object, ...]:
        # A copy's arrays are as read-only as its own.
        return Schedule, (self.noise_multiplier, self.clip_norm)

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return int(self.noise_multiplier.size)

    @property
    def noise_std(self) -> Float[np.ndarray, " steps"]:
        """Standard deviation s_t = z_t C_t of the noise added to the clipped sum."""
        return np.where(self.noise_multiplier == 0, 0.0, self.noise_multiplier * _bounded(self.clip_norm))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return bool(
            np.array_equal(self.noise_multiplier, other.noise_multiplier)
            and np.array_equal(self.clip_norm, other.clip_norm)
        )

    def __hash__(self) -> int:
        return hash((self.noise_multiplier.tobytes(), self.clip_norm.tobytes()))


def _clip_norms(value: object, noise: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """C_t > 0, infinite only where z_t is 0."""
    hint = "It must stay above 0 up to the last step, where u is 1"
    try:
        given = np.asarray(value)
    except ValueError:
        given = np.array(None)  # `check_array` says what it is
    if given.dtype.kind != "f" or given.shape != noise.shape:
        return check_array("clip_norm", value, above=0, hint=hint)
    free = (noise == 0) & (given == np.inf)
    clip = check_array("clip_norm", np.where(free, 1.0, given), above=0, hint=hint)
    if clip.size and clip.min() < SMALLEST_CLIP_NORM:
        raise InvalidValue(
            f"clip_norm must be at least {SMALLEST_CLIP_NORM:g} at every step, got clip_norm[{clip.argmin()}]="
            f"{clip.min():g}. Scale the loss: squares of float32 vanish below"
        )
    return np.where(free, np.inf, clip)


def _bounded(clip: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    return np.where(np.isinf(clip), 0.0, clip)  # only where there is no noise
