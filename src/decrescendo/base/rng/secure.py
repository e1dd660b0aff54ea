"""Unpredictable random streams: AES-256 in counter mode, from a key of the operating system that nobody chooses."""

import os
import secrets
from dataclasses import dataclass
from typing import NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Float, Int, UInt64

from decrescendo.base.rng.keystream import KEY, Keystream, ReservedWords
from decrescendo.errors import InvalidType, check_integer, check_real

# Coins per chunk.
_COINS = 2**20


@final
@dataclass(frozen=True, slots=True)
class Secure:
    """Use in place of a seed: sampling and noise that nobody can predict or repeat, safe from floating-point attacks.

    The recommended setting for weights that are published. There is no argument: a seed that can be passed can be
    guessed, kept, or used twice.

    >>> Secure()
    Secure()
    """


@final
class SecureStream:
    """A `Keystream` with a key from the operating system, which refuses to be copied.

    Args:
        key: 32 bytes; as sensitive as the data. Use `fresh`: nothing but a checkpoint should pass one.
        position: bytes of the stream already used, >= 0.

    Edge cases:
        not copied, pickled, or used in a forked process: two holders of one stream would draw the same noise.

    Raises:
        InvalidValue: a key of another length.
        InvalidType: copying, pickling, or use in another process than the one that made it.

    >>> stream = SecureStream.fresh()
    >>> stream.words(2).dtype, stream.position
    (dtype('uint64'), 16)
    """

    __slots__ = ("_owner", "_stream")

    def __init__(self, key: bytes, position: int = 0) -> None:
        self._stream, self._owner = Keystream(key, position), os.getpid()

    @classmethod
    def fresh(cls) -> "SecureStream":
        """A stream with a new key from the operating system."""
        return cls(secrets.token_bytes(KEY))

    def child(self, name: str) -> "SecureStream":
        """An independent stream, from this one's key and ``name`` by HKDF-SHA256 (RFC 5869).

        Whoever knows the child's key learns nothing of this one's, nor of another child's.
        """
        self._check_owner()
        derive = HKDF(algorithm=SHA256(), length=KEY, salt=None, info=f"decrescendo:{name}".encode())
        return SecureStream(derive.derive(self.key))

    @property
    def key(self) -> bytes:
        """The key, for checkpoints. As sensitive as the data: who knows it knows the noise."""
        return self._stream.key

    @property
    def position(self) -> int:
        """Bytes used so far."""
        return self._stream.position

    def words(self, count: int) -> UInt64[np.ndarray, " count"]:
        """The next uniform 64-bit words."""
        return np.frombuffer(self._bytes(8 * check_integer("count", count)), dtype="<u8")

    def integers(self, high: int, size: int) -> Int[np.ndarray, " size"]:
        """``size`` numbers from 0 .. high - 1, each with exactly the same probability.

        >>> SecureStream.fresh().integers(1, 3).tolist()
        [0, 0, 0]
        """
        bound, kept = check_integer("high", high, at_least=1), check_integer("size", size)
        fair, found = 2**64 - 2**64 % bound, np.zeros(0, dtype=np.uint64)
        while found.size < kept:
            words = self.words(kept - found.size)
            found = np.r_[found, words if fair == 2**64 else words[words < np.uint64(fair)]]
        return (found % np.uint64(bound)).astype(np.int64)

    def subset(self, size: int, rate: float) -> Int[np.ndarray, " batch"]:
        """A Poisson sample of 0 .. size - 1: each with probability floor(rate 2^64) / 2^64, independently; ascending.

        Never more than ``rate``: privacy loss grows with the rate. Two bytes per coin decide nearly all.

        >>> SecureStream.fresh().subset(3, 1.0).tolist()
        [0, 1, 2]
        """
        size = check_integer("size", size)
        rate = check_real("rate", rate, at_least=0, at_most=1)
        high, low = divmod(int(rate * 2.0**64), 2**48)
        chosen: list[np.ndarray] = []
        for start in range(0, size, _COINS):
            coins = np.frombuffer(self._bytes(2 * min(_COINS, size - start)), dtype="<u2")
            heads = coins < high
            ties = np.flatnonzero(coins == high)
            heads[ties] = self.words(len(ties)) >> np.uint64(16) < np.uint64(low)
            chosen.append(np.flatnonzero(heads) + start)
        return np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)

    def add_gaussian(
        self,
        values: Float[np.ndarray, " size"],
        std: float,
        *,
        divisor: float = 1.0,
        out: Float[np.ndarray, " size"] | None = None,
    ) -> Float[np.ndarray, " size"]:
        """``values`` plus N(0, std^2) on each, rounded to a public grid: see `rounded.add_gaussian`."""
        self._check_owner()
        return self._stream.add_gaussian(values, std, divisor=divisor, out=out)

    def reserve(self, count: int) -> ReservedWords:
        """Reserve the next words, to be read in any order: see `Keystream.reserve`."""
        self._check_owner()
        return self._stream.reserve(count)

    def _bytes(self, count: int) -> bytes:
        self._check_owner()
        return self._stream.take(count)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise InvalidType(
                "a secure stream must be used in the process that made it, got a forked one: both would draw the "
                "same noise. Make a stream in each process"
            )

    def __repr__(self) -> str:
        return "SecureStream(..)"

    def __reduce__(self) -> NoReturn:
        raise InvalidType(
            "a secure stream must not be copied or pickled, got an attempt: two holders would draw the same noise. "
            "Make a fresh one, or a child"
        )
