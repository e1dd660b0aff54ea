"""A few bytes read as decisions: so that one engine's bytes, whoever made them, become a structured input."""

from collections.abc import Sequence
from typing import TypeVar, final

Item = TypeVar("Item")


@final
class Decisions:
    """Reads choices from bytes; when they have run out, every choice is the first one, which changes nothing.

    hypothesis shrinks bytes towards fewer and smaller ones, and so towards a valid file; libFuzzer finds out which
    bytes lead to new code.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """The next one."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """A whole number from 0 to ``limit`` - 1."""
        if limit <= 1:
            return 0
        number, span = 0, 1
        while span < limit:
            number, span = number * 256 + self.byte(), span * 256
        return number % limit

    def pick(self, items: Sequence[Item]) -> Item:
        """One of them."""
        return items[self.below(len(items))]

    def some(self, most: int) -> bytes:
        """Up to so many bytes as they are."""
        count = min(self.below(most + 1), self.left)
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        """All that is left."""
        return self.some_of(self.left)

    def some_of(self, count: int) -> bytes:
        """Exactly so many bytes, or what is left."""
        found = self._data[self._at : self._at + count]
        self._at += len(found)
        return found
