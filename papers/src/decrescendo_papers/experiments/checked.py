"""What kept files hold must be of the kind that it is read as: a TypeError here, where it can be named, not later."""

from collections.abc import Mapping
from typing import Any, cast


def number(value: Any) -> float:
    """A number as it is; JSON's true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a number was expected, got {value!r:.60}")
    return value


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"a whole number was expected, got {value!r:.60}")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, got {value!r:.60}")
    return value


def listed(value: Any) -> list[Any]:
    """A list of anything."""
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, got {value!r:.60}")
    return cast("list[Any]", value)


def numbers(value: Any) -> list[float]:
    """A list of numbers.

    >>> numbers([1, 2.5])
    [1, 2.5]
    """
    return [number(item) for item in listed(value)]


def pair(value: Any) -> tuple[float, float] | None:
    """Two numbers, or nothing."""
    if value is None:
        return None
    first, second = numbers(value)
    return first, second


def named(value: Any) -> Mapping[str, Any]:
    """Anything by name."""
    if not isinstance(value, dict):
        raise TypeError(f"entries by name were expected, got {value!r:.60}")
    return cast("dict[str, Any]", value)


def texts(value: Any) -> dict[str, str]:
    """Texts by name."""
    return {name: text(item) for name, item in named(value).items()}
