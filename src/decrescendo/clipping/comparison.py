"""Checks that a program runs the same operations at any batch size: compares passes over a batch with passes
over two and three rows.

Dependency labels of one pass cannot say what a pass over another number of rows would do. So its operations, their
numbers and tensor arguments are compared with those of accepted passes; if they differ from all, with small passes.
"""

import math
import threading
import warnings
from collections.abc import Hashable

import torch

from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import Batch, slice_rows
from decrescendo.base.precision import exact_products
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.program import Program
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence.tracing import (
    GENERATOR,
    HOSTS,
    UNSEARCHED,
    Memory,
    Numbers,
    SuspectConstant,
    Trace,
    Tracer,
    declared_changes,
    drawing,
    growing_with_rows,
    hosts_drew,
    labelled_rows,
    raised_with_size,
    reads_a_number,
    without_keys,
)

# At most so many branch answers are flipped to avoid an error of the program; then the error is raised.
_ANSWERS = 64
# Batch sizes of the small passes that every new pass is compared with.
SMALL = (2, 3)
# Constants as long as the batch by coincidence are resolved one by one, so many at most; then all at once.
_COINCIDENCES = 16
# Accepted passes are stored for so many row shapes (the last used),
_SHAPES = 128
# and for so many batch sizes of each shape.
_COUNTS = 64

_SAME = (
    "Divide by a constant (the expected batch size), not by len(batch), let no branch depend on it, and no number "
    "change from call to call (a clock, a counter)"
)


