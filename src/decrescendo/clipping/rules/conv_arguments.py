"""Arguments of convolutions, as torch fills them in."""

from collections.abc import Sequence
from typing import Any


def spread(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    values = tuple(int(item) for item in value)
    return values * dimensions if len(values) == 1 else values


def padding_of(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding as ``F.pad`` takes it: (before, after) from the last dimension to the first."""
    sides: list[tuple[int, int]] = []
    if padding == "valid":
        sides = [(0, 0)] * len(kernel)
    elif padding == "same":
        # An even reach needs one more zero on one side; torch puts it after.
        for size, step in zip(kernel, dilation, strict=True):
            total = step * (size - 1)
            sides.append((total // 2, total - total // 2))
    else:
        sides = [(size, size) for size in spread(padding, len(kernel))]
    return tuple(size for side in reversed(sides) for size in side)
