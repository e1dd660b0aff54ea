"""`Rule` and `Kernel`: how an operation gives per-example norms and weighted sums; new layers plug in
here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decrescendo.clipping.clipped import norm_dtype
from decrescendo.clipping.layout import Kind, Layout
from decrescendo.clipping.workspace import Workspace

# So many float32 squares, at most, are added in float32, in any order: more would lose too many digits.
_BLOCK = 64
# Squares below it may vanish (flushed to zero, or with few digits left).
_TINY = 2.0**-126
_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# Bytes of float32 rows that are converted at once for a weighted sum in float64.
_WIDENED = 2**24


@dataclass(frozen=True, slots=True)
class Call:
    """One use of trainable parameters by one operation, as seen in the forward pass.

    Args:
        name: of the operation, for messages.
        function: what was called.
        args, kwargs: with what; of an operation that writes into its first argument, a copy from before.
        output: the shape of what it returned.
        layout: where the examples are in its output.
        tracked: the arguments that are trainable parameters or made from them alone, by ``id``.
        layout_of: where the examples are in an argument; ``None`` where it has none.
        workspace: memory and choice of methods.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: tuple[int, ...]
    layout: Layout
    tracked: Mapping[int, Tensor]
    layout_of: Callable[[Tensor], Layout | None]
    workspace: Workspace

    def bind(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(names, self.args, strict=False)) | dict(self.kwargs)

    def holds(self, value: Tensor) -> bool:
        """Whether an argument has the output's row layout."""
        own = self.layout_of(value)
        return own is not None and own.packing is self.layout.packing and self.layout.place.same(own.place)

    def is_tracked(self, value: object) -> bool:
        """Whether an argument is a trainable parameter, or made from parameters only."""
        return id(value) in self.tracked


@runtime_checkable
class Kernel(Protocol):
    """One recorded operation, which turns its output gradient d into per-example parameter gradients.

    ``d`` is (batch, ...) as `Layout.split` makes it, of at least float32. ``slot`` counts ``parameters``.
    """

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tracked tensors whose gradients it gives; the same one may occur twice."""
        ...

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """Tensors that it reads after the forward pass; they must not be written to in between."""
        ...

    def squared_norms(self, slot: int, d: Float[Tensor, "batch *rest"]) -> Float[Tensor, " batch"]:
        """|g_i|^2 of one parameter for each example i, never below the exact value: measured in float64 or rounded up.

        What is measured is what `scaled_sum` weighs: where the sum uses other roundings of g_i than the norm did,
        the difference belongs into the norm.
        """
        ...

    def scaled_sum(
        self, slot: int, d: Float[Tensor, "batch *rest"], factors: Float[Tensor, " batch"]
    ) -> Float[Tensor, "*shape"]:
        """sum_i w_i g_i of one parameter, in its shape."""
        ...

    def per_example(self, slot: int, d: Float[Tensor, "batch *rest"]) -> Float[Tensor, "batch *shape"]:
        """g_i of one parameter for each example i."""
        ...

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "Kernel":
        """The same kernel with the inputs of these examples zero, so that 0 times infinity does not arise."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """How an operation is turned into a `Kernel`.

    Args:
        names: of its positional arguments.
        build: makes the kernel; ``None`` where this use is not one the rule covers (the fallback takes it).
        layouts: which layouts of its output it understands.
    """

    names: tuple[str, ...]
    build: Callable[[Call, Mapping[str, Any]], Kernel | None]
    layouts: tuple[Kind, ...] = ("rows", "folded", "interleaved", "columns", "packed")


def zero_rows(tensor: Tensor, rows: Bool[Tensor, " batch"]) -> Tensor:
    """``tensor`` (batch, ...) with the given rows zero."""
    return tensor.masked_fill(rows.reshape(-1, *[1] * (tensor.dim() - 1)), 0)


def scale_and_sum(
    per_example: Float[Tensor, "batch *shape"], factors: Float[Tensor, " batch"]
) -> Float[Tensor, "*shape"]:
    """sum_i w_i g_i from materialised gradients.

    >>> import torch
    >>> scale_and_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 0.5]))
    tensor([2.5000, 4.0000])
    """
    flat = per_example.reshape(per_example.shape[0], -1)
    dtype = torch.promote_types(flat.dtype, factors.dtype)
    factors = factors.to(dtype)
    if dtype == flat.dtype:
        return (factors @ flat).reshape(per_example.shape[1:])
    total = torch.zeros(flat.shape[1], dtype=dtype, device=flat.device)
    rows = max(1, _WIDENED // max(1, flat.shape[1] * flat.element_size()))
    for start in range(0, flat.shape[0], rows):
        total += factors[start : start + rows] @ flat[start : start + rows].to(dtype)
    return total.reshape(per_example.shape[1:])


def square_rows(rows: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"]:
    """Sum of squares of each row, at least the exact one, in float64; infinite where float32 squares overflow.

    Guarantee:
        never below the exact sum, whatever the order of the additions: at most 64 squares are added in float32
        (relative error below 68 units of rounding, which are added back), the rest in float64; what underflow
        took, at most 2^-126 a number, is added back too.

    >>> import torch
    >>> square_rows(torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]])).round(decimals=4)
    tensor([5., 9.], dtype=torch.float64)
    """
    # A norm needs no tensor of squares; making one costs more than the sum. torch adds the squares one after another,
    # which loses 1.5 % over ten million.
    wide = norm_dtype(rows.device)
    if not len(rows):
        return torch.zeros(0, dtype=wide, device=rows.device)
    flat = rows.reshape(len(rows), -1)
    count = flat.shape[1]
    if flat.dtype == torch.float64:
        squares = torch.linalg.vector_norm(flat, dim=1).square()
        return squares.mul_(1 + (count + 4) * _UNIT[torch.float64]).add_(count * 2.0**-1022)
    if count <= _BLOCK:
        squares = torch.linalg.vector_norm(flat, dim=1).square().to(wide)
    else:
        whole = count // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(flat[:, :whole].reshape(flat.shape[0], -1, _BLOCK), dim=2)
        squares = blocks.square().to(wide).sum(1)
        if whole < count:
            squares += torch.linalg.vector_norm(flat[:, whole:], dim=1).square()
    return round_up(squares, count)


def round_up(squares: Float[Tensor, " batch"], count: int) -> Float[Tensor, " batch"]:
    """Sums of ``count`` squares, at most 64 of them added in float32, to no less than the exact sums; in place.

    >>> import torch
    >>> bool(round_up(torch.tensor([1.0], dtype=torch.float64), 1) > 1)
    True
    """
    return squares.mul_(1 + (min(count, _BLOCK) + 4) * _UNIT[torch.float32]).add_(count * _TINY)
