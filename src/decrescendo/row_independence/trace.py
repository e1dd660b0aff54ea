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

# The numbers of an operation whose result reaches no loss, where they do not matter.
NOTHING: tuple[object, ...] = ("reaches no loss",)


# Storages that one operation writes, at most, so that each has a number of its own.
EVENT = 2**20

# The form of packed data of one row, or of none.
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
        wire: of data, what wrote its memory last; of a constant, which one it is.
        form: how it lies on memory of the examples; ``None`` for a constant.
        dtype: of data; how its bytes are read.
        label: of a constant.
        shape: of a constant; of one number everywhere, how many dimensions.
    """

    wire: object
    form: tuple[object, ...] | None
    dtype: object = None
    label: Label | None = None
    shape: torch.Size | int = 0


class ReplayedOperation(NamedTuple):
    """The label changes of an operation in an accepted pass, if they follow from its event and from no tensor
    values.

    An operation with the same event, of a pass that was the same so far, does the same to them: by induction its
    arguments lie in their memory as they did, but for the number of examples.

    Args:
        event: what it was given.
        arguments: the same one by one, tensors and all else.
        names: of the arguments given by name.
        labels: of its outputs; ``None`` for a view, which has its memory's.
        public: whether there are outputs that no data reach.
        noted: whether outputs have numbers of their own, by which they are known again.
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
    # Rows of packed data, each with its number of another count of examples in another pass.
    rows: list[int] = field(default_factory=list[int])
    # These constants, so that no other gets the key of one.
    alive: list[Tensor] = field(default_factory=list[Tensor])
    # Random numbers that Python read.
    drawn: list[object] = field(default_factory=list[object])
    shapes: dict[int, tuple[torch.Size, ...]] = field(default_factory=dict[int, tuple[torch.Size, ...]])
    # Whether tensors were found to have the same numbers, in the order in which the proof compared them.
    compared: list[bool] = field(default_factory=list[bool])
    # Truth values of the data that Python asked for.
    truths: list[bool] = field(default_factory=list[bool])
    # By the place of the event.
    recipes: dict[int, ReplayedOperation] = field(default_factory=dict[int, ReplayedOperation])
    # Passes that it was compared with: a size that is the same with two examples as with three, but grows from there
    # on, differs from one of them.
    smaller: list["Trace"] = field(default_factory=list["Trace"])
    # What passes did that were found to be the same but for their number of examples, by that number.
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
        """Whether a constant has another shape here, not proportional to the number of examples.

        With two examples and three it may have had one shape by chance, as `ones(n)[3:]` is empty with both.
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

    A constant that several operations gave (two slices that happen to be one) is what any of them gave.
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
