"""The rule for products summed over named dimensions: ``einsum``, any ``matmul``, bilinear layers.

With o = einsum(x, .., p) the gradient of p for example i is again one: d_i with the other operands, summed
over everything but the dimensions of p. It is made for as many examples at once as fit a cache, once for the norm
and once for the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.means import chunks
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, square_rows, weigh, zero_rows

# A dimension is a number: einsum's list form has no limit of 52 letters. The examples, and places folded with them:
_BATCH, _PLACES = 0, 1
_FIRST = 2


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor and the number of each of its dimensions."""

    tensor: Tensor
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """What one parameter is multiplied with, and the numbers of its own dimensions (without broadcast ones)."""

    others: tuple[Operand, ...]
    dims: tuple[int, ...]
    scale: float = 1.0


@dataclass(slots=True)
class ContractionKernel:
    """``einsum`` with one term a parameter; ``output`` numbers the dimensions of the split output."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    terms: tuple[Term, ...]
    output: tuple[int, ...]

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        parts = chunks(d.shape[0], self.parameters[slot].numel())
        return torch.cat([square_rows(self._gradient(slot, d, part)) for part in parts])

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        # The same products as for the norm, so that what was measured is what is weighed, to the last digit.
        parts = chunks(d.shape[0], self.parameters[slot].numel())
        sums = [weigh(self._gradient(slot, d, part), weights[part]) for part in parts]
        return torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        return self._gradient(slot, d, slice(0, d.shape[0]))

    def without(self, rows: Bool[Tensor, " batch"]) -> "ContractionKernel":
        def clear(operand: Operand) -> Operand:
            if _BATCH not in operand.dims:
                return operand
            axis = operand.dims.index(_BATCH)
            return replace(operand, tensor=zero_rows(operand.tensor.movedim(axis, 0), rows).movedim(0, axis))

        terms = tuple(replace(term, others=tuple(map(clear, term.others))) for term in self.terms)
        return ContractionKernel(self.parameters, (), terms, self.output)

    def _gradient(self, slot: int, d: Tensor, part: slice) -> Tensor:
        term, d = self.terms[slot], d[part]
        others = [
            replace(
                other,
                tensor=other.tensor.narrow(other.dims.index(_BATCH), part.start, part.stop - part.start),
            )
            if _BATCH in other.dims
            else other
            for other in term.others
        ]
        found = _einsum([Operand(d, self.output), *_like(others, d)], (_BATCH, *term.dims))
        return (found * term.scale).reshape(d.shape[0], *self.parameters[slot].shape)


def _like(operands: Sequence[Operand], d: Tensor) -> list[Operand]:
    return [replace(operand, tensor=operand.tensor.to(d.dtype)) for operand in operands]


def _einsum(operands: Sequence[Operand], output: tuple[int, ...]) -> Tensor:
    flat: list[Any] = []
    for operand in operands:
        flat += [operand.tensor, list(operand.dims)]
    return torch.einsum(*flat, list(output))


def contraction(
    call: Call,
    operands: Sequence[tuple[Tensor, Sequence[int]]],
    output: Sequence[int],
    added: Tensor | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Kernel | None:
    """The kernel for ``einsum(operands) * scales[0] + added * scales[1]``, or ``None`` for other forms.

    Args:
        call: what was called.
        operands: each tensor with the numbers of its dimensions, from 2 on.
        output: the numbers of the output's dimensions.
        added: broadcast to the output.
        scales: of the product and of what is added.
    """
    kind, position = call.layout.kind, call.layout.place.dim
    if (
        kind in ("deep", "packed")
        or len(output) <= position
        or any(len(set(dims)) < len(dims) for _, dims in operands)
    ):
        return None
    if any(tensor.is_complex() for tensor, _ in operands):
        return None
    axis = output[position]
    split = (_BATCH, _PLACES) if kind in ("folded", "interleaved") else (_BATCH,)
    numbered: list[Operand] = []
    for tensor, dims in operands:
        if axis in dims and not call.is_tracked(tensor) and not call.holds(tensor, dims.index(axis)):
            return None
        placed = _place(call, tensor.detach(), tuple(dims), axis, split)
        if placed is None:
            return None
        numbered.append(placed)
    rest = tuple(number for number in output if number != axis)
    shown = (*split, *rest)
    parameters: list[Tensor] = []
    terms: list[Term] = []
    for index, (tensor, dims) in enumerate(operands):
        if not call.is_tracked(tensor):
            continue
        others = tuple(other for place, other in enumerate(numbered) if place != index)
        known = set(shown).union(*(other.dims for other in others))
        own = numbered[index].dims
        # A dimension that only the parameter has would have to be spread out again.
        if axis in dims or not known.issuperset(own):
            return None
        parameters.append(tensor)
        terms.append(Term(others, own, scales[0]))
    if added is not None and call.is_tracked(added):
        own = [
            number for number, size in zip(reversed(output), reversed(added.shape), strict=False) if size != 1
        ]
        if axis in own:
            return None
        parameters.append(added)
        terms.append(Term((), tuple(reversed(own)), scales[1]))
    saved = tuple(tensor for tensor, _ in operands)
    return ContractionKernel(tuple(parameters), saved, tuple(terms), shown)


def _place(
    call: Call, tensor: Tensor, dims: tuple[int, ...], axis: int, split: tuple[int, ...]
) -> Operand | None:
    """An operand without broadcast dimensions, its examples apart from what was folded with them."""
    batch = call.layout.batch
    sizes = [size for size, number in zip(tensor.shape, dims, strict=True) if number == axis]
    if sizes and len(split) == 2 and sizes[0] % batch:
        return None
    if sizes and len(split) == 1 and sizes[0] != batch:
        return None
    if axis in dims:
        at = dims.index(axis)
        if len(split) == 2:
            places = tensor.shape[at] // batch
            order = (batch, places) if call.layout.kind == "folded" else (places, batch)
            tensor = tensor.unflatten(at, order)
            names = split if call.layout.kind == "folded" else split[::-1]
        else:
            names = split
        dims = (*dims[:at], *names, *dims[at + 1 :])
    return Operand(tensor, dims)


def _einsum_rule(call: Call, bound: Mapping[str, Any]) -> Kernel | None:  # noqa: ARG001
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(cast("Sequence[Tensor]", operands[0]))
    if not isinstance(equation, str) or not all(isinstance(value, Tensor) for value in operands):
        return None
    known = numbered(equation, [value.dim() for value in operands])
    if known is None:
        return None
    inputs, output = known
    sizes: dict[int, set[int]] = {}
    for value, dims in zip(operands, inputs, strict=True):
        for size, number in zip(value.shape, dims, strict=True):
            sizes.setdefault(number, set()).add(size)
    if any(len(found) > 1 for found in sizes.values()):
        return None  # one dimension broadcast over another: vmap
    return contraction(call, list(zip(operands, inputs, strict=True)), output)


def numbered(
    equation: str, dimensions: Sequence[int]
) -> tuple[list[tuple[int, ...]], tuple[int, ...]] | None:
    """The dimensions of an equation as numbers, ellipses written out; ``None`` for one that torch would refuse.

    >>> numbered("b...i,oi->b...o", [4, 2])
    ([(2, 3, 4, 5), (6, 5)], (2, 3, 4, 6))
    >>> numbered("ij,jk", [2, 2])
    ([(2, 3), (3, 4)], (2, 4))
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(dimensions):
        return None
    widest = max(
        (size - len(term.replace("...", "")) for term, size in zip(terms, dimensions, strict=True) if "..." in term),
        default=0,
    )  # fmt: skip
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, _FIRST + len(numbers))

    def spelled(term: str, size: int) -> tuple[int, ...]:
        before, dots, after = term.partition("...")
        inner = size - len(before) - len(after) if dots else 0
        middle = [f"...{widest - inner + step}" for step in range(inner)]
        return tuple(number(name) for name in (*before, *middle, *after))

    inputs = [spelled(term, size) for term, size in zip(terms, dimensions, strict=True)]
    if not arrow:
        letters = "".join(term.replace("...", "") for term in terms)
        right = ("..." if widest else "") + "".join(
            sorted(name for name in letters if letters.count(name) == 1)
        )
    return inputs, spelled(right, len(right.replace("...", "")) + (widest if "..." in right else 0))


