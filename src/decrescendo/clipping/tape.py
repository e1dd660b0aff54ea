"""Records the operations of a CPU pass and replays them on other rows, without the Python code that issued them.

torch's dispatcher shows every operation, the engine's own included; compiled kernels report their calls to
``compiled.WATCHING.tape``, which is set while recording. A pass that reads a tensor other than its rows, the model's
and constants that the check compares is refused.
"""

from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.precision import ON_CPU, full_precision
from decrescendo.base.storages import FUNCTIONS_OFF, DispatchMode, storage_key, tensors_of, unwatched
from decrescendo.clipping.rules import compiled
from decrescendo.clipping.tape_steps import READS, TURNED, Step, function_of, has_mask, place_of
from decrescendo.errors import UnsupportedModel

_STORAGE = cast("Any", torch.UntypedStorage)


class Tape(DispatchMode):
    """The operations of a pass, in order. Tensors are numbered by their memory and layout (`place_of`)."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.constants: dict[int, Tensor] = {}
        self._numbers: dict[object, int] = {}
        self._count = 0
        # Storages that were seen, referenced so that no other gets their address; and those of Python numbers made
        # tensors (by the engine: Python reads no data here).
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
            # (Replayed out of place, as a new view: other steps may read the old layout.)
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
            return output  # dtypes and the like, which follow from its arguments
        single = isinstance(output, Tensor)
        pure = not schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
        self.steps.append(Step(function, values, slots, lists, tuple(named), made, single, pure))
        return output

    def called(self, function: Callable[..., None], tensors: tuple[Tensor | None, ...], *rest: object) -> None:
        """Record a call of a compiled kernel."""
        values, slots, lists = self._given((function, tensors, *rest))
        self.steps.append(Step(compiled.call, values, slots, lists, (), (), single=False, pure=False))

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor; a tensor that no step made becomes a constant."""
        return self._known(tensor)

    def check(self, allowed: Container[int]) -> None:
        """Raise for a constant whose storage is not ``allowed``, unless it is a Python number's."""
        for tensor in self.constants.values():
            if (key := storage_key(tensor)) not in allowed and key not in self._lifted:
                raise UnsupportedModel(f"nothing shows where a tensor of shape {tuple(tensor.shape)} comes from")

    def end(self) -> None:
        """Release the storages that were seen: their addresses may be reused."""
        for key in self._held:
            _STORAGE._free_weak_ref(key)
        self._held.clear()
        self._numbers.clear()

    def _is_there(self, output: Tensor, args: tuple[Any, ...]) -> bool:
        """Whether an operation's output needs no replay: a view that has a number already, or a view of a constant,
        which becomes a constant."""
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
        """The steps on whose results the tensors ``gives`` depend, and steps with other effects."""
        used, needed = set[int | None](gives), list[Step]()
        for step in reversed(steps):
            if not step.pure or not used.isdisjoint(step.made):
                used.update(step.given)
                needed.append(step)
        return needed[::-1]

    def free_of(self, steps: list[Step]) -> list[int]:
        """The numbers of tensors that these steps read, neither made by them nor constants."""
        made: set[int | None] = set()
        found: dict[int, None] = {}
        for step in steps:
            found |= dict.fromkeys(n for n in step.given if n not in made and n not in self.constants)
            made |= set(step.made)
        return list(found)

    def _given(
        self, values: tuple[Any, ...]
    ) -> tuple[list[Any], list[tuple[int, int]], list[tuple[int, type, list[tuple[bool, Any]]]]]:
        """An operation's arguments as ``values``, ``slots`` and ``lists`` of a `Step`."""
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
    """A captured pass on a CPU and its clipped sums, replayed from a `Tape`."""

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
        made = {number for step in sums for number in step.made}
        rest = [number for number in last if number not in made and number not in tape.constants]
        carried = list(dict.fromkeys((*tape.free_of(sums), *rest)))
        first = tape.needed(tape.steps[: self._between], carried)
        self._first = function_of(first, tape.constants, [], carried)
        self._last = function_of(sums, tape.constants, carried, last)
        tape.steps.clear()

    def run(self) -> list[Tensor]:
        with torch.no_grad():
            carried = self._first([])
            with full_precision():
                found = self._last(carried)
        return [total.clone() if copied else total for total, copied in zip(found, self._copied, strict=True)]
