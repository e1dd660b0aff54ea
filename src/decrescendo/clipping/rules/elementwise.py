"""The rule for elementwise operations: sums, products, choices, PReLU, and copies for each example.

With o = f(x, p) entry by entry and p broadcast over some dimensions, g_i = sum of d * df/dp over these. A
parameter as large as one example (position embeddings) has g_i = d_i itself: nothing is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from decrescendo.clipping.layout import Layout
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, scale_and_sum, square_rows, zero_rows
from decrescendo.clipping.workspace import chunks

# A function of d of some examples, and of their slice, that gives d * df/dp entry by entry.
Factor: TypeAlias = Callable[[Tensor, slice], Tensor]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: its shape with a 1 for every dimension of (batch, ...) it was broadcast over, and df/dp."""

    aligned: tuple[int, ...]
    factor: Factor | None


@dataclass(slots=True)
class ElementKernel:
    """An elementwise operation; a slot's factor is ``None`` where df/dp is one."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    slots: tuple[Slot, ...]
    bad: Bool[Tensor, " batch"] | None = None
    found: dict[int, Tensor] = field(default_factory=dict)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        return square_rows(self.per_example(slot, d))

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        return scale_and_sum(self.per_example(slot, d), factors)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if slot not in self.found:
            self.found[slot] = self._summed(slot, d).reshape(d.shape[0], *self.parameters[slot].shape)
        return self.found[slot]

    def absorb(self, d: Tensor) -> bool:
        smaller = all(self._places(slot, d) for slot in range(len(self.slots)))
        if smaller:
            for slot in range(len(self.slots)):
                self.per_example(slot, d)
            # Frees the tensors that the factors hold.
            self.slots = tuple(replace(slot, factor=None) for slot in self.slots)
        return smaller

    def _places(self, slot: int, d: Tensor) -> tuple[int, ...]:
        """The dimensions that a gradient is summed over."""
        aligned = self.slots[slot].aligned
        return tuple(axis for axis in range(1, d.dim()) if aligned[axis] == 1 and d.shape[axis] != 1)

    def _summed(self, slot: int, d: Tensor) -> Tensor:
        known, places = self.slots[slot], self._places(slot, d)
        if known.factor is None:
            d = d.real if d.is_complex() else d
            return d.sum(places) if places else d
        parts: list[Tensor] = []
        for part in chunks(d.shape[0], d[0].numel(), d.device):
            terms = known.factor(d[part], part)
            terms = terms.real if terms.is_complex() else terms
            parts.append(terms.sum(places) if places else terms)
        found = torch.cat(parts)
        return found if self.bad is None else zero_rows(found, self.bad)

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "ElementKernel":
        found = {slot: zero_rows(gradient, rows) for slot, gradient in self.found.items()}
        return ElementKernel(self.parameters, (), self.slots, rows, found)


def align(shape: tuple[int, ...], output: tuple[int, ...], layout: Layout) -> tuple[int, ...] | None:
    """The shape in which an argument broadcasts with ``Layout.split`` of the output; ``None`` if it has rows itself.

    >>> from decrescendo.row_independence.tracing import RowLayout
    >>> align((4,), (6, 5, 4), Layout.of(RowLayout(0), 6))
    (1, 1, 4)
    >>> align((5, 1, 4), (5, 6, 4), Layout.of(RowLayout(1), 6))
    (1, 5, 4)
    >>> align((6, 4), (6, 4), Layout.of(RowLayout(0), 6)) is None
    True
    """
    if len(shape) > len(output) or not output or layout.kind == "deep" or (layout.packing and layout.place.dim):
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
    return kernel_of(call, [source], [None], ())


def kernel_of(call: Call, parameters: list[Tensor], factors: list[Factor | None], saved: Any) -> Kernel | None:
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
    """The other argument of an operation: a number, or a tensor broadcast to the split output."""

    value: Any

    def near(self, d: Tensor, part: slice) -> Any:
        """The entries of some examples; real floating-point ones in the dtype of d."""
        if not isinstance(self.value, Tensor):
            return self.value
        rows = self.value[part]
        return rows if rows.is_complex() or not rows.is_floating_point() else rows.to(d.dtype)

    def conjugate(self, d: Tensor, part: slice) -> Any:
        """The same, conjugated: what autograd multiplies d with."""
        near = self.near(d, part)
        return near.conj() if isinstance(near, Tensor) else near.conjugate()


def operand_of(call: Call, value: Any) -> Operand:
    """An argument as an `Operand`, broadcast to the split output."""
    if not isinstance(value, Tensor):
        return Operand(value)
    return Operand(call.layout.split(value.detach().broadcast_to(call.output)))


def _sum(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    """``input + other``: d itself, for both."""
    if bound.get("alpha", 1) != 1:
        return _SCALED_SUM(call, bound)
    parameters = [bound[role] for role in ("input", "other") if call.is_tracked(bound[role])]
    return kernel_of(call, parameters, [None] * len(parameters), ())


def _product(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    left, right = bound["input"], bound["other"]
    if call.is_tracked(left) and call.is_tracked(right):
        return None
    parameter, other = (left, right) if call.is_tracked(left) else (right, left)
    operand = operand_of(call, other)
    factor: Factor = lambda d, part: d * operand.conjugate(d, part)  # noqa: E731
    return kernel_of(call, [parameter], [factor], (other,) if isinstance(other, Tensor) else ())


def _any(function: Callable[..., Any]) -> Callable[[Call, Mapping[str, Any]], Kernel | None]:
    """The builder for any other elementwise operation: autograd of it, with every parameter broadcast beforehand."""

    def build(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
        parameters = [value for value in bound.values() if call.is_tracked(value)]
        if len({id(value) for value in parameters}) < len(parameters):
            return None
        operands = {key: operand_of(call, value) for key, value in bound.items()}
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

        factors: list[Factor | None] = [derivative(key) for key, value in bound.items() if call.is_tracked(value)]
        return kernel_of(call, parameters, factors, tuple(v for v in bound.values() if isinstance(v, Tensor)))

    return build


def _ordered(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """``function`` with keyword arguments, which it gets by position in the order of ``names``."""

    def call(**values: Any) -> Any:
        return function(*(values[name] for name in names))

    return call


_SCALED_SUM = _any(torch.add)
_BINARY, _PAIR = ("input", "other", "alpha"), ("input", "other")
_THREE, _CHOICE = ("input", "tensor1", "tensor2"), ("condition", "input", "other")
_WHERE, _FILL = _any(torch.where), _any(_ordered(torch.where, "mask", "value", "input"))
_REVERSED_DIVISION = _any(_ordered(torch.div, "other", "input"))
_TABLE: tuple[tuple[tuple[Any, ...], tuple[str, ...], Any], ...] = (
    ((torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__), _BINARY, _sum),
    ((torch.sub, torch.subtract, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__), _BINARY, _any(torch.sub)),
    ((torch.rsub, Tensor.__rsub__), _BINARY, _any(torch.rsub)),
    ((torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__), _PAIR,
     _product),
    ((torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__),
     _PAIR, _any(torch.div)),
    ((Tensor.__rtruediv__,), _PAIR, _REVERSED_DIVISION),
    ((torch.where,), _CHOICE, _WHERE),
    ((Tensor.where,), ("input", "condition", "other"), _WHERE),
    ((torch.pow, Tensor.pow, Tensor.__pow__), ("input", "exponent"), _any(torch.pow)),
    ((torch.maximum, Tensor.maximum), _PAIR, _any(torch.maximum)),
    ((torch.minimum, Tensor.minimum), _PAIR, _any(torch.minimum)),
    ((torch.lerp, Tensor.lerp), ("input", "end", "weight"), _any(torch.lerp)),
    ((torch.clamp, torch.clip, Tensor.clamp, Tensor.clip), ("input", "min", "max"), _any(torch.clamp)),
    ((torch.addcmul, Tensor.addcmul), _THREE, _any(torch.addcmul)),
    ((torch.addcdiv, Tensor.addcdiv), _THREE, _any(torch.addcdiv)),
    ((torch.masked_fill, Tensor.masked_fill), ("input", "mask", "value"), _FILL),
)  # fmt: skip
RULES: dict[Callable[..., Any], Rule] = {
    function: Rule(names, build) for functions, names, build in _TABLE for function in functions
}
