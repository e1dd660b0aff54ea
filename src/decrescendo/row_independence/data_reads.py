"""What Python gets when it reads data during a pass (``if x > 0``, ``float(x)``): a constant answer, or a
refusal."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from decrescendo.base.assumptions import assumed
from decrescendo.base.storages import bare
from decrescendo.row_independence.code_origin import line
from decrescendo.row_independence.known_memory import Memory
from decrescendo.row_independence.labels import Label, Mixed, is_data
from decrescendo.row_independence.refusals import ALL_EXPERTS, SEEDS, SPEC_AUGMENT
from decrescendo.row_independence.trace import NOTHING, Event, Trace


@dataclass(eq=False)
class DataReads:
    """Answers or refuses Python's reads of data in one pass.

    Args:
        count: number of examples.
        memory: answers given in earlier passes, and lines declared harmless.
        trace: the record of the pass.
        label: gives a tensor's label.
        refuse: refuses the pass, with a reason.
        natural: Python gets the true values.
        replays: the trace of a pass whose random numbers Python gets again.
        poison: what Python gets for a floating-point number of the data.
        before: during graph capture, where nothing can be read: the accepted pass that is captured.
        guards: truth values on the device that must hold for this pass to equal ``before``.
    """

    count: int
    memory: Memory
    trace: Trace
    label: Callable[[Tensor], Label]
    refuse: Callable[[str], NoReturn]
    natural: bool
    replays: Trace | None
    poison: float
    before: Trace | None = None
    guards: list[Tensor] = field(default_factory=list[Tensor])
    # Whether a line read data that the user declared harmless.
    trusted: bool = False
    # Lines of code that read truth values; these values; a line that read a number.
    asked: list[str] = field(default_factory=list[str])
    truths: list[bool] = field(default_factory=list[bool])
    poisoned: str = ""
    # Sequence lengths that a torch function read from each example's own data; whether one is running.
    lengths: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    owned: bool = False
    # Whether torch functions are observed; and whether one runs that returns only the losses of the CTC loss.
    recorded: bool = False
    in_ctc_loss: bool = False

    def answer_read(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Sequence[Tensor | None]
    ) -> Any:
        """Handle a data read by Python code: returns an answer that does not depend on the data."""
        first = cast("Tensor", tensors[0])
        labels = [self.label(tensor) for tensor in tensors if tensor is not None]
        data = [label for label in labels if is_data(label)]
        where, returned = line(), str(func._schema.returns)
        if not data or self.natural:
            answer = func(*args, **kwargs)
            self.asked += [where] if data else []
        elif self.vouched():
            return func(*args, **kwargs)
        elif "bool" in returned or (first.dtype == torch.bool and "int" not in returned) or len(tensors) > 1:
            likely = isinstance(data[0], Mixed) and data[0].name in ("any", "bitwise_or", "logical_or")
            truth = bool(func(*args, **kwargs)) if self.before is None else self._expected(tensors)
            return self.answer(truth, likely=likely)
        elif "int" not in returned and (first.dtype.is_floating_point or first.dtype.is_complex):
            return self.number()
        else:
            answer = func(*args, **kwargs)
            if type(answer) is not int or answer != self.count:
                self.refuse_integer("a whole number of them", SEEDS)
        event = Event("a look at the data", (where,), ()) if data else Event(func, NOTHING, ())
        self.trace.events.append(event)
        return answer

    def vouched(self) -> bool:
        """Whether the user declared the line that reads the data harmless."""
        where = line()
        found = where in self.memory.declared or where.split(":")[0] in self.memory.declared
        if found:
            self.trusted = True
            self.memory.assumed.add(assumed("rows-declared-line", where))
        return found

    def answer(self, truth: bool, *, likely: bool) -> bool:
        """The truth value that Python gets: fixed per line of code, ``likely`` until a pass changes it."""
        where = line()
        self.asked.append(where)
        self.truths.append(truth)
        self.trace.truths.append(truth)
        self.trace.events.append(Event("a look at the data", (where,), ()))
        return self.memory.answers.setdefault(where, likely)

    def _expected(self, tensors: Sequence[Tensor | None]) -> bool:
        """The truth value of the captured pass; a guard checks on the device that the data still have it."""
        at = len(self.trace.truths)
        if self.before is None or at >= len(self.before.truths):
            self.refuse("a truth value of the data is asked for that was not before")
        expected = self.before.truths[at]
        one, *others = [tensor for tensor in tensors if tensor is not None]
        found = (one == others[0]).all() if others else one.bool().all()
        self.guards.append(found if expected else ~found)
        return expected

    def number(self) -> float:
        """The number that Python gets."""
        self.poisoned = line()
        self.trace.events.append(Event("a look at the data", (self.poisoned,), ()))
        return self.poison

    def refuse_integer(self, what: str, remedy: str = "") -> NoReturn:
        """Refuse a read of an integer."""
        where = line()
        self.refuse(
            f"the data must not steer the pass, but {where} reads {what} in Python. Use a constant there, or tensor "
            f'operations{remedy}; or declare the line: EngineSettings(declared=("{where}",))'
        )

    def selected(self) -> NoReturn:
        """Refuse that Python reads how many rows the data select."""
        self.refuse_integer("the number of rows that they select", ALL_EXPERTS)

    def merge(self, made: list[Tensor]) -> None:
        """Replace the result of `unique_consecutive`, whose length depends on the data, by one or two zero
        rows: by the fixed answer at this line of code to whether there are several."""
        if self.natural:
            return
        if self.before is not None:
            self.refuse("the data decide how many numbers there are")
        several = self.answer(len(made[0]) > 1, likely=False)
        for tensor in (made[0], *made[2:]):
            cast("Any", tensor).set_(tensor.new_zeros(1 + several, *tensor.shape[1:]))

    def draw(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A random number that Python reads (to drop layers): the same one at any batch size."""
        at = len(self.trace.drawn)
        replayed = list[Any]() if self.replays is None else self.replays.drawn
        self.trace.drawn.append(replayed[at] if at < len(replayed) else func(*args, **kwargs))
        self.trace.events.append(Event(func, NOTHING, ()))
        return self.trace.drawn[-1]

    def check_read(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Refuse a data read that the dispatcher does not see."""
        tensors = [bare(tensor) for tensor in tensors]
        read = any(is_data(self.label(tensor)) or self.memory.withholds(tensor) for tensor in tensors)
        if read and not self.natural:
            if self.vouched():
                return
            where = line()
            self.refuse(
                f"the data must not leave torch in a pass, but {where} takes them out by {name.strip('_')}(). Use "
                "tensor "
                f'operations there{SPEC_AUGMENT}; or declare the line: EngineSettings(declared=("{where}",))'
            )
        if self.before is not None:
            self.refuse(f"{line()} reads numbers of a constant in Python, by {name.strip('_')}()")

    @contextmanager
    def reading(self, lengths: Iterable[object]) -> Generator[None]:
        """While torch's own code reads sequence lengths: each entry must depend on its own example."""
        given = list(lengths)
        for label in (self.label(value) for value in given if isinstance(value, Tensor)):
            if isinstance(label, Mixed):
                self.refuse(f"no example's loss may depend on another example, got a CTC loss of which {label.why}")
        self.owned, self.in_ctc_loss = not any(isinstance(value, (list, tuple)) for value in given), True
        try:
            yield
        finally:
            self.owned = self.in_ctc_loss = False

    def check_lists(self, values: Iterable[object], made: int) -> None:
        """Refuse lengths that depend on the position in the batch. Of an operation with two results that user
        code calls directly, the second is refused: its shape shows the longest length."""
        if self.recorded and made > 1 and not self.in_ctc_loss:
            self.refuse(
                f"the data must not steer the pass, but {line()} calls torch._ctc_loss, which gives a tensor whose "
                "shape shows the longest target of all examples. Use torch.nn.functional.ctc_loss"
            )
        for value in values:
            if not isinstance(value, (list, tuple)):
                continue
            listed = tuple(cast("list[int]", value))
            if self.owned:
                self.lengths.add(listed)
            elif len(set(listed)) > 1 and listed not in self.lengths:
                self.refuse(
                    "no example's loss may depend on its place, got a CTC loss with other lengths for each place "
                    "in the batch. Give the lengths as a tensor that is part of the batch"
                )
