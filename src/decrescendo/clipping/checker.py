"""Each pass proven by itself; and, where the program does something new, that it does the same for another number.

What the labels of one pass cannot say is whether the program would do the same with more or fewer examples. So the
operations, their numbers and which tensors they were given are compared with those of the pass before over examples of
this shape; where they are others, with those of a second, small pass over another number of examples.

Longer than most files: a pass and the passes it is compared with are one argument.
"""

import functools
import math
import random
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.base.assumptions import assumed
from decrescendo.base.precision import exact_products, full_precision
from decrescendo.base.rng import seeded
from decrescendo.base.storages import key_of, tensors_of, unwatched
from decrescendo.clipping.batches import copy_rows, map_rows, slice_rows
from decrescendo.clipping.clipped import Batch, Loss, trainable_of
from decrescendo.clipping.factors import joint_norms
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import Signature, signature
from decrescendo.clipping.passes import Pass, eager, reads_a_number, run
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence.dataflow import Guess, Memory
from decrescendo.row_independence.dynamic_sizes import not_seen
from decrescendo.row_independence.labels import Mixed, RowLayout
from decrescendo.row_independence.python_state import Numbers, following, moved, numbers_of
from decrescendo.row_independence.refusals import GENERATOR, HOSTS
from decrescendo.row_independence.rules import declared_changes
from decrescendo.row_independence.torch_schemas import REJECTING
from decrescendo.row_independence.trace import Trace
from decrescendo.row_independence.tracer import Tracer

# Truth values of the data that a program may ask for in vain before its error is its own.
_ANSWERS = 64
# Numbers of examples with which a program is passed to see that it does the same.
_SMALL = (2, 3)
# Constants that are as long as a batch by coincidence alone that are found one by one, before all are at once.
_COINCIDENCES = 16
# Shapes of an example whose last accepted passes are remembered.
_SHAPES = 128
# Numbers of examples whose last passes are remembered, of each shape.
_COUNTS = 64
# How often data and weights are moved by their roundings where something cancels.
_SHAKES = 3
# Examples that are passed alone where the program asks for truth values of the data.
_ALONE = 8

_SAME = (
    "Divide by a constant (the expected batch size), not by len(batch), let no branch depend on it, and no number "
    "change from call to call (a clock, a counter)"
)
_CALLED = (
    "decrescendo calls loss(model, batch), with the model itself and a batch as the data give it (tensors of the "
    "data's dtypes, a dimension of rows first), and wants one loss an example"
)

CHANGES = (
    "the program does something else than in an earlier pass over as many examples (a weight of the loss that changes, "
    "say)"
)

# What numpy's global generator draws from inside of a pass.
_NUMPYS, _NUMPY = np.random.MT19937(0), cast("Any", np.random)