class Comparison:
    """The accepted passes of one program by row shape, with which new passes are compared.

    Args:
        declared: lines of code (``"file.py:12"``) that may read values of the data.
    """

    def __init__(self, declared: tuple[str, ...] = ()) -> None:
        self.memory = Memory(declared)
        # The last accepted pass over rows of the current shape; then those of all shapes.
        self.accepted: Trace | None = None
        self.by_shape: dict[Hashable, Trace] = {}
        self._shape: Hashable = ()
        self.lock = threading.RLock()
        # Per small pass: its batch size, and `Numbers` before and after it.
        self._stored: list[tuple[int, Numbers, Numbers]] = []
        self._warned = False
        # How many times accepted passes were forgotten, and how many times the program ran.
        self.epoch = self.runs = 0
        self._rules = declared_changes()

    def turn_to(self, shape: Hashable) -> None:
        """Select the accepted passes for rows of this shape."""
        self.follow_rules()
        if shape == self._shape:
            return
        self._shape, self.accepted = shape, self.by_shape.pop(shape, None)
        if self.accepted is not None:
            self.by_shape[shape] = self.accepted  # moved to the end: least recently used comes first

    def follow_rules(self) -> None:
        """Forget all accepted passes if `register_rule` has changed a rule since."""
        with self.lock:
            if self._rules != (now := declared_changes()):
                self._rules = now
                self.forget()

    def forget(self) -> None:
        """Forget all accepted passes, of every row shape."""
        self.by_shape.clear()
        self.accepted, self._shape = None, ()
        self.epoch += 1

    def over(self, count: int) -> Trace | None:
        """An accepted pass over ``count`` rows of the current shape, if there is one."""
        if self.accepted is None:
            return None
        known = (self.accepted, *self.accepted.alike.values(), *self.accepted.smaller)
        return next((one for one in known if one.count == count), None)

    def begin(self, program: Program, batch: Batch, rows: int, seed: int) -> None:
        """Run and check a first pass over three rows, if rows of this shape had no pass yet.

        It has three rows whatever ``rows`` is (fewer are repeated): state that a program creates in its first pass and
        stores, random numbers included, would otherwise show the batch size.
        """
        if self.accepted is None:
            few = min(rows, max(SMALL))
            self.checked(program, slice_rows(batch, 0, few), few, max(SMALL), seed)

    def checked(self, program: Program, batch: Batch, rows: int, count: int, seed: int) -> Pass:
        """Run and check a pass over the first ``count`` rows of ``batch`` (repeated if there are fewer), with
        the passes that it must be compared with.

        Raises:
            UnsupportedModel: a row's result may depend on other rows, on its position or on the number of rows.
        """
        again, resolved = True, 0
        while True:
            self._stored.clear()
            first = self._try(program, batch, rows, count, seed)
            if not isinstance(first, tuple) and self.is_known(first.tracer.trace):
                program.compare_answers(batch, rows, first, seed)
                return first
            trace = first.tracer.trace if not isinstance(first, tuple) else None
            try:
                with (
                    exact_products()
                ):  # small passes are compared with each other and with autograd, to float32's rounding
                    others = [self._try(program, batch, rows, size, seed, trace) for size in SMALL if size != count]
            except Exception:  # the program's own error on a small batch (it indexes a row that is not there)
                if isinstance(first, tuple):
                    raise first[0] from None
                raise
            tried = [first, *others]
            guesses = [(one.tracer if not isinstance(one, tuple) else one[1]).guessed for one in tried]
            # A constant as long as the batch in one pass but not in another is so by coincidence.
            coincident = _coincident(guesses, self.memory.coincident)
            if coincident:
                # Wrongly labelled, the first one also disturbs constants after it: resolve only the first.
                first_one, resolved = min(coincident.values()), resolved + 1
                every = resolved > _COINCIDENCES
                self.memory.coincident |= {key for key, at in coincident.items() if every or at == first_one}
                continue
            if isinstance(first, tuple):
                raise first[0]
            small = [one for one in others if not isinstance(one, tuple)]
            differences = [first.tracer.trace.differs(one.tracer.trace) for one in small]
            if again and (len(small) < len(others) or any(differences)):
                again = False  # state cached by the first pass (position tables) is found by the second
                continue
            for one in others:
                if isinstance(one, tuple):
                    raise one[0]
            if found := next(filter(None, differences), ""):
                raise UnsupportedModel(_differing(first.tracer, differences, found))
            self._check_stored()
            if first.tracer.reads.poisoned:
                self._check_steering(program, batch, rows, small[0], seed)
            with exact_products():  # as for the small passes
                program.compare(batch, rows, small[0], seed)
            program.compare_answers(batch, rows, first, seed)
            scripts = [one.tracer.trace for one in (first, *small)]
            self._accept(scripts[0], scripts[1:])
            return first

    def _check_stored(self) -> None:
        """Refuse a program that stores the batch size in Python: a later pass may depend on it."""
        last = {count: (count, before, after) for count, before, after in self._stored}
        names = growing_with_rows(*last.values()) if len(last) == len(SMALL) else []
        if names and self.accepted is not None:
            raise UnsupportedModel(
                "a pass must not depend on how many examples earlier ones had, got a program that does something else "
                f"than before and keeps their number in {names[0]}. Count steps, not examples, or outside of the loss"
            )
        self.memory.assumed |= {assumed("stored-count", without_keys(name)) for name in names}
        if any(UNSEARCHED in after for _, _, after in self._stored):
            self.memory.assumed.add(assumed("stored-unsearched"))

    def is_known(self, trace: Trace) -> bool:
        """Whether an accepted pass ran the same operations; if there is one over the same number of examples,
        only that is compared."""
        accepted = self.accepted
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

    def _accept(self, trace: Trace, small: list[Trace]) -> None:
        trace.smaller = small
        self.accepted = self.by_shape[self._shape] = trace
        if len(self.by_shape) > _SHAPES:
            del self.by_shape[next(iter(self.by_shape))]
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"examples come in more than {_SHAPES} shapes, and those before are compared anew when they come "
                    "again, which takes longer than a step: pad them to multiples of some length "
                    "(pad_to_multiple_of=16)",
                    UserWarning, stacklevel=2,
                )  # fmt: skip

    def _try(
        self,
        program: Program,
        batch: Batch,
        rows: int,
        count: int,
        seed: int,
        expected: Trace | None = None,
        poison: float = math.nan,
    ) -> Pass | tuple[DecrescendoError, Tracer]:
        """Run a pass over the first ``count`` rows (repeated if fewer): the finished pass, or the error that
        refused it with its tracer."""
        last = ""
        for _ in range(_ANSWERS):
            recipes = self.accepted.recipes if expected is None and self.accepted is not None else {}
            tracer = Tracer(count, self.memory, seed, expected, recipes, poison=poison, replays=expected)
            small = count in SMALL and (expected is not None or self.accepted is None)
            before = program.numbers() if small else {}
            try:
                with drawing(program.devices, seed):
                    try:
                        self.runs += 1
                        done = program.run(labelled_rows(batch, rows, tracer), tracer)
                    finally:
                        tracer.hosts = hosts_drew()
                if small:
                    self._stored.append((count, before, program.numbers()))
                return done
            except DecrescendoError as error:
                return error, tracer
            except Exception as error:
                # The fixed answer may be one that real data never give: `if not valid.all(): raise`.
                if tracer.reads.poisoned:
                    return UnsupportedModel(reads_a_number(tracer.reads.poisoned)), tracer
                # An error raised by torch may depend on the data, and must flip no answer.
                if tracer.raised or not tracer.reads.asked or tracer.reads.asked[-1] == last:
                    if tracer.refusal:
                        return UnsupportedModel(tracer.refusal), tracer
                    if tracer.counts.python_has_one:
                        return UnsupportedModel(raised_with_size(type(error).__name__)), tracer
                    if not self.by_shape:
                        error.add_note(program.hint_for(error, batch))
                    raise
                last = tracer.reads.asked[-1]
                self.memory.answers[last] = not self.memory.answers[last]
            finally:
                tracer.end()
        raise AssertionError("a program that asks for ever")

    def _check_steering(self, program: Program, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """Check that results do not depend on which number Python gets when it reads one from the data."""
        for poison in (1e30, -1e30, 0.0):
            with exact_products():  # as for ``done``
                other = self._try(program, batch, rows, done.tracer.count, seed, poison=poison)
            same = not isinstance(other, tuple) and not other.tracer.trace.differs(done.tracer.trace)
            if not same or isinstance(other, tuple) or not _equal(other, done):
                raise UnsupportedModel(reads_a_number(done.tracer.reads.poisoned))


def _equal(one: Pass, other: Pass) -> bool:
    pairs = ((one.losses, other.losses), (one.scores, other.scores))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _coincident(guesses: list[dict[SuspectConstant, int]], known: set[SuspectConstant]) -> dict[SuspectConstant, int]:
    """The suspects that only some of the passes found (coincidences), each with its first event."""
    found: dict[SuspectConstant, int] = {}
    for key in set[SuspectConstant]().union(*guesses) - known:
        if not all(key in guessed for guessed in guesses):
            found[key] = min(guessed[key] for guessed in guesses if key in guessed)
    return found


def _differing(tracer: Tracer, differences: list[str], found: str) -> str:
    """The reason to refuse a program that runs other operations at another batch size."""
    if tracer.generator and any("_C.Generator'" in difference for difference in differences):
        return GENERATOR.format(tracer.generator)
    remedy = HOSTS if tracer.hosts and "lift_fresh" in found else _SAME
    return (
        "a pass must do the same for any number of examples, as otherwise each of them depends on how "
        f"many others there are, got {found}. {remedy}"
    )
