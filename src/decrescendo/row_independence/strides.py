"""Writes the arguments of `as_strided` in a form independent of the batch size, so that passes can be
compared.

Where an operation in place writes to a view, autograd's backward pass lays the same view on the memory of the gradient
by `as_strided`. Its strides and its offset count numbers of that memory, so they are a constant plus a constant times
the number n of examples wherever the examples lie behind another dimension: for ``h[-1]`` of (T, n, C) the offset
is (T - 1) n C. Compared as they are, over two and three examples, they differ, though the program does the same.

Strides and an offset that grow with n are sound where they address memory in the same way for each n:

1. On memory of the examples, labels follow memory: byte ``a`` belongs to example ``((a - base) // step) % n``, whoever
   made the view. The label of the view, and its form (whole rounds of the examples, where it begins within
   an example, how it goes on there), follow from shape, strides and offset by `row_layout.view_of`, and the form has no
   n in it. Two views of the same form show the same numbers of each example's own, so the form is compared, exactly.
2. On other memory made in the pass (zeros that autograd is going to write a gradient to, or a gradient that is the
   same for every batch) a view is written as ``view`` of the memory as a grid, a constant index or slice of each of its
   dimensions, and ``permute``: operations that the proof allows already. The sizes of the grid and of the slices are
   sizes, which may grow with n; where the slices begin and how they step (the digits of offset and strides in
   the grid) must be the same for two and three examples and for the whole batch. The number of entries in
   memory is compared as well, as a size, so at most one dimension of the grid grows.
3. Where memory is from before the pass, or a stride carries over from one dimension of the grid into the next,
   strides and offset must be equal: an offset of n would index a constant by the number of examples.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

# Sizes, which may grow with the number of examples, and digits, which may not.
Grid: TypeAlias = tuple[tuple[object, ...], tuple[object, ...]]


def grid_of(total: int, shape: Sequence[int], stride: Sequence[int], offset: int) -> Grid | None:
    """A view of ``total`` entries as slices of a regular grid, or ``None`` if it is not one.

    The last of five times n rows of four numbers: a grid of (5, n, 4), from (4, 0, 0) on:

    >>> [grid_of(20 * n, (n, 4), (4, 1), 16 * n)[0] for n in (2, 3)]
    [(40, (5, 2, 4), ((2,), (4,))), (60, (5, 3, 4), ((3,), (4,)))]
    >>> [grid_of(20 * n, (n, 4), (4, 1), 16 * n)[1] for n in (2, 3)]
    [((4, 0, 0), (((0, 1, 0),), ((0, 0, 1),))), ((4, 0, 0), (((0, 1, 0),), ((0, 0, 1),)))]

    Not allowed, a constant indexed by the number of examples:

    >>> [grid_of(100, (3,), (1,), n)[1][0] for n in (2, 3)]
    [(2,), (3,)]
    """
    laid = [(size, step) for size, step in zip(shape, stride, strict=True) if size > 1 and step > 0]
    steps = _steps(total, laid, offset)
    radices = [large // small for large, small in zip((total, *steps), steps, strict=False)]
    sizes: list[tuple[int, ...]] = []
    digits: list[tuple[tuple[int, ...], ...]] = []
    reached = list(_digits(offset, steps))
    for size, step in zip(shape, stride, strict=True):
        parts = _unfolded(size, step, steps) if size > 1 and step > 0 else [(size, 0)]
        found = [_digits(jump, steps) for _, jump in parts]
        for (times, _), its in zip(parts, found, strict=True):
            reached = [at + (times - 1) * digit for at, digit in zip(reached, its, strict=True)]
        sizes.append(tuple(times for times, _ in parts))
        digits.append(tuple(found))
    if any(at >= radix for at, radix in zip(reached, radices, strict=True)):
        return None
    return (total, tuple(radices), tuple(sizes)), (_digits(offset, steps), tuple(digits))


def _steps(total: int, laid: Sequence[tuple[int, int]], offset: int) -> list[int]:
    """The strides of the grid's dimensions, each a multiple of the next; the last is 1."""
    steps = [total]
    for step in sorted({step for _, step in laid}, reverse=True):
        if step < steps[-1] and steps[-1] % step == 0:
            steps.append(step)
    if steps[-1] > 1 or total == 1:
        steps.append(1)
    found: list[int] = []
    for larger, step in itertools.pairwise(steps):
        # A slice's start and extent must be whole multiples of any dimension between these two.
        inside = math.gcd(larger, offset % larger - offset % step)
        between = {math.gcd(inside, size * jump) for size, jump in laid if jump == step}
        for extent in sorted(between, reverse=True):
            if step < extent < (found[-1] if found else larger) and (found or [larger])[-1] % extent == 0:
                found.append(extent)
        found.append(step)
    return found or [1]


def _unfolded(size: int, step: int, steps: Sequence[int]) -> list[tuple[int, int]]:
    """A dimension that merges several dimensions of the grid, split into these."""
    found: list[tuple[int, int]] = []
    for larger in reversed(steps):
        if larger > step and size * step > larger and larger % step == 0 and size * step % larger == 0:
            found.append((larger // step, step))
            size, step = size * step // larger, larger
    return [*found, (size, step)]


def _digits(number: int, steps: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for step in steps:
        digit, number = divmod(number, step)
        found.append(digit)
    return tuple(found)
