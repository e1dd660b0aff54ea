"""A strict JSON reader: refuses NaN, infinities, repeated keys and deep nesting, which this package never writes."""

import json
from collections.abc import Iterable
from typing import Any, cast

# The deepest nesting that is read: far above any file of ours, far below Python's recursion limit.
DEEPEST = 100


def loads(content: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: not JSON; or JSON with something in it that cannot be written back as it was read: NaN, infinities
            (``1e999`` is one), a key twice in one object, half of a surrogate pair; or nested deeper than 100 levels.

    >>> loads('{"epsilon": 1.5}')
    {'epsilon': 1.5}
    >>> loads('{"epsilon": 1, "epsilon": 1000}')
    Traceback (most recent call last):
    ValueError: the key 'epsilon' is there twice
    >>> loads("1e999")
    Traceback (most recent call last):
    ValueError: 1e999 is no finite number
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    _check_depth(value)
    if "\\u" in text:
        _check_text(value)
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [item for outer in level for item in _inside(outer) if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it is half of a surrogate pair, which is no character") from None
