"""`RowLayout`: the label that says along which dimension of a tensor the examples lie, and in which order.

Labels are stored per storage, so that every view and alias of it has one at once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Public(Enum):
    """The label of constants: depends on no example."""

    # Anything: parameters, buffers, constants.
    ANY = "any"
    # The same number everywhere, so that it cannot depend on the position either.
    FILL = "fill"
    # Independent random numbers of one distribution, from the pass's own stream.
    RANDOM = "random"


class RowLayout(NamedTuple):
    """Index ``i`` along dimension ``dim`` belongs to unit ``(i // inner) % count``; the dimension has ``outer`` rounds.

    A unit is an example, or, where there are ``owners``, a row of packed data: unit ``u`` belongs to example
    ``owners[u]``.
    """

    dim: int
    inner: int = 1
    outer: int = 1
    owners: "Owners | None" = None
    # The kind of a constant as long as the batch (an `arange`): it may depend on the position.
    constant: Public | None = None

    def moved(self, dim: int) -> "RowLayout":
        """The same layout along another dimension."""
        return self if dim == self.dim else self._replace(dim=dim)

    def like(self, other: "RowLayout") -> bool:
        """Whether both layouts assign each index to the same example."""
        if (self.inner, self.outer) != (other.inner, other.outer):
            return False
        mine, its = self.owners, other.owners
        return mine is its or ((mine is None or mine.each) and (its is None or its.each))

    def same(self, other: object) -> bool:
        """Whether a value is a row layout too, along this dimension, that assigns each index to the same
        example."""
        return isinstance(other, RowLayout) and other.dim == self.dim and self.like(other)


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """Which example each row of packed data belongs to.

    ``counted``: the number of rows depends on the data; ``each``: there is one row per example, in their order.
    """

    example: Int[Tensor, " rows"]
    counted: bool = False
    each: bool = False


class Span(NamedTuple):
    """The label of a piece of memory: byte ``a`` belongs to unit ``((a - base) // step) % units``."""

    step: int
    base: int
    units: int
    owners: Owners | None = None
    constant: Public | None = None


class View(NamedTuple):
    """The layout of a view on labelled memory: its row layout, and shape, strides and offset in a form
    independent of the batch size."""

    place: RowLayout | None
    form: tuple[object, ...]


@functools.lru_cache(maxsize=65536)
def view_of(
    shape: tuple[int, ...], stride: tuple[int, ...], start: int, width: int, span: tuple[int, int, int]
) -> View:
    """The layout of a view of labelled memory; its row layout is ``None`` if no single dimension has the units.

    Args:
        shape, stride: of the view, in elements.
        start: the byte at which it begins.
        width: bytes of an element.
        span: step, base and count of the memory's label.

    >>> view_of((6, 4), (4, 1), 0, 4, (16, 0, 6)).place[:3]  # rows
    (0, 1, 1)
    >>> view_of((12, 2), (2, 1), 0, 4, (16, 0, 6)).place[:3]  # two places an example, folded into one dimension
    (0, 2, 1)
    >>> view_of((2, 6), (1, 2), 0, 4, (8, 0, 6)).place[:3]  # transposed
    (1, 1, 1)
    >>> view_of((3, 2, 4), (8, 4, 1), 0, 4, (16, 0, 6)).place is None  # neighbours in pairs
    True
    """
    step, base, count = span
    period = step * count
    offset = start - base
    rounds, inside = divmod(offset, period)
    first, inside = divmod(inside, step)
    form: list[object] = [rounds, first, inside]
    extent, carrier, good = inside + width, None, first == 0
    for dim, (size, jump) in enumerate(zip(shape, stride, strict=True)):
        jump *= width
        if size == 1 or jump == 0:
            form.append((size, 0) if size == 1 else (size, -1))
        elif jump % period == 0:
            form.append((size, jump // period, "rounds"))
        elif jump < step and (size - 1) * jump < step:
            extent += (size - 1) * jump
            form.append((size, jump))
        else:
            inner, rest = divmod(step, jump)
            fits = rest == 0 and size % (inner * count) == 0 and carrier is None and inner > 0
            good &= fits
            carrier = (dim, inner, size // (inner * count)) if fits else carrier
            form.append((inner, size // (inner * count)) if fits else (size, jump))
            if fits and inner > 1:
                extent += (inner - 1) * jump
    if not good or carrier is None or extent > step:
        return View(None, tuple(form))
    return View(RowLayout(*carrier), tuple(form))


def place_in(tensor: Tensor, span: Span) -> RowLayout | None:
    """The row layout of a view of labelled memory."""
    width = tensor.element_size()
    return view_of(tensor.shape, tensor.stride(), tensor.storage_offset() * width, width, span[:3]).place


def span_of(tensor: Tensor, place: RowLayout, count: int) -> Span | None:
    """The label of the whole memory of which ``tensor`` is a view with the row layout ``place``; or
    ``None``."""
    if count == 1:
        return Span(1, 0, 1, *place[3:])
    start, width = tensor.storage_offset(), tensor.element_size()
    found = _step_of(tensor.shape, tensor.stride(), start * width, width, place[:3], count)
    return found and Span(*found, count, *place[3:])


@functools.lru_cache(maxsize=65536)
def _step_of(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    start: int,
    width: int,
    place: tuple[int, int, int],
    count: int,
) -> tuple[int, int] | None:
    """Step and base of the `Span` of memory of which a view has the row layout ``place``; ``None`` if there is none."""
    dim, inner, outer = place
    step = stride[dim] * inner * width
    if outer * inner * count != shape[dim] or step == 0:
        return None
    base = start - start % step
    found = view_of(shape, stride, start, width, (step, base, count)).place
    return (step, base) if found is not None and found[:3] == place else None


def is_uniform(
    tensor: Tensor, place: RowLayout, count: int, same: Callable[[Tensor, Tensor], bool] = torch.equal
) -> bool:
    """Whether a constant with one row per example is the same for each, bit for bit.

    ``same``: says whether two tensors have the same numbers.

    >>> is_uniform(torch.ones(3, 2), RowLayout(0), 3), is_uniform(torch.arange(3), RowLayout(0), 3)
    (True, False)
    >>> is_uniform(torch.tensor([0.0, -0.0]), RowLayout(0), 2)
    False
    """
    if tensor.stride(place.dim) == 0:
        return True
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().unsqueeze(-1).view(torch.uint8)
    rows = whole.unflatten(place.dim, (place.outer, count, place.inner))
    return same(rows, rows.narrow(place.dim + 1, 0, 1).expand_as(rows))
