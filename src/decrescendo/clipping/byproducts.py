"""What a loss hands out of a pass beside its losses, so that nobody needs a second forward pass for it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_NOTED = ContextVar[list[Tensor] | None]("byproducts", default=None)


def note_byproducts(tensors: list[Tensor]) -> None:
    """From within a loss: tensors whose row i depends on row i of the batch alone, for `Engine.before_step` to return.

    It returns nothing if one of them is another tensor. Like a loss they are private.
    """
    noted = _NOTED.get()
    if noted is not None:
        noted += tensors


def keep_byproducts_if(test: Callable[[Tensor], bool]) -> None:
    """After a loss: keep what it noted if all of it passes a test, else nothing."""
    noted = _NOTED.get()
    if noted and not all(map(test, noted)):
        noted.clear()


@contextmanager
def byproducts() -> Generator[list[Tensor]]:
    """Inside, what a loss notes comes into the list.

    >>> import torch
    >>> with byproducts() as noted:
    ...     note_byproducts([torch.zeros(2)])
    >>> noted
    [tensor([0., 0.])]
    """
    noted = list[Tensor]()
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)
