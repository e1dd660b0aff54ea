"""Numbers that differ by rounding only, so that no sentence and no choice depends on the last digit of a sum.

Sums of the same numbers differ in their last digits between processors, numbers of threads and orders of the terms, by
1e-16 to 1e-13 of the largest of them. What is told apart on purpose differs by one test example of at most a million,
or in a digit that is shown: 1e-6 and more. `SAME` lies between, far from both.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from decrescendo.report import SAME

Found = TypeVar("Found")


def alike(one: float, other: float, size: float = 0.0) -> bool:
    """Whether two numbers are equal up to rounding.

    Args:
        one: a number.
        other: another.
        size: of the numbers that both were made of, where these are larger than they are themselves: a difference of
            two numbers keeps their rounding.

    >>> alike(0.1 + 0.2, 0.3), alike(0.1 + 0.2 - 0.3, 0.0), alike(0.1 + 0.2 - 0.3, 0.0, size=0.3), alike(0.3, 0.300001)
    (True, False, True, False)
    """
    return abs(one - other) <= SAME * max(abs(one), abs(other), size)


def above(one: float, other: float, size: float = 0.0) -> bool:
    """Whether ``one`` is larger than ``other``, and not by rounding only.

    >>> above(0.1 + 0.2, 0.3), above(0.301, 0.3)
    (False, True)
    """
    return one > other and not alike(one, other, size)


def first_of_most(found: Iterable[Found], value: Callable[[Found], float]) -> Found:
    """The first whose value no other is above; ``found`` is not empty.

    >>> first_of_most(["a", "b", "c"], {"a": 0.3, "b": 0.1 + 0.2, "c": 0.2}.__getitem__)
    'a'
    """
    kept = list(found)
    most = max(map(value, kept))
    return next(one for one in kept if not above(most, value(one)))


def first_of_least(found: Iterable[Found], value: Callable[[Found], float]) -> Found:
    """The first whose value is above no other; ``found`` is not empty.

    >>> first_of_least([150, 100, 50], {150: 0.3, 100: 0.1 + 0.2, 50: 0.4}.__getitem__)
    150
    """
    return first_of_most(found, lambda one: -value(one))
