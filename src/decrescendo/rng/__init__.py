"""Where random numbers come from: repeatable for experiments, unpredictable for weights that leave the house."""

from decrescendo.rng.pair import sampling_and_noise
from decrescendo.rng.rounded import add_gaussian
from decrescendo.rng.secure import Secure, SecureStream
from decrescendo.rng.seeds import Seeds, seeded
from decrescendo.rng.streams import PURPOSES, Purpose, Streams

__all__ = [
    "PURPOSES", "Purpose", "Secure", "SecureStream", "Seeds", "Streams", "add_gaussian", "sampling_and_noise", "seeded",
]  # fmt: skip
