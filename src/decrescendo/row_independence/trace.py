"""`Trace`: the recorded operations of one pass, to compare passes over different numbers of examples."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from decrescendo.row_independence.labels import Label
from decrescendo.row_independence.torch_schemas import REJECTING

# Stands for the numbers of an operation whose result reaches no loss: they are not compared.
NOTHING: tuple[object, ...] = ("reaches no loss",)


# The most storages that one operation writes: write j of event i has the number i * EVENT + j.
EVENT = 2**20

# The form of packed data with at most one row.
PACKED: tuple[object, ...] = ("packed",)


class Number(NamedTuple):
    """A constant scalar, or one in NumPy's memory, made by no operation of the pass: equal if it is the same
    object or has the same value. (torch.jit and `torch.from_numpy` make such constants anew in each pass.)"""

    key: int
    content: object
    place: tuple[object, ...]

    def alike(self, other: object) -> bool:
        """
        >>> one = Number(7, 2.0, ())
        >>> [one.alike(Number(key, value, ())) for key, value in ((9, 2.0), (7, 3.0), (9, 3.0))]
        [True, True, False]
        """
        if not isinstance(other, Number) or self.place != other.place:
            return False
        return self.key == other.key or self.content == other.content


class Event(NamedTuple):
    """One operation: its non-tensor arguments, and its tensor arguments.

    ``sized``: the numbers at these positions are sizes, which may grow with the number of examples.
    """

    func: Any
    numbers: tuple[object, ...]
    wires: tuple[object, ...]
    sized: tuple[int, ...] = ()


class Given(NamedTuple):
    """A tensor argument of an operation.

    Args:
        wire: for data, the last write to its memory; for a constant, its identity.
        form: for data, the layout in memory, independent of the batch size; ``None`` for a constant.
        dtype: for data, how its bytes are read.
        label: for a constant, its label.
        shape: for a constant, its shape; for one with a single value everywhere, its number of dimensions.
    """

    identity: object
    form: tuple[object, ...] | None
    dtype: object = None
    label: Label | None = None
    shape: torch.Size | int = 0


class ReplayedOperation(NamedTuple):
    """The label changes of an operation in an accepted pass, if they follow from its event and from no tensor
    values.

    An operation with the same event, in a pass that was the same so far, changes labels in the same way: by induction
    its arguments have the same layout in memory, except for the number of examples.

    Args:
        event: the operation's record, for comparison.
        arguments: all its arguments, one by one.
        names: the names of keyword arguments.
        labels: the labels of its outputs; ``None`` for a view, which has its memory's.
        public: whether some output depends on no data.
        noted: whether outputs got numbers of their own (`Labels.note`).
    """

    event: Event
    arguments: tuple[object, ...]
    names: tuple[str, ...]
    labels: tuple[Label | None, ...]
    public: bool
    noted: bool


@dataclass(slots=True)
class Trace:
    """The operations of a pass over ``count`` examples in order, with the shapes of constants."""

    count: int
    events: list[Event] = field(default_factory=list[Event])
    # Numbers of rows of packed data: a size may be proportional to one of these, too.
    rows: list[int] = field(default_factory=list[int])
    # Constants that are kept alive, so that no other gets the key of one.
    alive: list[Tensor] = field(default_factory=list[Tensor])
    # Random numbers that Python read.
    drawn: list[object] = field(default_factory=list[object])
    shapes: dict[int, tuple[torch.Size, ...]] = field(default_factory=dict[int, tuple[torch.Size, ...]])
    # Results of the check's own comparisons of tensor values, in order.
    compared: list[bool] = field(default_factory=list[bool])
    # Truth values of the data that Python read.
    truths: list[bool] = field(default_factory=list[bool])
    # By the index of the event.
    recipes: dict[int, ReplayedOperation] = field(default_factory=dict[int, ReplayedOperation])
    # The small passes that this pass was compared with: a size that is equal with two and three examples but grows
    # from there on differs from one of them.
    smaller: list["Trace"] = field(default_factory=list["Trace"])
    # Traces of passes found to be equal except for their number of examples, by that number.
    alike: dict[int, "Trace"] = field(default_factory=dict[int, "Trace"])

    def differs(self, other: "Trace") -> str:
        """In words, where this pass differs from one of the same program at another batch size; empty if it
        does not.

        >>> first, second = Trace(4, [Event("div", (4.0,), (0,))]), Trace(3, [Event("div", (3.0,), (0,))])
        >>> first.differs(second)
        'the numbers (4.0,) with 4 examples and (3.0,) with 3 in div'
        """
        for mine, its in zip_longest(self.events, other.events):
            if mine is not None and mine == its:
                continue
            if mine is None or its is None or (mine.func is not its.func and mine.func != its.func):
                names = tuple("nothing" if event is None else _name(event) for event in (mine, its))
                return f"{names[0]} with {self.count} examples and {names[1]} with {other.count}"
            if mine.numbers is NOTHING or its.numbers is NOTHING:
                continue
            if mine.numbers != its.numbers and not (
                len(mine.numbers) == len(its.numbers)
                and all(
                    self._alike(one, two, other, sized=at in mine.sized)
                    for at, (one, two) in enumerate(zip(mine.numbers, its.numbers, strict=True))
                )
            ):
                return (
                    f"the numbers {mine.numbers} with {self.count} examples and {its.numbers} with {other.count} "
                    f"in {_name(mine)}"
                )
            if mine.wires != its.wires and not _wired_alike(mine.wires, its.wires):
                return f"other arguments of {_name(mine)} with {self.count} examples than with {other.count}"
        return ""

    def grows(self, other: "Trace") -> bool:
        """Whether a constant's shape differs from that in ``other`` and is not proportional to the number of examples.

        With two and three examples it may be equal by chance: `ones(n)[3:]` is empty with both.
        """
        both = ((shapes, other.shapes.get(at, shapes)) for at, shapes in self.shapes.items())
        return any(mine != its and not self._alike(mine, its, other, sized=True) for mine, its in both)

    def _alike(self, mine: object, its: object, other: "Trace", *, sized: bool) -> bool:
        if isinstance(mine, tuple) and isinstance(its, tuple):
            pair = cast("tuple[Sequence[object], Sequence[object]]", (mine, its))
            return len(pair[0]) == len(pair[1]) and all(
                self._alike(one, two, other, sized=sized) for one, two in zip(*pair, strict=True)
            )
        if type(mine) is int and type(its) is int:
            if mine == its or not sized:
                return mine == its
            pairs = itertools.product((self.count, *self.rows), (other.count, *other.rows))
            return any(mine * two == its * one for one, two in pairs)
        both_nan = isinstance(mine, float) and isinstance(its, float) and math.isnan(mine) and math.isnan(its)
        return both_nan or (type(mine) is type(its) and mine == its)


def _wired_alike(mine: tuple[object, ...], its: tuple[object, ...]) -> bool:
    """Whether tensor arguments agree, ignoring packed data of at most one row, whose layout is ambiguous.

    A constant returned by several operations (two slices that coincide) agrees if one of the operations does.
    """
    return len(mine) == len(its) and all(
        one == two
        or (isinstance(one, Number) and one.alike(two))
        or (isinstance(one, frozenset) and isinstance(two, frozenset) and not one.isdisjoint(two))
        or (isinstance(one, tuple) and isinstance(two, tuple) and PACKED in (one, two))
        for one, two in zip(mine, its, strict=True)
    )


def _name(event: Event) -> str:
    return str(event.func).removeprefix("aten.").removesuffix(".default")


def draws(trace: Trace) -> bool:
    """Whether a pass drew random numbers."""
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(event.func, "tags", ()) for event in trace.events)


def rejects(trace: Trace) -> bool:
    """Whether a pass used samplers that draw a data-dependent number of random values (rejection
    sampling)."""
    return any(getattr(event.func, "_opname", "").removesuffix("_") in REJECTING for event in trace.events)
