"""`Program`: the interface of what is checked for row independence, something that can run passes over a batch."""

from collections.abc import Collection
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from decrescendo.base.batches import Batch
from decrescendo.row_independence.python_state import Numbers
from decrescendo.row_independence.tracer import Tracer


@runtime_checkable
class Done(Protocol):
    """A pass that ran to its end."""

    @property
    def losses(self) -> Tensor:
        """One loss a row, shape ``(rows,)``."""
        ...

    @property
    def scores(self) -> Tensor | None:
        """One score a row, where there are any."""
        ...

    @property
    def tracer(self) -> Tracer:
        """What traced it."""
        ...


Passed = TypeVar("Passed", bound=Done)


@runtime_checkable
class Program(Protocol[Passed]):
    """What is checked: something that can be passed over rows, again and again."""

    @property
    def devices(self) -> Collection[torch.device]:
        """Where it draws random numbers, besides the CPU."""
        ...

    @property
    def hint(self) -> str:
        """What to say beside an error of its own in a first pass."""
        ...

    def run(self, rows: Batch, tracer: Tracer) -> Passed:
        """One pass over labelled rows, traced.

        Raises:
            UnsupportedModel: its result is not each row's own.
        """
        ...

    def numbers(self) -> Numbers:
        """The numbers and lengths that it stores in Python."""
        ...

    def compare(self, batch: Batch, rows: int, small: Passed, seed: int) -> None:
        """What else must hold of a small pass that no earlier one was like."""
        ...

    def compare_answers(self, batch: Batch, rows: int, done: Passed, seed: int) -> None:
        """What must hold of a pass in which Python asked for truth values of the data."""
        ...