class Checker:
    """The passes of one model and loss."""

    def __init__(self, model: nn.Module, loss: Loss, declared: tuple[str, ...] = ()) -> None:
        self._model, self._loss, self._held = model, loss, Inventory.of(model)
        self.memory = Memory(declared)
        # The last accepted pass over examples of the shape at hand, and those over others.
        self._script: Trace | None = None
        self._scripts: dict[Signature, Trace] = {}
        self._shape: Signature = ()
        self._one_at_a_time = threading.RLock()
        # Truth values of the data that were asked for, and on how many examples alone they made no difference.
        self._idle: dict[tuple[bool, ...], int] = {}
        # Of small passes: how many examples, and the numbers that Python kept before and after.
        self._kept: list[tuple[int, Numbers, Numbers]] = []
        self._many = False
        # How often what was accepted was forgotten.
        self.epoch = 0
        self._rules = declared_changes()

    def withhold(self, data: Iterable[Tensor | np.ndarray]) -> None:
        """No pass may use these: what was accepted before is looked at anew."""
        with self._one_at_a_time:
            if self.memory.withhold(data):
                self._forget()

    def begin(self, batch: Batch, rows: int, held: Inventory, seed: int, workspace: Workspace) -> None:
        """A first pass over a few rows, if there was none over examples of their shape.

        They are as many whatever ``rows`` is (of fewer some come twice): what a program makes in its first pass and
        keeps, random numbers among it, would show how many there were.
        """
        with self._one_at_a_time:
            self._turn_to(batch, held)
            if self._script is None:
                few = min(rows, max(_SMALL))
                self._proven(slice_rows(batch, 0, few), few, max(_SMALL), seed, workspace)

    def run(
        self, batch: Batch, rows: int, count: int, held: Inventory, seed: int, workspace: Workspace
    ) -> Pass:
        """A pass over ``batch``. One pass at a time: the global generators are everybody's.

        ``count``: it is filled up to so many rows with those that it has, if these are more; one row is passed twice.
        ``held``: what the model holds.
        """
        with self._one_at_a_time:
            self._turn_to(batch, held)
            return self._proven(batch, rows, max(rows, count, min(_SMALL)), seed, workspace)

    def again(
        self, batch: Batch, count: int, held: Inventory, seed: int, workspace: Workspace,
        record: Callable[[], AbstractContextManager[object]],
    ) -> tuple[Pass, Tensor, list[Tensor], set[int]] | None:  # fmt: skip
        """A pass that does what an accepted one did, inside of ``record``, which captures it; the norms; what it reads
        that was there before; and the storages of what the proof lets it read. ``None`` where none was accepted yet.

        Raises:
            UnsupportedModel: what is captured would not be the pass.
        """
        with self._one_at_a_time:
            self._turn_to(batch, held)
            accepted = self._script and self._over(count, self._script)
            if self._script is None or accepted is None:
                return None
            tracer = Tracer(count, self.memory, seed, None, self._script.recipes, before=accepted)
            on_cpu = _on_cpu(held)
            tracer.stream.capturing, tracer.stream.once = not on_cpu, True
            seen = OnDevice(on_cpu=on_cpu)
            kept = numbers_of(self._model, self._loss)
            try:
                with drawing(held, seed), _unaware():
                    host = _drawn_by_python(held)
                    with record(), seen:
                        done = run(
                            self._model, held, self._loss, given(batch, count, tracer), workspace, tracer
                        )
                        with full_precision():
                            norms = _guarded(joint_norms(done), tracer.guards)
                    if host != _drawn_by_python(held):
                        raise UnsupportedModel("the program draws random numbers that are not the device's")
            except Exception as error:
                broken = moved(kept, numbers_of(self._model, self._loss))
                if broken and not on_cpu:
                    raise DoneByHalves(
                        f"a pass could not be captured, and the program keeps in {broken[0]} what was never computed. "
                        "Make the model anew, and leave out capture"
                    ) from error
                if not seen.reason:
                    raise
                raise UnsupportedModel(seen.reason) from error
            finally:
                tracer.end()
            changed = moved(kept, numbers_of(self._model, self._loss))
            if changed:
                raise UnsupportedModel(f"the program keeps something else after each pass in {changed[0]}")
            labels, looks = tracer.labels, tracer.reads
            if _rejects(tracer.trace) or tracer.trace.drawn:
                raise UnsupportedModel("random numbers are read in Python, or the data want one or several")
            if labels.counting or labels.known or looks.poisoned or looks.trusted:
                raise UnsupportedModel(
                    "what the data select, or a number of them that Python reads, decides a shape"
                )
            if seen.reason:
                raise UnsupportedModel(seen.reason)
            if seen.constants.keys() & {
                key_of(p.grad) for p in self._model.parameters() if p.grad is not None
            }:
                raise UnsupportedModel(
                    "what lies in .grad of a parameter is read, where each step puts other memory"
                )
            if not self._is_known(tracer.trace):
                raise DoesOtherwise(CHANGES)
            allowed = labels.numbers | tracer.lifted | {key_of(tensor) for _, tensor in held.tensors()}
            return done, norms, list(seen.constants.values()), allowed

    def kept(self) -> Numbers:
        """What Python keeps for the program now: numbers, lengths and texts, and which object lies where."""
        return numbers_of(self._model, self._loss, which=True)

    @staticmethod
    def _over(count: int, trace: Trace) -> Trace | None:
        """An accepted pass over as many examples."""
        known = (trace, *trace.alike.values(), *trace.smaller)
        return next((one for one in known if one.count == count), None)

    def _turn_to(self, batch: Batch, held: Inventory) -> None:
        """To what was accepted of examples of this shape, in this mode of the model."""
        self.follow_rules()
        self._held, shape = held, signature(held, batch)
        if shape == self._shape:
            return
        self._shape, self._script = shape, self._scripts.pop(shape, None)
        if self._script is not None:
            self._scripts[shape] = self._script  # the one used last is last

    def follow_rules(self) -> None:
        """What was accepted by a registered rule that was registered anew is looked at anew."""
        with self._one_at_a_time:
            if self._rules != (now := declared_changes()):
                self._rules = now
                self._forget()

    def _forget(self) -> None:
        self._scripts.clear()
        self._script, self._shape = None, ()
        self.epoch += 1

    def _accept(self, trace: Trace, small: list[Trace]) -> None:
        trace.smaller = small
        self._script = self._scripts[self._shape] = trace
        if len(self._scripts) > _SHAPES:
            del self._scripts[next(iter(self._scripts))]
            if not self._many:
                self._many = True
                warnings.warn(
                    f"examples come in more than {_SHAPES} shapes, and earlier ones are checked anew when they "
                    "come again, which takes longer than a step: pad them to multiples of some length "
                    "(pad_to_multiple_of=16)",
                    UserWarning, stacklevel=2,
                )  # fmt: skip

    def _proven(self, batch: Batch, rows: int, count: int, seed: int, workspace: Workspace) -> Pass:
        again, resolved = True, 0
        while True:
            self._kept.clear()
            first = self._try(batch, rows, count, seed, workspace)
            if isinstance(first, Pass) and self._is_known(first.tracer.trace):
                self._check_answers(batch, rows, first, seed)
                return first
            trace = first.tracer.trace if isinstance(first, Pass) else None
            try:
                with (
                    exact_products()
                ):  # they are compared with each other and with autograd, to float32's rounding
                    others = [
                        self._try(batch, rows, size, seed, workspace, trace)
                        for size in _SMALL
                        if size != count
                    ]
            except Exception:  # the program's own: of few rows, where a row of others was asked for
                if not isinstance(first, Pass):
                    raise first[0] from None
                raise
            tried = [first, *others]
            guesses = [(one.tracer if isinstance(one, Pass) else one[1]).guessed for one in tried]
            # A constant as long as one batch but not as another has its length for another reason.
            coincident = _coincident(guesses, self.memory.coincident)
            if coincident:
                # What comes after the first has other numbers where that is taken for rows: the legitimate too.
                first_one, resolved = min(coincident.values()), resolved + 1
                every = resolved > _COINCIDENCES
                self.memory.coincident |= {key for key, at in coincident.items() if every or at == first_one}
                continue
            if not isinstance(first, Pass):
                raise first[0]
            small = [one for one in others if isinstance(one, Pass)]
            differences = [first.tracer.trace.differs(one.tracer.trace) for one in small]
            if again and (len(small) < len(others) or any(differences)):
                again = False  # what a first pass makes and keeps (tables of positions), a second one finds
                continue
            for one in others:
                if not isinstance(one, Pass):
                    raise one[0]
            if any(differences):
                if first.tracer.generator and any("_C.Generator'" in found for found in differences if found):
                    raise UnsupportedModel(GENERATOR.format(first.tracer.generator))
                found = next(filter(None, differences))
                remedy = HOSTS if first.tracer.hosts and "lift_fresh" in found else _SAME
                raise UnsupportedModel(
                    "a pass must do the same for any number of examples, as otherwise each of them depends on how "
                    f"many others there are, got {found}. {remedy}"
                )
            self._check_kept()
            if first.tracer.reads.poisoned:
                self._check_steering(batch, rows, small[0], seed, workspace)
            with exact_products():  # as the passes that are looked at
                self._check_arithmetic(batch, rows, small[0], seed)
            self._check_answers(batch, rows, first, seed)
            scripts = [one.tracer.trace for one in (first, *small)]
            self._accept(scripts[0], scripts[1:])
            return first

    def _check_kept(self) -> None:
        """Whether a program keeps how many examples there were: a pass that is another one then may be so by that."""
        last = {count: (count, before, after) for count, before, after in self._kept}
        names = following(*last.values()) if len(last) == len(_SMALL) else []
        if names and self._script is not None:
            raise UnsupportedModel(
                "a pass must not depend on how many examples earlier ones had, got a program that does something else "
                f"than before and keeps their number in {names[0]}. Count steps, not examples, or outside of the loss"
            )
        self.memory.assumed |= {assumed("stored-count", name) for name in names}

    def _is_known(self, trace: Trace) -> bool:
        """Whether an accepted pass did the same; where one of as many examples did, only that is compared."""
        accepted = self._script
        if accepted is None:
            return False
        before = accepted.alike.get(trace.count)
        if before is not None and (before.events, before.shapes) == (trace.events, trace.shapes):
            return True
        if any(trace.differs(one) or trace.grows(one) for one in (accepted, *accepted.smaller)):
            return False
        if len(accepted.alike) < _COUNTS:
            accepted.alike[trace.count] = trace
        return True

    def _try(
        self,
        batch: Batch,
        rows: int,
        count: int,
        seed: int,
        workspace: Workspace,
        expected: Trace | None = None,
        poison: float = math.nan,
    ) -> Pass | tuple[DecrescendoError, Tracer]:
        """A pass over the first ``count`` rows, or as many as there are again and again; or why it is refused."""
        last = ""
        for _ in range(_ANSWERS):
            recipes = self._script.recipes if expected is None and self._script is not None else {}
            tracer = Tracer(count, self.memory, seed, expected, recipes, poison=poison, replays=expected)
            small = count in _SMALL and (expected is not None or self._script is None)
            before = numbers_of(self._model, self._loss) if small else {}
            try:
                with drawing(self._held, seed):
                    done = run(
                        self._model, self._held, self._loss, given(batch, rows, tracer), workspace, tracer
                    )
                if small:
                    self._kept.append((count, before, numbers_of(self._model, self._loss)))
                return done
            except DecrescendoError as error:
                return error, tracer
            except Exception as error:
                # An answer that no data have can be the wrong one: `if not valid.all(): raise`.
                if tracer.reads.poisoned:
                    return UnsupportedModel(reads_a_number(tracer.reads.poisoned)), tracer
                # An error of torch's may come of the data, and must change no answer.
                if tracer.raised or not tracer.reads.asked or tracer.reads.asked[-1] == last:
                    if tracer.refusal:
                        return UnsupportedModel(tracer.refusal), tracer
                    if tracer.counts.handed:
                        return UnsupportedModel(not_seen(type(error).__name__)), tracer
                    if not self._scripts:
                        error.add_note(_CALLED)
                    raise
                last = tracer.reads.asked[-1]
                self.memory.answers[last] = not self.memory.answers[last]
            finally:
                tracer.end()
        raise AssertionError("a program that asks for ever")

    def _check_steering(self, batch: Batch, rows: int, done: Pass, seed: int, workspace: Workspace) -> None:
        """Whether it makes a difference which number Python gets for one of the data that it reads."""
        for poison in (1e30, -1e30, 0.0):
            with exact_products():  # as ``done`` was
                other = self._try(batch, rows, done.tracer.count, seed, workspace, poison=poison)
            same = isinstance(other, Pass) and not other.tracer.trace.differs(done.tracer.trace)
            if not same or not isinstance(other, Pass) or not torch.equal(other.losses, done.losses):
                raise UnsupportedModel(reads_a_number(done.tracer.reads.poisoned))

    def _check_answers(self, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """Whether examples alone, which get the truth values they have, come out as in the batch, which does not.

        This is about doing what the program says: what no data answered is no secret.
        """
        tracer = done.tracer
        truths = tuple(tracer.reads.truths)
        if not tracer.reads.asked or self._idle.get(truths, 0) >= min(rows, _ALONE):
            return
        if _rejects(tracer.trace):
            return  # an example alone draws other numbers
        squares = torch.stack([square.cpu() for square in done.squares().values()]).sum(0).sqrt()
        parameters = list(trainable_of(self._held).values())
        # As many copies of the example as there are rows get the random numbers that its row got.
        copies = tracer.count if draws(tracer.trace) else 1
        for row in range(min(rows, _ALONE)):
            at = min(row, copies - 1)
            one = map_rows(lambda tensor: tensor[row : row + 1], batch)  # noqa: B023
            with torch.enable_grad():
                losses = self._plain(one, 1, copies, seed, tracer, exact=False)
                with tracer.stream.again():
                    found = torch.autograd.grad(losses[at], parameters, allow_unused=True)
            norm = torch.stack(
                [_norm(g) for g in cast("tuple[Tensor | None, ...]", found) if g is not None]
            ).norm()
            _compare_losses(done.losses[row : row + 1], losses[at : at + 1].detach(), tracer.reads.asked)
            if bool(torch.isfinite(norm)) and abs(float(squares[row] - norm)) > 0.01 * float(norm) + 1e-12:
                raise UnsupportedModel(_steered(tracer.reads.asked))
        self._idle[truths] = min(rows, _ALONE)

    def _plain(
        self, batch: Batch, rows: int, count: int, seed: int, recorded: Tracer, *, natural: bool = True,
        exact: bool = True,
    ) -> Tensor:  # fmt: skip
        """The losses as the program computes them by itself. What it keeps of them must not come back either."""
        tracer = Tracer(count, self.memory, seed, natural=natural, replays=recorded.trace)
        # ``h[mask] = weight`` selects rows here, and is `torch.where` where it is recorded: the same numbers are drawn.
        tracer.stream.jumps = dict(recorded.stream.jumps)
        try:
            with (
                drawing(self._held, seed),
                eager(),
                exact_products() if exact else nullcontext(),
                tracer,
            ):
                return self._loss(self._model, given(batch, rows, tracer))
        finally:
            tracer.end()

    def _check_arithmetic(self, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """The engine's losses, gradients and norms of a few examples against autograd's own.

        Raises:
            UnsupportedModel: they are not the same.
        """
        parameters = trainable_of(self._held)
        # A program that reads numbers gets none of them here either: it could keep what is true.
        natural = not done.tracer.reads.poisoned

        def plain() -> tuple[Tensor, ...]:
            with torch.enable_grad():
                return self._plain(
                    batch, rows, done.tracer.count, seed, done.tracer, natural=natural
                ).unbind()

        each = plain()
        losses = torch.stack(each).detach()
        if done.tracer.reads.asked:
            return  # then examples alone are compared
        self._check_losses(losses, batch, rows, done, seed)
        dtypes = [losses.dtype, done.tracer.coarsest, *(p.dtype for p in parameters.values())]
        tolerance = 2 * max(map(_tolerance, dtypes))
        with full_precision():
            squares = {name: found.sqrt() for name, found in done.squares().items()}
        for row in range(len(each)):
            try:
                found = _norms_and_errors(each[row], parameters, done, row)
            except RuntimeError:  # of a graph that allows one backward pass only (selective checkpoints)
                each = plain()
                found = _norms_and_errors(each[row], parameters, done, row)
            whole = math.hypot(*(norm for norm, _ in found.values()))
            if not math.isfinite(whole) or not all(torch.isfinite(norms[row]) for norms in squares.values()):
                continue  # it counts for nothing, as squares that overflow do
            for name, (norm, error) in found.items():
                # A gradient that cancels to zero (a bias before a normalisation) is rounding of the rest.
                # Measured is an upper bound, far above where the terms of a sum cancel.
                measured = float(squares[name][row])
                allowed = tolerance * (max(norm, measured) + 0.02 * whole) + 1e-15
                if done.tracer.reads.poisoned and not error <= allowed:
                    raise UnsupportedModel(reads_a_number(done.tracer.reads.poisoned))
                if not error <= allowed or measured < norm - allowed:
                    allowed += self._moved(name, batch, rows, done, seed, row)
                if not error <= allowed or measured < norm - allowed:
                    raise UnsupportedModel(
                        f"an example's gradient must be autograd's, got {name} with an error of {error:.1e} and a "
                        f"norm of {measured:.6g} for {norm:.6g}. A hook on it, or an operation that the engine "
                        "misreads? Freeze it, or write that part with ordinary torch operations"
                    )

    def _check_losses(self, losses: Tensor, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """The recorded losses against plain ones; what cancels (a student that is its teacher) is rounding."""
        try:
            _compare_losses(done.losses, losses, [], done.tracer.coarsest)
        except UnsupportedModel:
            once, again, *others = self._shaken(lambda plain: plain, batch, rows, done, seed)
            moved = torch.stack([(other - once).abs() for other in others]).amax(0)
            error = (done.losses - losses).abs()
            if not torch.equal(once, again) or not bool((error <= 4 * moved).all()):
                raise

    def _moved(self, name: str, batch: Batch, rows: int, done: Pass, seed: int, row: int) -> float:
        """How far autograd's gradient of one parameter goes where data and weights move by a few of their roundings.

        Positions whose gradients cancel leave what rounding makes of them, which no two orders of a sum agree on. A
        gradient that is another one for the same data is no matter of rounding.
        """
        parameter = trainable_of(self._held)[name]

        def gradient(losses: Tensor) -> Tensor:
            with done.tracer.stream.again():
                (found,) = torch.autograd.grad(
                    losses[row], [parameter], allow_unused=True, materialize_grads=True
                )
            return found

        once, again, *others = self._shaken(gradient, batch, rows, done, seed)
        return 4 * max(float(_norm(moved - once)) for moved in others) if torch.equal(once, again) else 0.0

    def _shaken(
        self, look: Callable[[Tensor], Tensor], batch: Batch, rows: int, done: Pass, seed: int
    ) -> list[Tensor]:
        """What ``look`` makes of the plain losses: twice, and where data and weights move by a few of their roundings
        (a student that is its teacher's copy moves away from it by weights alone)."""
        dice = torch.Generator().manual_seed(0)
        held = trainable_of(self._held).values()
        parameters = [parameter for parameter in held if type(parameter) is nn.Parameter]  # no parts of one

        def move(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            roundings = torch.randn(tensor.shape, generator=dice, device="cpu").to(
                tensor.device, tensor.dtype
            )
            return tensor + 4 * torch.finfo(tensor.dtype).eps * tensor * roundings

        def passed(given_rows: Batch) -> Tensor:
            with torch.enable_grad():
                return look(self._plain(given_rows, rows, done.tracer.count, seed, done.tracer)).detach()

        found = [passed(batch), passed(batch)]
        before = [parameter.detach().clone() for parameter in parameters]
        try:
            for _ in range(_SHAKES):
                for parameter, own in zip(parameters, before, strict=True):
                    parameter.data.copy_(move(own))  # past autograd, whose graphs of before are still used
                found.append(passed(map_rows(move, batch)))
        finally:
            for parameter, own in zip(parameters, before, strict=True):
                parameter.data.copy_(own)
        return found


def _coincident(guesses: list[dict[Guess, int]], known: set[Guess]) -> dict[Guess, int]:
    """Guesses that not every pass has made, and before which event the first one did."""
    found: dict[Guess, int] = {}
    for key in set[Guess]().union(*guesses) - known:
        if not all(key in guessed for guessed in guesses):
            found[key] = min(guessed[key] for guessed in guesses if key in guessed)
    return found


def _drop_empty_hooks(parameters: Iterable[nn.Parameter]) -> None:
    """torch calls none that are put beside hooks that are gone, once it has swapped the tensor (`swap_tensors`)."""
    for parameter in parameters:
        if not parameter._backward_hooks:
            parameter._backward_hooks = None


def _norms_and_errors(
    loss: Tensor, parameters: Mapping[str, nn.Parameter], done: Pass, row: int
) -> dict[str, tuple[float, float]]:
    """Of each parameter: the norm of autograd's gradient of one loss, and how far from it what was measured is.

    One gradient after another is there, not all at once.
    """
    one = torch.zeros_like(done.losses, dtype=done.measured.dtype)
    one[row] = 1
    # Nothing times infinity is not nothing: one example must not spoil what is found of another.
    bad = ~torch.isfinite(torch.stack([square.cpu() for square in done.squares().values()]).sum(0))
    measured = done.measured.without(bad) if bool(bad.any()) else done.measured
    found: dict[str, tuple[float, float]] = {}

    def compare(name: str, gradient: Tensor) -> Tensor:
        with full_precision(), torch.no_grad():
            error = (measured.scaled_sum(name, one) - gradient).norm()
            found[name] = float(_norm(gradient)), float(error)
        # What a backward pass keeps in the gradient's place, without memory of its own.
        return gradient if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

    _drop_empty_hooks(parameters.values())
    handles = [p.register_hook(functools.partial(compare, name)) for name, p in parameters.items()]
    try:
        with torch.enable_grad(), done.tracer.stream.again():
            torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
        _drop_empty_hooks(parameters.values())
    for name in parameters.keys() - found.keys():  # the loss does not depend on it
        found[name] = 0.0, float(measured.scaled_sum(name, one).norm())
    return found


def draws(trace: Trace) -> bool:
    """Whether a pass drew random numbers."""
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(event.func, "tags", ()) for event in trace.events)


def _rejects(trace: Trace) -> bool:
    """Whether it drew by laws that take as many random numbers as the data want."""
    return any(getattr(event.func, "_opname", "").removesuffix("_") in REJECTING for event in trace.events)


@contextmanager
def _unaware() -> Generator[None]:
    """Programs do the same whether or not they are captured."""
    told: Any = torch.cuda.is_current_stream_capturing
    cast("Any", torch.cuda).is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        cast("Any", torch.cuda).is_current_stream_capturing = told


def _guarded(norms: Tensor, guards: list[Tensor]) -> Tensor:
    """The norms; infinite, so that the pass is done in Python, where what was compared is not as it was.

    Raises:
        UnsupportedModel: so it is now, in the processor's memory.
    """
    host = [guard for guard in guards if guard.device != norms.device]
    if not all(map(bool, host)):
        raise UnsupportedModel(CHANGES)
    there = [guard for guard in guards if guard.device == norms.device]
    return torch.where(torch.stack(there).all(), norms, math.inf) if there else norms


def _drawn_by_python(held: Inventory) -> tuple[object, ...]:
    """Where the generators are that are not those of the model's device."""
    torchs = b"" if _on_cpu(held) else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), str(np.random.get_state()), torchs


def _on_cpu(held: Inventory) -> bool:
    return all(parameter.device.type == "cpu" for parameter in held.parameters.values())


class DoneByHalves(UnsupportedModel):
    """A program has kept what a broken capture would have computed."""


class DoesOtherwise(UnsupportedModel):
    """A pass that was to be captured is none that was accepted."""


class OnDevice(TorchDispatchMode):
    """Finds what comes from the processor's memory, or goes there, which a captured pass would do once; and what was
    there before the pass, by its storage."""

    def __init__(self, *, on_cpu: bool) -> None:
        super().__init__()
        self.reason = ""
        self._on_cpu = on_cpu
        self.constants: dict[int, Tensor] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            output = func(*args, **(kwargs or {}))
        except Exception:
            self.reason = self.reason or f"{func} waits for the device, or copies to or from it"
            raise
        given, made = tensors_of((*args, *(kwargs or {}).values())), tensors_of((output,))
        for tensor in given:
            if (key := key_of(tensor)) not in self._made and key not in self.constants:
                with unwatched():
                    self.constants[key] = tensor.detach()
        self._made.update(map(key_of, made))
        places = {tensor.device.type for tensor in (*given, *made)}
        host = [tensor for tensor in (*given, *made) if tensor.device.type == "cpu"]
        if not self._on_cpu and any(tensor.dim() for tensor in host):
            self.reason = self.reason or f"{func} is done in the processor's memory"
        elif len(places) > 1 and host:
            # A number beside tensors is an argument of the kernel.
            copied = func.overloadpacket.__name__.strip("_") in ("to_copy", "copy")
            if copied or any(tensor.device.type == "cpu" for tensor in made):
                self.reason = self.reason or f"{func} copies between the device and the processor's memory"
        return output


def given(batch: Batch, rows: int, tracer: Tracer) -> Batch:
    """As many rows as the tracer counts, in memory of their own, whose labels it knows.

    Their memory format is the batch's for any number of rows, or passes that are compared would differ by it.
    """
    index = None if rows == tracer.count else torch.arange(tracer.count, device="cpu") % rows

    def give(tensor: Tensor) -> Tensor:
        own = copy_rows(tensor.detach(), index)
        tracer.assign(tensor, Mixed("rows that were not given to the pass are used"))
        tracer.assign(own, RowLayout(0))
        return own.requires_grad_(tensor.requires_grad)

    with torch.inference_mode(False):
        return map_rows(give, batch)


@contextmanager
def drawing(held: Inventory, seed: int) -> Generator[None]:
    """Inside, the random numbers of a pass: torch's, Python's and numpy's global generators, which are afterwards as
    before. Where they went on from pass to pass, how many there were would show in them."""
    python, numpys, own = random.getstate(), np.random.get_state(legacy=False), _NUMPY.get_bit_generator()
    with seeded(max(seed, 0), {p.device for p in held.parameters.values()}):
        try:
            random.seed(seed)
            _NUMPY.set_bit_generator(_NUMPYS)
            np.random.seed([max(seed, 0) >> 32, max(seed, 0) & (2**32 - 1)])
            yield
        finally:
            random.setstate(python)
            _NUMPY.set_bit_generator(own)
            if numpys["has_gauss"]:  # a normal number that was made and not given yet
                np.random.set_state(numpys)


def _norm(gradient: Tensor) -> Tensor:
    """In float64, a part at a time: in float32 a million squares lose digits."""
    flat = gradient.detach().coalesce().values() if gradient.is_sparse else gradient.detach()
    parts = [part.abs().double().square().sum() for part in flat.flatten().split(2**20)]
    return (
        torch.stack(parts).sum().sqrt().cpu() if parts else torch.zeros((), dtype=torch.float64, device="cpu")
    )


def _compare_losses(
    recorded: Tensor, plain: Tensor, asked: list[str], computed: torch.dtype = torch.float64
) -> None:
    scale = plain.abs() + plain.abs().mean()
    error = (recorded - plain).abs()
    if bool((error > max(_tolerance(plain.dtype), _tolerance(computed)) * scale).any()):
        raise UnsupportedModel(
            _steered(asked)
            if asked
            else f"recording must not change a loss, got losses that moved by {float((error / scale).max()):.1e}. Is "
            "there randomness that torch's global generator does not give, or a model that counts its calls or keeps a "
            "state from batch to batch? Leave it out of the loss, or begin each batch with a new state"
        )


def _steered(asked: list[str]) -> str:
    return (
        f"the data must not steer the pass, but {', '.join(sorted(set(asked)))} asks for a truth value of them, on "
        "which "
        "losses or gradients depend. Use tensor operations there (torch.where), or declare the line: "
        f'EngineSettings(declared=("{asked[-1]}",))'
    )


def _tolerance(dtype: torch.dtype) -> float:
    wide, usual = (torch.float64, torch.complex128), (torch.float32, torch.complex64)
    return 1e-8 if dtype in wide else 2e-4 if dtype in usual else 5e-2
