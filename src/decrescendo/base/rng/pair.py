"""The random streams of a run for sampling, noise and groups of records. (For dropout and the like: `seeds`.)"""

import numpy as np

from decrescendo.base.rng.keystream import Keystream
from decrescendo.base.rng.secure import Secure, SecureStream
from decrescendo.base.rng.streams import Streams


def sampling_and_noise(
    seed: int | Secure,
) -> tuple[np.random.Generator | SecureStream, Keystream | SecureStream]:
    """The streams "sampling" and "noise" of a run: from a seed, or with fresh keys from the operating system.

    >>> sampling_and_noise(Secure())
    (SecureStream(..), SecureStream(..))
    """
    if isinstance(seed, Secure):
        root = SecureStream.fresh()
        return root.child("sampling"), root.child("noise")
    streams = Streams(seed)
    return streams.numpy("sampling"), streams.keyed("noise")


def grouping(seed: int | Secure) -> np.random.Generator | SecureStream:
    """The stream "groups", which assigns records to turns: from a seed, or with a fresh key of its own."""
    return SecureStream.fresh() if isinstance(seed, Secure) else Streams(seed).numpy("groups")
