"""One named random stream a purpose, all from one seed, never the global generators.

Streams by purpose mean that changing the model cannot change the noise. These generators are fast and repeatable,
not cryptographic: whoever knows the seed knows the noise, so a seed is as sensitive as the data.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from decrescendo.errors import InvalidValue, check_integer

if TYPE_CHECKING:
    import torch

Purpose = Literal["init", "sampling", "noise", "audit"]
PURPOSES: tuple[Purpose, ...] = ("init", "sampling", "noise", "audit")


@dataclass(frozen=True, slots=True)
class Streams:
    """Independent random streams named by purpose, derived from one seed by SHA-256.

    Args:
        seed: a whole number >= 0; there is no default, because a seed nobody chose is a seed everybody knows.

    >>> Streams(0).seed_of("noise") == Streams(0).seed_of("sampling")
    False
    >>> draw = lambda: Streams(0).numpy("sampling").integers(100, size=3).tolist()
    >>> draw() == draw()
    True
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_integer("seed", self.seed))

    def seed_of(self, purpose: Purpose) -> int:
        """The 63-bit seed of one stream."""
        if purpose not in PURPOSES:
            raise InvalidValue(f"purpose must be one of {', '.join(PURPOSES)}, got purpose={purpose!r}")
        digest = hashlib.sha256(f"decrescendo:{self.seed}:{purpose}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def numpy(self, purpose: Purpose) -> np.random.Generator:
        """A fresh NumPy generator at the start of the stream."""
        return np.random.default_rng(self.seed_of(purpose))

    def torch(self, purpose: Purpose, device: "str | torch.device" = "cpu") -> "torch.Generator":
        """A fresh torch generator at the start of the stream, on ``device``."""
        import torch

        return torch.Generator(device=device).manual_seed(self.seed_of(purpose))
