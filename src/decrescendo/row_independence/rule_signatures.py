"""Independence rules written like einsum ("ik,kj->ij"): rows along a letter that the output keeps stay independent."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

from decrescendo.row_independence.labels import (
    LAID_ALONG,
    LONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    is_fixed,
)

# The labels of the outputs: one for all of them, or one each.
Rule: TypeAlias = Callable[[Call], Label | Sequence[Label]]
_Symbol: TypeAlias = "str | tuple[str, int]"


@functools.cache
def symbols(spec: str, dims: int) -> tuple[_Symbol, ...]:
    """The name of each dimension: a letter; ``.`` for leading ones that broadcast from the right; ``*`` for
    any that mix.

    >>> symbols("nc*", 4), symbols(".ij", 3)
    (('n', 'c', '*', '*'), (('.', 0), 'i', 'j'))
    """
    free = dims - sum(letter.isalpha() for letter in spec)
    found: list[_Symbol] = []
    for letter in spec:
        if letter == ".":
            found += [(".", at) for at in reversed(range(free))]
        elif letter == "*":
            found += ["*"] * free
        else:
            found.append(letter)
    return tuple(found)


def signature(text: str) -> Rule:
    """The rule of an operation that treats the indices along a named dimension independently.

    ``"ik,kj->ij"`` is a matrix product: examples along ``i`` or ``j`` stay independent, along ``k`` they are summed. A
    capital letter and ``*`` name dimensions along which the operation mixes. ``+`` is an argument that broadcasts
    with the first output, ``_`` one that is ignored (sizes, or implied by the others).
    """
    inside, outside = (part.split(",") for part in text.split("->"))

    def rule(call: Call) -> Sequence[Label]:
        shown = [
            () if out is None else symbols(spec, out.dim()) for spec, out in zip(outside, call.outputs, strict=False)
        ]
        known = len(call.outputs)
        rows: list[tuple[RowLayout, _Symbol]] = []
        named: list[tuple[Tensor, tuple[_Symbol, ...]]] = []
        for at, tensor in enumerate(call.tensors):
            label = Public.FILL if tensor is None else call.label(tensor)
            if tensor is None or label is Public.FILL or (at < len(inside) and inside[at] == "_"):
                continue
            if isinstance(label, Mixed):
                return [call.mixed(label.why) if label.public else label] * known
            spec = inside[at] if at < len(inside) else ""
            dims = shown[0] if spec == "+" else symbols(spec, tensor.dim())
            if len(dims) < tensor.dim():
                return [call.mixed("its arguments have other dimensions than expected")] * known
            dims = dims[len(dims) - tensor.dim() :]
            if isinstance(label, RowLayout):
                rows.append((label, dims[label.dim]))
            if is_fixed(label):
                named.append((tensor, dims))
        real = [pair for pair in rows if not pair[0].constant] or rows
        if not real:
            return [Public.ANY] * known
        place, symbol = real[0]
        if symbol == "*" or (isinstance(symbol, str) and symbol.isupper()):
            return [call.mixed(SUMMED)] * known
        if any(at != symbol or not label.like(place) for label, at in real):
            return [call.mixed("examples meet examples")] * known
        if any(at != symbol for _, at in rows):
            return [call.mixed(LONG)] * known  # a constant as long as the batch, which no output's layout shows
        for tensor, dims in () if place.constant else named:
            if symbol in dims and not call.uniform(tensor, place.moved(dims.index(symbol))):
                return [call.mixed(LAID_ALONG)] * known
        found: list[Label] = [Public.ANY] * known
        for at, (spec, dims) in enumerate(zip(outside, shown, strict=False)):
            if spec != "_":
                out = call.outputs[at]
                there = symbol in dims and (out is None or len(dims) == out.dim())  # not with a mean over all of them
                found[at] = place.moved(dims.index(symbol)) if there else call.mixed(SUMMED)
        return found

    return rule
