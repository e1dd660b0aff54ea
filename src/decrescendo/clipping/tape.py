"""The operations of a pass on a CPU in order, to be run again on other rows: Python does nothing but call them.

Every operation comes by torch's dispatcher, also those of the engine itself, and the compiled forms say that they were
called. What a pass reads that is neither its rows nor the model, nor a constant that the proof compares, is refused.
"""

from collections.abc import Callable, Container, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.clipping.precision import ON_CPU
from decrescendo.clipping.proof.called import ours
from decrescendo.clipping.proof.storage import FUNCTIONS_OFF, kind_of, storage_key, tensors_of, unwatched
from decrescendo.clipping.rules import compiled
from decrescendo.errors import UnsupportedModel

_STORAGE = cast("Any", torch.UntypedStorage)
# Of these the numbers of the data decide a shape, or something in Python.
_READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_MASKS = (torch.bool, torch.uint8)


class _Step(NamedTuple):
    """A call: the function, its arguments as source text, the numbers of the tensors in them, and of those it makes;
    ``single``: it returns one tensor."""

    function: str
    arguments: str
    given: tuple[int, ...]
    made: tuple[int | None, ...]
    single: bool


@ours
class Tape(TorchDispatchMode):
    """Operations as they come. Tensors are numbered by where they lie and how they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        # Functions and constants by their names in the source.
        self.names: dict[str, Any] = {}
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

    def __exit__(self, *error: Any) -> None:
        compiled.WATCHING.tape = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        name = func.overloadpacket.__name__
        dynamic = _READS.intersection(func.tags) and (name != "index" or _has_mask(args[1]))
        if dynamic or isinstance(named.get("generator"), torch.Generator):
            raise UnsupportedModel(f"{func} goes by numbers of the data, or draws by a generator of its own")
        if name == "lift_fresh" and not args[0].dim():
            self._lifted.add(storage_key(args[0]))
        given: list[int] = []
        text = [self._text(value, given) for value in args]
        text += [f"{key}={self._text(value, given)}" for key, value in named.items()]
        output = func(*args, **named)
        if isinstance(output, Tensor):
            made: tuple[int | None, ...] = (self._number(output),)
        elif isinstance(output, (tuple, list)) and all(
            value is None or isinstance(value, Tensor) for value in cast("list[object]", output)
        ):
            values = cast("list[Tensor | None]", output)
            made = tuple(None if value is None else self._number(value) for value in values)
        elif output is None:
            made = ()
        elif tensors_of((output,)):
            raise UnsupportedModel(f"{func} gives tensors in lists")
        else:
            return output  # dtypes and the like, which follow from those of its arguments
        single = isinstance(output, Tensor)
        self.steps.append(_Step(self._named(func._op), ", ".join(text), tuple(given), made, single))
        return output

    def called(
        self, function: Callable[..., None], tensors: tuple[Tensor | None, ...], *rest: object
    ) -> None:
        """A compiled form was called."""
        given: list[int] = []
        inside = ", ".join(self._text(tensor, given) for tensor in tensors)
        others = ", ".join(map(self._named, rest))
        text = f"{self._named(function)}, ({inside},), {others}"
        self.steps.append(_Step(self._named(compiled.call), text, tuple(given), (), single=False))

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

    def function(
        self, start: int, stop: int, takes: list[int], gives: list[int]
    ) -> Callable[..., tuple[Tensor, ...]]:
        """The steps from ``start`` to ``stop`` as a function of numbered tensors, which lets go of each after its last
        use."""
        last = {number: at for at in range(start, stop) for number in self.steps[at].given}
        for at in range(start, stop):
            last |= {number: last.get(number, at) for number in self.steps[at].made if number is not None}
        kept = {*gives, *self.constants}
        ends: dict[int, list[str]] = {}
        for number, at in last.items():
            if number not in kept:
                ends.setdefault(at, []).append(f"t{number}")
        lines = [f"def run({', '.join(f't{number}' for number in takes)}):"]
        for at in range(start, stop):
            step = self.steps[at]
            made = ", ".join("_" if number is None else f"t{number}" for number in step.made)
            if step.made and not step.single:
                made += ","
            lines.append(f"    {f'{made} = ' if step.made else ''}{step.function}({step.arguments})")
            if at in ends:
                lines.append(f"    {' = '.join(ends[at])} = None")
        lines.append(f"    return ({''.join(f't{number}, ' for number in gives)})")
        names = self.names | {f"t{number}": tensor for number, tensor in self.constants.items()}
        exec("\n".join(lines), names)
        return cast("Callable[..., tuple[Tensor, ...]]", names["run"])

    def free_of(self, start: int, stop: int) -> list[int]:
        """The tensors that these steps take and neither make nor have as constants."""
        made: set[int | None] = set()
        found: dict[int, None] = {}
        for step in self.steps[start:stop]:
            found |= dict.fromkeys(n for n in step.given if n not in made and n not in self.constants)
            made |= set(step.made)
        return list(found)

    def _text(self, value: object, given: list[int]) -> str:
        if isinstance(value, Tensor):
            number = self._known(value)
            given.append(number)
            return f"t{number}"
        if isinstance(value, (list, tuple)):
            inside = "".join(f"{self._text(item, given)}, " for item in cast("list[object]", value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        if value is None or type(value) in (int, bool):
            return repr(value)
        return self._named(value)

    def _named(self, value: object) -> str:
        name = f"n{len(self.names)}"
        self.names[name] = value
        return name

    def _known(self, tensor: Tensor) -> int:
        place = _place(tensor)
        if place not in self._numbers:
            number = self._number(tensor)
            with unwatched(), FUNCTIONS_OFF():
                self.constants[number] = tensor.detach()
        return self._numbers[place]

    def _number(self, tensor: Tensor) -> int:
        place = _place(tensor)
        key = storage_key(tensor)
        if key not in self._held:
            cast("Any", tensor.untyped_storage())._weak_ref()
            self._held.add(key)
        self._count += 1
        self._numbers[place] = self._count
        return self._count


def _place(tensor: Tensor) -> object:
    if tensor.layout is not torch.strided:
        raise UnsupportedModel(f"tensors must be dense, got one of {tensor.layout}")
    laid = tensor.shape, tensor.stride(), tensor.storage_offset(), kind_of(tensor)
    return storage_key(tensor), *laid


def _has_mask(indices: Iterable[object]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in _MASKS for index in indices)


class Operations:
    """A captured pass on a CPU, and its sums."""

    bakes_numbers = False

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

    def finish(self, passed: list[Tensor], summed: list[Tensor], allowed: Container[int]) -> None:
        tape = self._tape
        tape.check(allowed)
        first, last = list(map(tape.number, passed)), list(map(tape.number, summed))
        kept = {storage_key(tensor) for tensor in tape.constants.values()}
        self._copied = [storage_key(tensor) in kept for tensor in summed]
        tape.end()
        carried = tape.free_of(self._between, len(tape.steps))
        self._first, self._count = tape.function(0, self._between, [], [*first, *carried]), len(first)
        self._last = tape.function(self._between, len(tape.steps), carried, last)
        self._carried: tuple[Tensor, ...] = ()

    def run_pass(self) -> list[Tensor]:
        with torch.no_grad():
            found = self._first()
        self._carried = found[self._count :]
        return list(found[: self._count])

    def run_sums(self) -> list[Tensor]:
        with torch.no_grad():
            found = self._last(*self._carried)
        self._carried = ()
        return [total.clone() if copied else total for total, copied in zip(found, self._copied, strict=True)]
