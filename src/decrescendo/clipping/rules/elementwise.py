"""The rule for operations that work entry by entry: sums, products, choices, PReLU, and copies for each example.

With o = f(x, p) entry by entry and p broadcast over some dimensions, g_i = sum of d * df/dp over these. A
parameter as large as one example (position embeddings) has g_i = d_i itself: nothing is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.layout import Layout
from decrescendo.clipping.means import chunks
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, square_rows, weigh, zero_rows

# From d of some examples, and which these are, to d * df/dp entry by entry.
Factor: TypeAlias = Callable[[Tensor, slice], Tensor]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: its shape with a 1 for every dimension of (batch, ...) it was broadcast over, and df/dp."""

    aligned: tuple[int, ...]
    factor: Factor | None


@dataclass(slots=True)
class ElementKernel:
    """An operation entry by entry; ``None`` as factor where df/dp is one."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    slots: tuple[Slot, ...]
    bad: Bool[Tensor, " batch"] | None = None
    found: dict[int, Tensor] = field(default_factory=dict)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        return square_rows(self.per_example(slot, d))

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        return weigh(self.per_example(slot, d), weights)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if slot not in self.found:
            self.found[slot] = self._summed(slot, d).reshape(d.shape[0], *self.parameters[slot].shape)
        return self.found[slot]

    def _summed(self, slot: int, d: Tensor) -> Tensor:
        known = self.slots[slot]
        places = tuple(axis for axis in range(1, d.dim()) if known.aligned[axis] == 1 and d.shape[axis] != 1)
        if known.factor is None:
            d = d.real if d.is_complex() else d
            return d.sum(places) if places else d
        parts: list[Tensor] = []
        for part in chunks(d.shape[0], d[0].numel()):
            terms = known.factor(d[part], part)
            terms = terms.real if terms.is_complex() else terms
            parts.append(terms.sum(places) if places else terms)
        found = torch.cat(parts)
        return found if self.bad is None else zero_rows(found, self.bad)

    def without(self, rows: Bool[Tensor, " batch"]) -> "ElementKernel":
        return ElementKernel(self.parameters, (), self.slots, rows)


def align(shape: tuple[int, ...], output: tuple[int, ...], layout: Layout) -> tuple[int, ...] | None:
    """The shape of an argument beside ``Layout.split`` of the output; ``None`` where it has the examples in it.

    >>> from decrescendo.clipping.proof.places import Place
    >>> align((4,), (6, 5, 4), Layout.of(Place(0), 6))
    (1, 1, 4)
    >>> align((5, 1, 4), (5, 6, 4), Layout.of(Place(1), 6))
    (1, 5, 4)
    >>> align((6, 4), (6, 4), Layout.of(Place(0), 6)) is None
    True
    """
    if (
        len(shape) > len(output)
        or not output
        or layout.kind == "deep"
        or (layout.packing and layout.place.dim)
    ):
        return None
    padded = (1,) * (len(output) - len(shape)) + shape
    if layout.kind == "columns":
        return (1, padded[0], *padded[2:]) if padded[1] == 1 else None
    if padded[0] != 1:
        return None
    return padded if layout.kind == "rows" else (1, *padded)


def copies(call: Call) -> Kernel | None:
    """The kernel for one copy of a parameter for each example (a class token, an initial state)."""
    source = next(iter(call.tracked.values()))
    shape = tuple(source.shape)
    if call.layout.kind == "folded" and call.output == (call.layout.batch * shape[0], *shape[1:]):
        # Repeated for each example along a dimension it had (the heads of DeBERTa's positions).
        return ElementKernel((source,), (), (Slot((1, *shape), None),))
    return _build(call, [source], [None], ())


def _build(call: Call, parameters: list[Tensor], factors: list[Factor | None], saved: Any) -> Kernel | None:
    """One kernel for all parameters of one call, or ``None`` where one of them holds rows of the batch."""
    slots: list[Slot] = []
    for parameter, factor in zip(parameters, factors, strict=True):
        aligned = align(tuple(parameter.shape), call.output, call.layout)
        if aligned is None or parameter.is_complex():
            return None
        slots.append(Slot(aligned, factor))
    return ElementKernel(tuple(parameters), tuple(saved), tuple(slots))


@dataclass(frozen=True, slots=True)
class Operand:
    """The other argument of an operation: a number, or a tensor spread out beside the split output."""

    value: Any

    def near(self, d: Tensor, part: slice) -> Any:
        """The entries of some examples, of the kind of number that d is."""
        if not isinstance(self.value, Tensor):
            return self.value
        rows = self.value[part]
        return rows if rows.is_complex() or not rows.is_floating_point() else rows.to(d.dtype)

    def conjugate(self, d: Tensor, part: slice) -> Any:
        """The same, conjugated: what autograd multiplies d with."""
        near = self.near(d, part)
        return near.conj() if isinstance(near, Tensor) else near.conjugate()


def _operand(call: Call, value: Any) -> Operand:
    if not isinstance(value, Tensor):
        return Operand(value)
    return Operand(call.layout.split(value.detach().broadcast_to(call.output)))


def _times(other: Operand) -> Factor:
    return lambda d, part: d * other.conjugate(d, part)


def _linear(sign: float, reverse: bool) -> Callable[[Call, Mapping[str, Any]], Kernel | None]:
    """``input + alpha * other`` (sign 1) or ``input - alpha * other`` (sign -1); ``reverse``: other - input."""

    def build(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
        alpha = bound.get("alpha", 1)
        scales = {"input": 1.0, "other": sign * alpha}
        if reverse:
            scales = {"input": sign * alpha, "other": 1.0}
        parameters = [(scale, bound[role]) for role, scale in scales.items() if call.is_tracked(bound[role])]
        factors: list[Factor | None] = [
            None if scale == 1 else _times(Operand(scale)) for scale, _ in parameters
        ]
        return _build(call, [value for _, value in parameters], factors, ())

    return build


def _product(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    left, right = bound["input"], bound["other"]
    if call.is_tracked(left) and call.is_tracked(right):
        return None
    parameter, other = (left, right) if call.is_tracked(left) else (right, left)
    saved = (other,) if isinstance(other, Tensor) else ()
    return _build(call, [parameter], [_times(_operand(call, other))], saved)


def _quotient(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _divide(call, bound, bound["input"], bound["other"])


def _reciprocal(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    """``__rtruediv__``: other / input."""
    return _divide(call, bound, bound["other"], bound["input"])


def _divide(call: Call, bound: Mapping[str, Any], above: Any, below: Any) -> Kernel | None:
    if bound.get("rounding_mode") is not None or (call.is_tracked(above) and call.is_tracked(below)):
        return None
    saved = tuple(value for value in (above, below) if isinstance(value, Tensor))
    over, under = _operand(call, above), _operand(call, below)
    if call.is_tracked(above):
        return _build(call, [above], [lambda d, part: d / under.conjugate(d, part)], saved)

    def factor(d: Tensor, part: slice) -> Tensor:
        low = under.near(d, part)
        return -d * over.conjugate(d, part) / (low * low)

    return _build(call, [below], [factor], saved)


def _prelu(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    rows, weight = bound["input"], bound["weight"]
    if call.is_tracked(rows) or not call.is_tracked(weight):
        return None
    # One slope for all channels, or one for each entry of dimension 1; a vector without channels has one slope.
    shape = (weight.numel(), *[1] * (rows.dim() - 2)) if rows.dim() >= 2 else (1,)
    aligned = align(shape, call.output, call.layout)
    if aligned is None:
        return None
    below = _operand(call, rows.detach().clamp(max=0))
    return ElementKernel((weight,), (), (Slot(aligned, _times(below)),))


def _any(function: Callable[..., Any]) -> Callable[[Call, Mapping[str, Any]], Kernel | None]:
    """Any other operation entry by entry: its own backward pass, with every parameter spread out beforehand."""

    def build(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
        parameters = [value for value in bound.values() if call.is_tracked(value)]
        if len({id(value) for value in parameters}) < len(parameters):
            return None
        operands = {key: _operand(call, value) for key, value in bound.items()}
        if any(isinstance(value, Tensor) and value.is_complex() for value in bound.values()):
            return None

        def derivative(role: str) -> Factor:
            def factor(d: Tensor, part: slice) -> Tensor:
                with torch.enable_grad():
                    values = {key: operand.near(d, part) for key, operand in operands.items()}
                    spread = values[role].clone().requires_grad_()
                    output = function(**{**values, role: spread})
                    (found,) = torch.autograd.grad(output, spread, d)
                return found

            return factor

        factors: list[Factor | None] = [
            derivative(key) for key, value in bound.items() if call.is_tracked(value)
        ]
        return _build(call, parameters, factors, tuple(v for v in bound.values() if isinstance(v, Tensor)))

    return build


BINARY = ("input", "other", "alpha")
_ADD, _SUB = Rule(BINARY, _linear(1, False)), Rule(BINARY, _linear(-1, False))
_MUL = Rule(BINARY, _product)
_WHERE, _PRELU = Rule(("condition", "input", "other"), _any(torch.where)), Rule(("input", "weight"), _prelu)


def _filled(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``masked_fill`` with a value for each entry."""
    return torch.where(mask, value, input)


