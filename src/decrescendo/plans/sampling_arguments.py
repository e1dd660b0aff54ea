"""Helpers that all forms of sampling share: checks of their arguments, and draws of records."""

import numpy as np
from jaxtyping import Int

from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidType, InvalidValue, check_integer

# Whole numbers up to here are exact in floating point.
LARGEST = 2**53


def at_most_of(
    cap: int, drawn: Int[np.ndarray, " drawn"], rng: np.random.Generator | SecureStream
) -> Int[np.ndarray, " batch"]:
    """``drawn`` if at most ``cap``, else a uniform choice of ``cap`` of them, ascending."""
    if drawn.size <= cap:
        return drawn
    if isinstance(rng, SecureStream):
        return np.sort(drawn[np.argsort(rng.words(drawn.size))[:cap]])
    return np.sort(rng.choice(drawn, size=cap, replace=False, shuffle=False))


def drawn_of(
    members: Int[np.ndarray, " members"], rate: float, rng: np.random.Generator | SecureStream
) -> Int[np.ndarray, " drawn"]:
    """A Poisson sample of ``members`` (ascending): each with probability ``rate``, independently; ascending."""
    if isinstance(rng, SecureStream):
        return members[rng.subset(members.size, rate)]
    size = int(rng.binomial(members.size, rate))
    return np.sort(rng.choice(members, size=size, replace=False, shuffle=False))


def checked_count(value: object) -> int:
    count = check_integer("dataset_size", value, at_least=1)
    if count > LARGEST:
        raise InvalidValue(f"dataset_size must be <= {LARGEST}, got dataset_size=a number of {len(str(count))} digits")
    return count


def check_rng(rng: object) -> None:
    if not isinstance(rng, (np.random.Generator, SecureStream)):
        raise InvalidType(
            f"rng must be a numpy Generator or a SecureStream, got {type(rng).__name__}. "
            "Streams(seed).numpy('sampling') makes the one, SecureStream.fresh() the other"
        )


def checked_cap(value: object) -> int | None:
    if value is None:
        return None
    cap = check_integer("max_batch_size", value, at_least=1)
    if cap > LARGEST:
        raise InvalidValue(f"max_batch_size must be <= {LARGEST}, got a number of {len(str(cap))} digits")
    return cap
