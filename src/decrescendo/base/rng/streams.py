"""`Streams`: one named random stream per purpose, all from one seed, never the global generators.

Streams by purpose mean that changing the model cannot change the noise. These generators are fast and repeatable:
whoever knows the seed knows the noise, so a seed is as sensitive as the data. A seed that can be
guessed (0, 1, 2, ..) is known: for weights that are published take ``secrets.randbits(128)``. Nor may two trainings
on the same data that are both published share one: their noise is the same, and cancels in the difference.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from decrescendo.base.rng.keystream import Keystream
from decrescendo.errors import InvalidValue, check_integer

if TYPE_CHECKING:
    import torch

Purpose = Literal["init", "sampling", "noise", "model", "data", "trace", "audit", "selection", "pretraining", "groups"]
PURPOSES: tuple[Purpose, ...] = (
    "init", "sampling", "noise", "model", "data", "trace", "audit", "selection", "pretraining", "groups",
)  # fmt: skip

# Where torch's CPU generator keeps the 624 words of its state, in bytes of `get_state`.
_MT_OFFSET, _MT_WORDS = 24, 624


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

    def child(self, number: int) -> "Streams":
        """Streams of their own for the ``number``-th of several runs from one secret, by SHA-256: 256 bits.

        Whoever knows a child's seed learns nothing of the parent's, nor of another child's.

        >>> Streams(0).child(1).seed == Streams(0).child(2).seed
        False
        """
        index = check_integer("number", number)
        digest = hashlib.sha256(f"decrescendo:{self.seed}:child:{index}".encode()).digest()
        return Streams(int.from_bytes(digest, "big"))

    def numpy(self, purpose: Purpose) -> np.random.Generator:
        """A fresh NumPy generator at the start of the stream."""
        return np.random.default_rng(self.seed_of(purpose))

    def keyed(self, purpose: Purpose) -> Keystream:
        """A fresh stream of a cipher, keyed by SHA-256 of the seed: the noise of a run."""
        self.seed_of(purpose)
        return Keystream(hashlib.sha256(f"decrescendo:{self.seed}:{purpose}:key".encode()).digest())

    # pyrefly: ignore[not-a-type]
    def torch(self, purpose: Purpose, device: "str | torch.device" = "cpu") -> "torch.Generator":
        """A fresh torch generator at the start of the stream, on ``device``.

        On the CPU torch keeps only 32 bits of a seed, which an adversary can try one by one; there the whole state
        of the Mersenne Twister is filled from the seed instead.
        """
        import torch

        generator = torch.Generator(device=device).manual_seed(self.seed_of(purpose))
        if generator.device.type != "cpu":
            return generator
        return filled(generator, f"decrescendo:{self.seed}:{purpose}:state")


def filled(generator: "torch.Generator", text: str) -> "torch.Generator":
    """``generator`` (a CPU one, just seeded) with the whole state of its Mersenne Twister filled from ``text`` by
    SHAKE-256; its ``initial_seed()`` stays.

    Raises:
        InvalidValue: a version of torch that keeps its state in another layout.
    """
    import torch

    state = generator.get_state().numpy()
    words = state[_MT_OFFSET : _MT_OFFSET + 8 * _MT_WORDS].view(np.uint64)
    if words[0] != generator.initial_seed() & 0xFFFFFFFF:
        raise InvalidValue(
            "torch's CPU generator must keep its state where this version looks for it, got another layout. "
            "Use a torch version that this package was tested with"
        )
    words[:] = np.frombuffer(hashlib.shake_256(text.encode()).digest(4 * _MT_WORDS), dtype="<u4")
    return generator.set_state(torch.from_numpy(state))