def _where_method(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    """``x.where(condition, other)``."""
    ordered = {key: bound[key] for key in ("condition", "input", "other")}
    return _WHERE.build(call, ordered)


RULES: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys((torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__), _ADD),
    **dict.fromkeys((torch.sub, torch.subtract, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__), _SUB),
    **dict.fromkeys((torch.rsub, Tensor.__rsub__), Rule(BINARY, _linear(-1, True))),
    **dict.fromkeys(
        (torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__), _MUL
    ),
    **dict.fromkeys(
        (torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__),
        Rule(("input", "other"), _quotient),
    ),
    Tensor.__rtruediv__: Rule(("input", "other"), _reciprocal),
    torch.where: _WHERE,
    Tensor.where: Rule(("input", "condition", "other"), _where_method),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), Rule(("input", "exponent"), _any(torch.pow))),
    **dict.fromkeys((torch.maximum, Tensor.maximum), Rule(("input", "other"), _any(torch.maximum))),
    **dict.fromkeys((torch.minimum, Tensor.minimum), Rule(("input", "other"), _any(torch.minimum))),
    **dict.fromkeys((torch.lerp, Tensor.lerp), Rule(("input", "end", "weight"), _any(torch.lerp))),
    **dict.fromkeys(
        (torch.clamp, torch.clip, Tensor.clamp, Tensor.clip), Rule(("input", "min", "max"), _any(torch.clamp))
    ),
    **dict.fromkeys((torch.addcmul, Tensor.addcmul), Rule(("input", "tensor1", "tensor2"), _any(torch.addcmul))),
    **dict.fromkeys((torch.addcdiv, Tensor.addcdiv), Rule(("input", "tensor1", "tensor2"), _any(torch.addcdiv))),
    **dict.fromkeys((torch.masked_fill, Tensor.masked_fill), Rule(("input", "mask", "value"), _any(_filled))),
    **dict.fromkeys((functional.prelu, torch.prelu, Tensor.prelu), _PRELU),
}  # fmt: skip
