"""What a recording consists of: calls of functions, with numbers in place of the tensors that were recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.integrations.opacus.constants import Constant
from decrescendo.integrations.opacus.outputs import tree_leaves
from decrescendo.row_independence.tracing import Numbers, numbers_of


@dataclass(frozen=True, slots=True)
class Ref:
    """The tensor with this number on a tape, among the arguments of a call."""

    number: int


# A tensor that a call of the model made and did not return.
INSIDE = Ref(-2)


@dataclass(frozen=True, slots=True)
class Stale:
    """A tensor made from an earlier batch, among the arguments of a call."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The number of rows of a batch, among the arguments of a call."""

    number: int


_KNOWN = (
    Ref, Rows, Stale, Constant, Tensor, bool, int, float, complex, str, slice, type(None), type(...), torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip


class RowCount(int):
    """The number of rows of a batch, as a loop reads it from a shape: of another batch it is another number.

    What Python computes from it is a number like any other: whoever asks for it has read something of the batch.
    """


def objects_in(tree: Any) -> list[Any]:
    """Arguments of a call that are no tensors, numbers, names and the like."""
    return [leaf for leaf in tree_leaves(tree) if not isinstance(leaf, _KNOWN)]


def numbers_in(tree: Any) -> Numbers:
    """The numbers and texts that such objects hold, by path; empty where there are none.

    >>> numbers_in((1.0, slice(3)))
    {}
    """
    objects = objects_in(tree)
    found = numbers_of(nn.Identity(), objects, choices=True) if objects else {}
    return {name.replace("loss", "object", 1): value for name, value in found.items()}


def modes_of(module: nn.Module) -> tuple[bool, ...]:
    """Which of its modules are in training mode.

    >>> modes_of(nn.Dropout().eval())
    (False,)
    """
    return tuple(one.training for one in module.modules())


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One function of torch's that a loop called, or its model, where ``func`` is ``None``.

    Args:
        func: the function.
        args: its arguments by place, with a `Ref` for each recorded tensor, and a `Constant` for each other one.
        kwargs: its arguments by name.
        outputs: the tensors in what it returned.
        grad: whether gradients were recorded.
        numbers: copies of those outputs that are one number, as the loop may change them in place.
        random: the state of the CPU's random numbers before the model was called.
        training: the modes that the model and its parts were in (`modes_of`).
        held: numbers in objects among the arguments (`numbers_in`), at the time of the call.
        form: what the model returned, with a `Ref` to its place among the outputs for each tensor; ``None`` where
            the call may have done something else that can be seen.
    """

    func: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Ref, ...]
    grad: bool
    numbers: dict[Ref, Tensor] = field(default_factory=dict[Ref, Tensor])
    random: Tensor | None = None
    training: tuple[bool, ...] | None = None
    form: Any = None
    held: Numbers = field(default_factory=Numbers)

    @property
    def name(self) -> str:
        """That of the function."""
        return "the model" if self.func is None else getattr(self.func, "__name__", "a function")

    @property
    def writes(self) -> bool:
        """Whether it changes one of its arguments in place."""
        name = self.name
        in_place = name.endswith("_") and not name.endswith("__")
        operator = name[:3] == "__i" and hasattr(Tensor, f"__{name[3:]}")
        asked = "out" in self.kwargs or self.kwargs.get("inplace") is True
        return in_place or operator or asked or name == "__setitem__"


_IN_PLACE = {
    "__iadd__": torch.add, "__isub__": torch.sub, "__imul__": torch.mul, "__itruediv__": torch.div,
    "__idiv__": torch.div, "add_": torch.add, "sub_": torch.sub, "mul_": torch.mul, "div_": torch.div,
}  # fmt: skip


def out_of_place(func: Any) -> Any:
    """Arithmetic in place, as a function that returns a new tensor; other functions as they are."""
    return _IN_PLACE.get(getattr(func, "__name__", ""), func)
