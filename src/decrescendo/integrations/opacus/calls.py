"""What a recording consists of: calls of functions, with numbers in place of the tensors that were recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ref:
    """The tensor with this number on a tape, among the arguments of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Stale:
    """A tensor made from an earlier batch, among the arguments of a call."""


class RowCount(int):
    """The number of rows of a batch, as a loop reads it from a shape: of another batch it is another number."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One function of torch's that a loop called, or its model, where ``func`` is ``None``.

    Args:
        func: the function.
        args: its arguments by place, with a `Ref` for each recorded tensor.
        kwargs: its arguments by name.
        outputs: the tensors in what it returned.
        grad: whether gradients were recorded.
        random: the state of the CPU's random numbers before the model was called.
        training: the mode that the model was in.
    """

    func: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Ref, ...]
    grad: bool
    random: Tensor | None = None
    training: bool | None = None

    @property
    def writes(self) -> bool:
        """Whether it changes one of its arguments in place."""
        name = getattr(self.func, "__name__", "")
        return (
            name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or "out" in self.kwargs
        )


@dataclass(slots=True)
class Reads:
    """What a loop read in Python from its batches, and from what it made of them.

    Attributes:
        any: whether it read something.
        numbers: those that it read one by one.
    """

    any: bool = False
    numbers: set[float] = field(default_factory=set)

    def __contains__(self, value: object) -> bool:
        """Whether this is one of the numbers, and none that a loss may have by itself."""
        return isinstance(value, float) and bool(value * 4096 % 1) and value in self.numbers
