"""The operations of a CPU pass in order, to replay them on other rows; Python only calls them.

Every operation comes by torch's dispatcher, also those of the engine itself, and the compiled forms say that they were
called. What a pass reads that is neither its rows nor the model, nor a constant that the proof compares, is refused.
"""

from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.precision import ON_CPU, full_precision
from decrescendo.base.storages import FUNCTIONS_OFF, DispatchMode, storage_key, tensors_of, unwatched
from decrescendo.clipping.rules import compiled
from decrescendo.clipping.tape_steps import READS, TURNED, Step, has_mask, place_of
from decrescendo.errors import UnsupportedModel

_STORAGE = cast("Any", torch.UntypedStorage)


class Tape(DispatchMode):
    """Operations as they come. Tensors are numbered by where they lie and how they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.constants: dict[int, Tensor] = {}
        self._numbers: dict[object, int] = {}
        self._count = 0
        # Storages that were met, whose addresses no others get meanwhile; and those of single numbers of Python's (of
        # the engine's own, which can read none of the data here).
        self._held: set[int] = set()
        self._lifted: set[int] = set()

    def __enter__(self) -> "Tape":
        compiled.WATCHING.tape = self
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        compiled.WATCHING.tape = None
        super().__exit__(exc_type, exc_val, exc_tb)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        name = func.overloadpacket.__name__
        dynamic = READS.intersection(func.tags) and (name != "index" or has_mask(args[1]))
        if dynamic or isinstance(named.get("generator"), torch.Generator):
            raise UnsupportedModel(
                f"{func} reads numbers in Python (in the model, or where the check inspects an index), or draws by a "
                "generator of its own"
            )
        if name == "lift_fresh" and not args[0].dim():
            self._lifted.add(storage_key(args[0]))
        values, slots, lists = self._given((*args, *named.values()))
        output, function = func(*args, **named), func._op
        if torch.Tag.inplace_view in func.tags:
            # (Of a tensor that lies otherwise from here on there is one more; others may be it as it was.)
            if name not in TURNED:
                raise UnsupportedModel(f"{func} changes how a tensor lies in its memory")
            function = getattr(torch.ops.aten, name[:-1])._op
        schema = func._schema
        if isinstance(output, Tensor) and not schema.is_mutable and self._is_there(output, args):
            return output
        if isinstance(output, Tensor):
            made: tuple[int | None, ...] = (self._number(output),)
        elif isinstance(output, (tuple, list)) and all(
            value is None or isinstance(value, Tensor) for value in cast("list[object]", output)
        ):
            several = cast("list[Tensor | None]", output)
            made = tuple(None if value is None else self._number(value) for value in several)
        elif output is None:
            made = ()
        elif tensors_of((output,)):
            raise UnsupportedModel(f"{func} gives tensors in lists")
        else:
            return output  # dtypes and the like, which follow from those of its arguments
        single = isinstance(output, Tensor)
        pure = not schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
        self.steps.append(Step(function, values, slots, lists, tuple(named), made, single, pure))
        return output

    def called(
        self, function: Callable[..., None], tensors: tuple[Tensor | None, ...], *rest: object
    ) -> None:
        """A compiled form was called."""
        values, slots, lists = self._given((function, tensors, *rest))
        self.steps.append(Step(compiled.call, values, slots, lists, (), (), single=False, pure=False))

    def number(self, tensor: Tensor) -> int:
        """Of a tensor that was made, or is a constant."""
        return self._known(tensor)

    def check(self, allowed: Container[int]) -> None:
        """Refuse constants whose storage is none of these."""
        for tensor in self.constants.values():
            if (key := storage_key(tensor)) not in allowed and key not in self._lifted:
                raise UnsupportedModel(
                    f"nothing shows where a tensor of shape {tuple(tensor.shape)} comes from"
                )

    def end(self) -> None:
        """Other storages may have the addresses now."""
        for key in self._held:
            _STORAGE._free_weak_ref(key)
        self._held.clear()
        self._numbers.clear()

    def run(
        self, steps: list[Step], takes: list[int], gives: list[int]
    ) -> Callable[[list[Tensor]], list[Tensor]]:
        """These steps as a function of numbered tensors, which takes them out of the list that it is given, and lets go
        of each after its last use."""
        last = dict[int, int]()
        for at, step in enumerate(steps):
            last |= dict.fromkeys((*step.given, *(number for number in step.made if number is not None)), at)
        kept = {*gives, *self.constants}
        ends: list[list[int]] = [[] for _ in steps]
        for number, at in last.items():
            if number not in kept:
                ends[at].append(number)
        begin: list[Any] = [None] * (self._count + 1)
        for number, tensor in self.constants.items():
            begin[number] = tensor
        calls = list(zip(steps, ends, strict=True))

        def run(taken: list[Tensor]) -> list[Tensor]:
            known = begin.copy()
            for number in reversed(takes):
                known[number] = taken.pop()
            output = None
            for (function, values, slots, lists, names, made, single, _), gone in calls:
                given = values.copy()
                for at, number in slots:
                    given[at] = known[number]
                for at, kind, items in lists:
                    given[at] = kind([known[value] if is_tensor else value for is_tensor, value in items])
                if names:
                    output = function(
                        *given[: -len(names)], **dict(zip(names, given[-len(names) :], strict=True))
                    )
                else:
                    output = function(*given)
                if single:
                    known[cast("int", made[0])] = output
                else:
                    for number, tensor in zip(made, output or (), strict=True):
                        if number is not None:
                            known[number] = tensor
                for number in gone:
                    known[number] = None
            return [known[number] for number in gives]

        return run

    def _is_there(self, output: Tensor, args: tuple[Any, ...]) -> bool:
        """Whether a tensor that an operation gave is a view that there is already (it needs no replay),
        or is one of a constant, and so a constant, too."""
        key = storage_key(output)
        of = next((one for one in args if isinstance(one, Tensor) and storage_key(one) == key), None)
        if of is None:
            return False
        if place_of(output) in self._numbers:
            return True
        number = self._numbers.get(place_of(of))
        if number not in self.constants:
            return False
        with unwatched(), FUNCTIONS_OFF():
            self.constants[self._number(output)] = output.detach()
        return True

    @staticmethod
    def needed(steps: list[Step], gives: list[int]) -> list[Step]:
        """Those of which something is used, or that do more than to give it."""
        used, needed = set[int | None](gives), list[Step]()
        for step in reversed(steps):
            if not step.pure or not used.isdisjoint(step.made):
                used.update(step.given)
                needed.append(step)
        return needed[::-1]

    def free_of(self, steps: list[Step]) -> list[int]:
        """The tensors that these steps take and neither make nor have as constants."""
        made: set[int | None] = set()
        found: dict[int, None] = {}
        for step in steps:
            found |= dict.fromkeys(n for n in step.given if n not in made and n not in self.constants)
            made |= set(step.made)
        return list(found)

    def _given(
        self, values: tuple[Any, ...]
    ) -> tuple[list[Any], list[tuple[int, int]], list[tuple[int, type, list[tuple[bool, Any]]]]]:
        """As `Step` has it."""
        left: list[Any] = []
        slots: list[tuple[int, int]] = []
        lists: list[tuple[int, type, list[tuple[bool, Any]]]] = []
        for at, value in enumerate(values):
            if isinstance(value, Tensor):
                slots.append((at, self._known(value)))
            elif isinstance(value, (list, tuple)) and tensors_of(cast("list[Any]", value)):
                items = [
                    (True, self._known(item)) if isinstance(item, Tensor) else (False, item)
                    for item in cast("list[Any]", value)
                ]
                if any(not is_tensor and tensors_of([item]) for is_tensor, item in items):
                    raise UnsupportedModel("tensors are given in lists of lists")
                lists.append((at, list if isinstance(value, list) else tuple, items))
                value = None  # it holds tensors
            left.append(None if isinstance(value, Tensor) else value)
        return left, slots, lists

    def _known(self, tensor: Tensor) -> int:
        place = place_of(tensor)
        if place not in self._numbers:
            number = self._number(tensor)
            with unwatched(), FUNCTIONS_OFF():
                self.constants[number] = tensor.detach()
        return self._numbers[place]

    def _number(self, tensor: Tensor) -> int:
        place = place_of(tensor)
        key = storage_key(tensor)
        if key not in self._held:
            cast("Any", tensor.untyped_storage())._weak_ref()
            self._held.add(key)
        self._count += 1
        self._numbers[place] = self._count
        return self._count


class Operations:
    """A captured pass on a CPU, and its sums."""

    bakes_numbers = computes_later = False

    def __init__(self) -> None:
        if any(switch.fp32_precision not in ("none", "ieee") for switch in ON_CPU):
            raise UnsupportedModel("products of float32 numbers are rounded to fewer digits")
        self._tape = Tape()
        self._between = 0

    @contextmanager
    def passing(self) -> Generator[None]:
        with self._tape:
            yield
        self._between = len(self._tape.steps)

    @contextmanager
    def summing(self) -> Generator[None]:
        with self._tape:
            yield

    def finish(self, found: list[Tensor], allowed: Container[int]) -> None:
        tape = self._tape
        tape.check(allowed)
        last = list(map(tape.number, found))
        kept = {storage_key(tensor) for tensor in tape.constants.values()}
        self._copied = [storage_key(tensor) in kept for tensor in found]
        tape.end()
        sums = tape.needed(tape.steps[self._between :], last)
        carried = tape.free_of(sums)
        self._first = tape.run(tape.needed(tape.steps[: self._between], carried), [], carried)
        self._last = tape.run(sums, carried, last)
        tape.steps.clear()

    def run(self) -> list[Tensor]:
        with torch.no_grad():
            carried = self._first([])
            with full_precision():
                found = self._last(carried)
        return [total.clone() if copied else total for total, copied in zip(found, self._copied, strict=True)]
