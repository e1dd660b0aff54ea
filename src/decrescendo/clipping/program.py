"""`Program`: a model and loss whose passes are checked: what runs a pass, and what is compared afterwards."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from decrescendo.base.batches import Batch, leaves_of
from decrescendo.clipping.autograd_check import AutogradCheck
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.passes import Pass, run
from decrescendo.clipping.workspace import Workspace
from decrescendo.row_independence.tracing import Numbers, Tracer, numbers_of

_HINT = (
    "decrescendo calls loss(model, batch), with the model itself and a batch as the data give it (tensors of the "
    "data's dtypes, a dimension of rows first), and wants one loss per example"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A model and loss, with the tensors that the model holds now.

    ``unseen``: the parameters whose gradients were zero where they were compared, which showed nothing.
    """

    autograd: AutogradCheck
    held: Inventory
    workspace: Workspace
    unseen: set[str]
    scored: bool = False
    # What is added to an error that the program raises in its first pass.
    hint: str = _HINT

    @property
    def devices(self) -> Collection[torch.device]:
        return {parameter.device for parameter in self.held.parameters.values()}

    def hint_for(self, error: Exception, batch: Batch) -> str:
        """What is added to an error of its first pass."""
        given = {str(leaf.dtype) for leaf in leaves_of(batch)}
        held = {str(parameter.dtype) for parameter in self.held.parameters.values()}
        if not re.search(r"\bd?type\b|scalar type", str(error)) or given <= held:
            return self.hint
        of_batch, of_model = (", ".join(sorted(names)) for names in (given, held))
        return f"{self.hint}. The batch has {of_batch}, the model {of_model}: convert the data"

    def run(self, rows: Batch, tracer: Tracer) -> Pass:
        autograd, scored = self.autograd, self.scored
        return run(autograd.model, self.held, autograd.loss, rows, self.workspace, tracer, scored=scored)

    def numbers(self) -> Numbers:
        return numbers_of(self.autograd.model, self.autograd.loss)

    def compare(self, batch: Batch, rows: int, small: Pass, seed: int) -> None:
        self.autograd.compare(batch, rows, small, seed)
        self.unseen.clear()
        self.unseen.update(small.squares().keys() - moving(small))

    def compare_answers(self, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        self.autograd.compare_answers(batch, rows, done, seed)


def moving(done: Pass) -> set[str]:
    """The parameters that have a gradient in a pass. (Squares are rounded up, those of nothing too.)"""
    squares, device = done.squares(), done.losses.device
    finite = [torch.where(torch.isfinite(one), one, 0.0).amax().to(device).float() for one in squares.values()]
    largest = torch.stack(finite).tolist() if finite else []  # of a GPU all at once
    least = 1e-24 * max(largest, default=0.0) + 1e-30
    return {name for name, square in zip(squares, largest, strict=True) if square > least}
