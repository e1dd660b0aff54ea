"""The streams of a run that everything rests on: who takes part, and when, and noise. (Of the model's own numbers:
`seeds`.)"""

import numpy as np

from decrescendo.base.rng.keystream import Keystream
from decrescendo.base.rng.secure import Secure, SecureStream
from decrescendo.base.rng.streams import Streams


def sampling_and_noise(
    seed: int | Secure,
) -> tuple[np.random.Generator | SecureStream, Keystream | SecureStream]:
    """Streams "sampling" and "noise": of a seed, or with keys that nobody chooses.

    >>> sampling_and_noise(Secure())
    (SecureStream(..), SecureStream(..))
    """
    if isinstance(seed, Secure):
        root = SecureStream.fresh()
        return root.child("sampling"), root.child("noise")
    streams = Streams(seed)
    return streams.numpy("sampling"), streams.keyed("noise")


def grouping(seed: int | Secure) -> np.random.Generator | SecureStream:
    """Stream "groups", by which records take turns: of a seed, or with a key of its own that nobody chooses."""
    return SecureStream.fresh() if isinstance(seed, Secure) else Streams(seed).numpy("groups")
