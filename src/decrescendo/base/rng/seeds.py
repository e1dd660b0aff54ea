"""Seeds for the random numbers that a model draws (dropout), and contexts that seed torch's generators with them."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import numpy as np

from decrescendo.base.rng.secure import Secure, SecureStream
from decrescendo.base.rng.streams import Purpose, Streams, filled
from decrescendo.errors import InvalidValue, check_integer

if TYPE_CHECKING:
    import torch


@final
class Seeds:
    """63-bit seeds, one per call, from a stream of their own: one for each forward pass of a private training.

    A dropout mask from torch's global generator can be known in advance (``torch.manual_seed(0)`` in a published
    script), and one row more shifts the masks of all rows after it: then the sum changes by far more than one
    example's clipped gradient.

    Args:
        stream: a run's stream "model"; whoever knows it knows the masks. Checkpoints may restore its position.

    >>> Seeds.of(3)() == Seeds.of(3)(), Seeds.of(Secure())() == Seeds.of(Secure())()
    (True, False)
    """

    __slots__ = ("stream",)

    def __init__(self, stream: np.random.Generator | SecureStream) -> None:
        self.stream = stream

    @classmethod
    def of(cls, seed: int | Secure, purpose: Purpose = "model") -> "Seeds":
        """Seeds from the stream ``purpose`` of a seed, or from a fresh key of the operating system."""
        if isinstance(seed, Secure):
            return cls(SecureStream.fresh())
        return cls(Streams(seed).numpy(purpose))

    def __call__(self) -> int:
        """The next seed."""
        if isinstance(self.stream, SecureStream):
            return int(self.stream.words(1)[0]) >> 1
        return int(self.stream.integers(2**63))


@contextmanager
def seeded(seed: int, devices: Iterable["torch.device"] = ()) -> Generator[None]:
    """Inside, torch's global generators (the CPU's, and those of CUDA ``devices``) start at ``seed``; afterwards their
    states are restored: the caller's numbers are neither read nor advanced.

    On the CPU torch keeps only 32 bits of a seed, which an adversary can try one by one; here the whole state of the
    generator is filled from the seed. Its ``torch.initial_seed()`` is the seed.

    Args:
        seed: a whole number from 0 to 2^63 - 1.
        devices: devices of the model's tensors; all but CUDA's are ignored.

    >>> import torch
    >>> before = torch.get_rng_state()
    >>> with seeded(5):
    ...     first = torch.rand(2)
    >>> with seeded(5):
    ...     torch.equal(first, torch.rand(2)), torch.equal(torch.get_rng_state(), before)
    (True, False)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    import torch

    number = check_integer("seed", seed)
    if number >= 2**63:
        raise InvalidValue(f"seed must be below 2^63, got one of {number.bit_length()} bits. Take a Seeds()")
    numbers = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=numbers):
        filled(torch.default_generator.manual_seed(number), f"decrescendo:pass:{number}:state")
        for index in numbers:
            torch.cuda.default_generators[index].manual_seed(number)
        yield


def restarted(seed: int, number: int) -> None:
    """Restart torch's global CPU generator at the stream that belongs to ``seed`` and ``number``.

    >>> import torch
    >>> with seeded(5):
    ...     restarted(5, 0)
    ...     first = torch.rand(2)
    ...     restarted(5, 0)
    ...     torch.equal(first, torch.rand(2)), torch.initial_seed()
    (True, 5)
    """
    import torch

    filled(torch.default_generator.manual_seed(seed), f"decrescendo:pass:{seed}:after:{number}")
