"""Where random numbers come from: repeatable for experiments, unpredictable for weights that are published."""

from decrescendo.base.rng.keystream import Keystream
from decrescendo.base.rng.pair import grouping, sampling_and_noise
from decrescendo.base.rng.secure import Secure, SecureStream
from decrescendo.base.rng.seeds import Seeds, restarted, seeded
from decrescendo.base.rng.streams import PURPOSES, Purpose, Streams

__all__ = [
    "PURPOSES", "Keystream", "Purpose", "Secure", "SecureStream", "Seeds", "Streams", "restarted", "sampling_and_noise",
    "seeded", "grouping",
]  # fmt: skip
