"""Which of many like tests run every time: `make test` has ten minutes, `make test-slow` runs them all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def some(values: Iterable[Any], number: int) -> list[Any]:
    """Parameters of which ``number``, spread evenly over all, run every time, and the rest with the slow tests; tuples
    are several arguments."""
    given = [value if isinstance(value, ParameterSet) else _one(value) for value in values]
    kept = {at * len(given) // number for at in range(number)}
    return [one if at in kept else one._replace(marks=(*one.marks, pytest.mark.slow)) for at, one in enumerate(given)]


def _one(value: Any) -> ParameterSet:
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
