"""`Program`: the interface of something whose passes over a batch are checked for row independence."""

from collections.abc import Collection
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from decrescendo.base.batches import Batch
from decrescendo.row_independence.python_state import Numbers
from decrescendo.row_independence.tracer import Tracer


@runtime_checkable
class Done(Protocol):
    """A finished pass."""

    @property
    def losses(self) -> Tensor:
        """One loss per row, shape ``(rows,)``."""
        ...

    @property
    def scores(self) -> Tensor | None:
        """One score per row, if there are any."""
        ...

    @property
    def tracer(self) -> Tracer:
        """The tracer of the pass."""
        ...


Passed = TypeVar("Passed", bound=Done)


@runtime_checkable
class Program(Protocol[Passed]):
    """Something that can be run over rows repeatedly, and is checked."""

    @property
    def devices(self) -> Collection[torch.device]:
        """The devices on which the program draws random numbers, besides the CPU."""
        ...

    @property
    def hint(self) -> str:
        """Text to add to an error that the program raises in its first pass."""
        ...

    def run(self, rows: Batch, tracer: Tracer) -> Passed:
        """Run one traced pass over labelled rows.

        Raises:
            UnsupportedModel: a row's result may depend on other rows.
        """
        ...

    def numbers(self) -> Numbers:
        """The numbers and lengths that the program keeps in Python."""
        ...

    def compare(self, batch: Batch, rows: int, small: Passed, seed: int) -> None:
        """Further checks of a small pass that differs from all earlier ones."""
        ...

    def compare_answers(self, batch: Batch, rows: int, done: Passed, seed: int) -> None:
        """Further checks of a pass in which Python read truth values of the data."""
        ...
