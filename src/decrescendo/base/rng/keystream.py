"""`Keystream`: a random-access stream of bits from a key, AES-256 in counter mode (NIST SP 800-38A)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from jaxtyping import Float, UInt64

from decrescendo.base.rng.rounded import add_gaussian
from decrescendo.errors import InvalidValue, check_integer

KEY = 32
_BLOCK = 16
# Blocks from here on have more words for coordinates whose first word leaves rounding open: 2^32 blocks each.
_FURTHER = 2**127
_PER_COORDINATE = 2**32


@final
class Keystream:
    """A repeatable stream of bits from a 256-bit key, read by a cursor. `Streams.keyed` makes one of a seed.

    Without the key the stream cannot be told from fair coins, nor predicted from its past; whoever knows the key knows
    all of it.

    Args:
        key: 32 bytes.
        position: bytes of the stream already used, >= 0.

    Raises:
        InvalidValue: a key of another length.

    >>> Keystream(bytes(32)).words(2).tolist() == Keystream(bytes(32)).words(2).tolist()
    True
    """

    __slots__ = ("_context", "_lock", "_position", "key")

    def __init__(self, key: bytes, position: int = 0) -> None:
        if not isinstance(key, bytes) or len(key) != KEY:
            raise InvalidValue(f"key must be {KEY} bytes, got another value. Use SecureStream.fresh()")
        self.key, self._context, self._lock = key, _context(key, 0), Lock()
        self._seek(check_integer("position", position))

    @property
    def position(self) -> int:
        """Bytes used so far."""
        return self._position

    def take(self, count: int) -> bytes:
        """The next bytes."""
        with self._lock:
            self._position += count
            return self._context.update(bytes(count))

    def words(self, count: int) -> UInt64[np.ndarray, " count"]:
        """The next uniform 64-bit words."""
        return np.frombuffer(self.take(8 * check_integer("count", count)), dtype="<u8")

    def add_gaussian(
        self,
        values: Float[np.ndarray, " size"],
        std: float,
        *,
        divisor: float = 1.0,
        out: Float[np.ndarray, " size"] | None = None,
    ) -> Float[np.ndarray, " size"]:
        """``values`` plus N(0, std^2) on each, rounded to a public grid: see `rounded.add_gaussian`.

        Draws one word per value, from the next whole block on. No word is used twice, also after an error or with
        several threads.
        """
        return add_gaussian(values, std, self.reserve(len(values)), divisor=divisor, out=out)

    def reserve(self, count: int) -> "ReservedWords":
        """Reserve the next ``count`` words, from a whole block on, to be read in any order."""
        with self._lock:
            start = -(-self._position // _BLOCK) * _BLOCK
            self._seek(start + 8 * check_integer("count", count))
        return ReservedWords(self.key, start // 8)

    def _seek(self, position: int) -> None:
        self._position = position
        block, rest = divmod(position, _BLOCK)
        self._context.reset_nonce(_counter(block))
        self._context.update(bytes(rest))


@dataclass(frozen=True, slots=True)
class ReservedWords:
    """The words of one vector's coordinates, for any number of threads: word i is at byte 8 (start + i) of the stream.

    >>> Keystream(bytes(32)).reserve(9).after(3).reader(2)(0, 2).tolist() == Keystream(bytes(32)).words(5)[3:].tolist()
    True
    """

    key: bytes
    start: int

    def after(self, count: int) -> "ReservedWords":
        """The words of the coordinates from index ``count`` on."""
        return ReservedWords(self.key, self.start + count)

    def counter(self) -> tuple[bytes, int]:
        """The key, and the position of word 0 in the stream, in words: see `rounded.KeyedWords`."""
        return self.key, self.start

    def reader(self, most: int) -> Callable[[int, int], UInt64[np.ndarray, " count"]]:
        """A function of (first, count), for one thread: words first .. first + count - 1, valid until its next call.

        Args:
            most: the largest count; ``first`` is even.
        """
        context, odd = _context(self.key, 0), self.start % 2
        # With room for the extra block that `update_into` requires.
        zeros, words = memoryview(bytes(8 * (most + odd))), np.empty(most + odd + 2, dtype="<u8")
        buffer = words.data.cast("B")

        def read(first: int, count: int) -> np.ndarray:
            context.reset_nonce(_counter((self.start + first) // 2))
            context.update_into(zeros[: 8 * (count + odd)], buffer)
            return words[odd : count + odd]

        return read

    def further(self, index: int) -> Iterator[int]:
        """More words of coordinate ``index``, without end, from a part of the stream of its own."""
        context = _context(self.key, _FURTHER + (self.start + index) * _PER_COORDINATE)
        while True:
            yield int.from_bytes(context.update(bytes(8)), "little")


def _counter(block: int) -> bytes:
    return (block % 2**128).to_bytes(_BLOCK, "big")


def _context(key: bytes, block: int) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(_counter(block))).encryptor()