def matmul_dims(
    left: Sequence[int], right: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Numbers of the dimensions of ``left @ right`` and of their product, from the two shapes' lengths.

    >>> matmul_dims((5, 3, 4), (4, 2))
    ((5, 2, 3), (3, 4), (5, 2, 4))
    """
    rows, inner, columns = _FIRST, _FIRST + 1, _FIRST + 2
    batches = max(len(left), len(right)) - 2
    outer = tuple(range(_FIRST + 3, _FIRST + 3 + max(batches, 0)))

    def front(shape: Sequence[int]) -> tuple[int, ...]:
        return outer[len(outer) - (len(shape) - 2) :] if len(shape) > 2 else ()

    one = (*front(left), rows, inner) if len(left) > 1 else (inner,)
    other = (*front(right), inner, columns) if len(right) > 1 else (inner,)
    product = (*outer, *((rows,) if len(left) > 1 else ()), *((columns,) if len(right) > 1 else ()))
    return one, other, product


def product(
    call: Call,
    left: Tensor,
    right: Tensor,
    added: Tensor | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Kernel | None:
    """The kernel for ``left @ right + added`` of any number of dimensions."""
    one, other, output = matmul_dims(left.shape, right.shape)
    operands: list[tuple[Tensor, tuple[int, ...]]] = [(left, one), (right, other)]
    sizes: dict[int, set[int]] = {}
    for tensor, dims in operands:
        for size, number in zip(tensor.shape, dims, strict=True):
            sizes.setdefault(number, set()).add(size)
    if any(len(found) > 1 for found in sizes.values()):
        return None
    return contraction(call, operands, output, added, scales)


def _matmul(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return product(call, bound["input"], bound["other"])


def _baddbmm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    scales = (float(bound.get("alpha", 1)), float(bound.get("beta", 1)))
    return product(call, bound["batch1"], bound["batch2"], bound["input"], scales)


def _bilinear(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    left, right, weight, bias = bound["input1"], bound["input2"], bound["weight"], bound.get("bias")
    one, two, out = _FIRST, _FIRST + 1, _FIRST + 2
    places = tuple(range(_FIRST + 3, _FIRST + 2 + left.dim()))
    operands: list[tuple[Tensor, tuple[int, ...]]] = [
        (left, (*places, one)), (weight, (out, one, two)), (right, (*places, two)),
    ]  # fmt: skip
    return contraction(call, operands, (*places, out), bias)


_PRODUCT = Rule(("input", "other"), _matmul)
_EINSUM = Rule(("equation",), _einsum_rule)
RULES: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys((torch.bmm, Tensor.bmm, torch.mv, Tensor.mv, Tensor.__rmatmul__), _PRODUCT),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), Rule(("input", "batch1", "batch2"), _baddbmm)),
    torch.einsum: _EINSUM,
    **dict.fromkeys((functional.bilinear, torch.bilinear), Rule(("input1", "input2", "weight", "bias"), _bilinear)),
}  # fmt: skip
