"""Runs the passes of one model and loss: each is checked for row independence, and compared with autograd."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np
from torch import Tensor, nn

from decrescendo.base.batches import Batch, slice_rows
from decrescendo.base.precision import exact_products, full_precision
from decrescendo.base.storages import key_of
from decrescendo.clipping.autograd_check import AutogradCheck
from decrescendo.clipping.captured_pass import (
    CHANGES,
    OnDevice,
    OtherOperations,
    UncomputedStateKept,
    drawn_by_python,
    guarded,
    is_on_cpu,
    unaware,
)
from decrescendo.clipping.clipped import Loss
from decrescendo.clipping.comparison import SMALL, Comparison
from decrescendo.clipping.factors import joint_norms
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import signature
from decrescendo.clipping.passes import Pass, run
from decrescendo.clipping.program import Program, moving
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import (
    Numbers,
    Tracer,
    changed_places,
    drawing,
    labelled_rows,
    numbers_of,
    rejects,
)

# How many times gradients are compared again that were zero before.
_AGAIN = 3


class Checker:
    """Runs the passes of one model and loss, checked for row independence."""

    def __init__(self, model: nn.Module, loss: Loss, declared: tuple[str, ...] = (), *, scored: bool = False) -> None:
        self._model, self._loss, self._scored = model, loss, scored
        # The accepted passes; and records of tensors and Python state that outlive a pass.
        self.comparison = Comparison(declared)
        self.memory = self.comparison.memory
        self._autograd = AutogradCheck(model, loss, self.memory, Inventory.of(model))
        # Compared anew when they have gradients: behind a layer of zeros every gradient is zero at first.
        self._unseen, self._compared_again = set[str](), 0

    def withhold(self, data: Iterable[Tensor | np.ndarray]) -> None:
        """Forbid passes to read these data except through their batch; accepted passes are compared anew."""
        with self.comparison.lock:
            if self.memory.withhold(data):
                self.comparison.forget()

    def begin(self, batch: Batch, rows: int, held: Inventory, seed: int, workspace: Workspace) -> None:
        """Run a first pass over a few rows, if there was none over examples of their shape."""
        with self.comparison.lock:
            self._turn_to(batch, held)
            self.comparison.begin(
                Program(self._autograd, held, workspace, self._unseen, self._scored), batch, rows, seed
            )

    def run(self, batch: Batch, rows: int, count: int, held: Inventory, seed: int, workspace: Workspace) -> Pass:
        """A checked pass over ``batch``; one at a time, as all passes seed the global generators.

        ``count``: the batch is padded with its own rows to so many, if that is more; one row is passed twice.
        ``held``: the model's inventory.
        """
        with self.comparison.lock:
            self._turn_to(batch, held)
            program = Program(self._autograd, held, workspace, self._unseen, self._scored)
            done = self.comparison.checked(program, batch, rows, max(rows, count, min(SMALL)), seed)
            if self._unseen and self._compared_again < _AGAIN and self._unseen & moving(done):
                self._compared_again += 1
                few = min(rows, max(SMALL))
                first = slice_rows(batch, 0, few)
                with exact_products():
                    small = self.comparison.checked(program, first, few, max(SMALL), seed)
                    program.compare(first, few, small, seed)
            return done

    def capture(
        self, batch: Batch, count: int, held: Inventory, seed: int, workspace: Workspace,
        record: Callable[[], AbstractContextManager[object]],
    ) -> tuple[Pass, Tensor, list[Tensor], set[int]] | None:  # fmt: skip
        """A pass inside ``record``, which captures it, checked to run an accepted pass's operations. Returns it, its
        norms, the tensors from before it that it reads, and the storages that it may read; ``None`` if none was
        accepted yet.

        Raises:
            UnsupportedModel: replays would not repeat the pass.
        """
        with self.comparison.lock:
            self._turn_to(batch, held)
            last, accepted = self.comparison.accepted, self.comparison.over(count)
            if last is None or accepted is None:
                return None
            tracer = Tracer(count, self.memory, seed, None, last.recipes, before=accepted)
            on_cpu = is_on_cpu(held)
            tracer.stream.capturing, tracer.stream.once = not on_cpu, True
            seen = OnDevice(on_cpu=on_cpu)
            kept = self.kept()
            self.comparison.runs += 1
            try:
                with drawing({p.device for p in held.parameters.values()}, seed), unaware():
                    host = drawn_by_python(held)
                    with record(), seen:
                        done = run(
                            self._model,
                            held,
                            self._loss,
                            labelled_rows(batch, count, tracer),
                            workspace,
                            tracer,
                            scored=self._scored,
                        )
                        with full_precision():
                            norms = guarded(joint_norms(done), tracer.guards)
                    if host != drawn_by_python(held):
                        raise UnsupportedModel("the program draws random numbers that are not the device's")
            except Exception as error:
                broken = changed_places(kept, self.kept())
                if broken and not on_cpu:
                    raise UncomputedStateKept(
                        f"a pass could not be captured, and the program keeps in {broken[0]} what was never computed. "
                        "Make the model anew, and leave out capture"
                    ) from error
                if not seen.reason:
                    raise
                raise UnsupportedModel(seen.reason) from error
            finally:
                tracer.end()
            changed = changed_places(kept, self.kept())
            if changed:
                raise UnsupportedModel(f"the program keeps something else after each pass in {changed[0]}")
            labels, looks = tracer.labels, tracer.reads
            if rejects(tracer.trace) or tracer.trace.drawn:
                raise UnsupportedModel("random numbers are read in Python, or the data want one or several")
            if labels.counting or labels.known or looks.poisoned or looks.trusted:
                raise UnsupportedModel("what the data select, or a number of them that Python reads, decides a shape")
            if seen.reason:
                raise UnsupportedModel(seen.reason)
            if seen.constants.keys() & {key_of(p.grad) for p in self._model.parameters() if p.grad is not None}:
                raise UnsupportedModel("what lies in .grad of a parameter is read, where each step puts other memory")
            if not self.comparison.is_known(tracer.trace):
                raise OtherOperations(CHANGES)
            allowed = labels.numbers | tracer.lifted | {key_of(tensor) for _, tensor in held.tensors()}
            return done, norms, list(seen.constants.values()), allowed

    def kept(self) -> Numbers:
        """The Python state of the program now: numbers, lengths and strings, and the identity of other
        objects."""
        return numbers_of(self._model, self._loss, identities=True)

    def _turn_to(self, batch: Batch, held: Inventory) -> None:
        """Select the accepted passes for examples of this shape and this mode of the model."""
        self._autograd.held = held
        self.comparison.turn_to(signature(held, batch))
