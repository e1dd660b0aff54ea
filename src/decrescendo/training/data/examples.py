"""Examples by index: each is made on its own, by the data set and its ``collate_fn``."""

import hashlib
import random
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import default_collate

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import OneByOne, Ragged, count_rows, joined, leaves_of
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data.items import Items, are_held, reads_at_once
from decrescendo.training.processes.bits import checksum

EXAMPLES_APART = assumed("own-collate-fn")
_WAY_OUT = "Or pass the examples one by one, in any form: EngineSettings(one_example_a_pass=True)"

# Leaves of most rows, for which no abstract class need be asked.
_PLAIN = (int, float, bool)
# From a list of examples (always of one) to a batch of them, as torch's ``collate_fn``.
Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn batch: ascending row indices, and the key of the random numbers used to make its examples."""

    indices: Int[np.ndarray, " batch"]
    key: int = 0


class Examples:
    """Items made into batches by ``collate_fn``, which is called with one example at a time.

    Args:
        items: the examples, before ``collate_fn``.
        collate_fn: from a list of one example to a batch; ``None`` for torch's ``default_collate``.
        one_by_one: batches are `OneByOne`, and what ``collate_fn`` makes of an example may be anything.

    Attributes:
        items: the examples, before ``collate_fn``.
        count: number of examples.
        held: the items, if they are in memory and no user code makes them; else `None`.
        assumption: about user code that makes examples; `None` if there is no such code.

    Guarantee:
        if the data and ``collate_fn`` keep nothing of one example for another, row i of a batch is a function of
        example i, and of random numbers (torch's, NumPy's and Python's global generators) that are seeded anew for
        each example, from the step's key and the example's index alone. So no example is padded to the length of
        another: `joined` stacks examples of one shape only. The process's own generators are restored afterwards.
        Arrays, lists and frames without a ``collate_fn`` keep nothing. Of other code this is assumed (`assumption`),
        and compared: the first example of each batch is made again after the last.

    Raises:
        InvalidValue: an example that is made again comes out with other bits.
    """

    def __init__(self, items: Items, collate_fn: Collate | None, *, one_by_one: bool = False) -> None:
        self.items, self._collate, self._one_by_one = items, collate_fn, one_by_one
        self.count = len(items)
        self.held = items if are_held(items) else None
        # Whether all items of a batch are read at once; `None` until both ways were compared.
        self._at_once = None if reads_at_once(items) else False
        self.assumption: Assumption | None = None if collate_fn is None and self.held is not None else EXAMPLES_APART

    def take(self, draw: Draw) -> Batch:
        """The batch of a draw, which must not be empty."""
        if len(self.items) != self.count:
            raise InvalidValue(
                f"data must keep their number of examples while they are drawn from, {self.count}, got "
                f"{len(self.items)}. The plan is for the first number: change data between trainings only"
            )
        with own_numbers() as begin:
            made = self._made(draw, begin)
            if self.assumption:
                first = self._joined(made[:1])  # before the example is made again: both may be one object
                found = bits(first)
                again = self._joined([self._one(int(draw.indices[0]), begin, draw.key)])
                if found != bits(again):
                    raise InvalidValue(
                        "data[i] and collate_fn must make an example from itself alone, got another one when it was "
                        "made again. Keep nothing from one example for the next (a running mean, a counter, a "
                        "generator of your own): the global generators of torch, NumPy and Python begin anew for each, "
                        "and torch.initial_seed() is a seed for others"
                    )
        return self._joined(made)

    def _made(self, draw: Draw, begin: Callable[[int, int], None]) -> list[Any]:
        """The batch of each example, of items read at once where that gives the same."""
        indices = list(map(int, draw.indices))
        if self._at_once is False or not reads_at_once(self.items):  # (its format may have been set since)
            return [self._one(index, begin, draw.key) for index in indices]
        made = list[Any]()
        for item, index in zip(cast("Any", self.items).__getitems__(indices), indices, strict=True):
            begin(draw.key, index)
            made.append(self._of(item))
        if self._at_once is None:
            singly = [self._one(index, begin, draw.key) for index in indices]
            self._at_once = bits(self._joined(made)) == bits(self._joined(singly))
            return singly
        return made

    def _joined(self, examples: list[Any]) -> Batch:
        if self._one_by_one:
            return OneByOne(tuple(examples))
        return _stacked(examples) if self._collate is None else joined(examples)

    def _one(self, index: int, begin: Callable[[int, int], None], key: int) -> Any:
        """`_of` the item at an index, read by itself."""
        begin(key, index)
        return self._of(self.items[index])

    def _of(self, item: Any) -> Any:
        """The batch of one item; without a collator the item itself."""
        if self._collate is None:
            _check_numbers(item)
            return _stacked([item]) if self._one_by_one else item
        batch = self._collate([item])
        if self._one_by_one:
            return batch
        try:
            found = count_rows(batch)
        except (InvalidType, InvalidValue) as error:
            raise type(error)(f"{error}. {_WAY_OUT}") from None
        if found != 1:
            raise InvalidValue(
                f"collate_fn must make one row of one example, got {found} rows. Leave packing and padding-free "
                "batches out; several views of an example are a dimension after the first. "
                f"{_WAY_OUT}"
            )
        return batch


def bits(batch: Batch) -> list[object]:
    """The bytes of all tensors of a batch, to compare batches exactly."""
    return [(value.dtype, value.shape, checksum(value)) for value in leaves_of(batch)]


def _stacked(items: list[Any]) -> Batch:
    """Stack examples by torch's ``default_collate``; examples of equal structure are stacked together."""
    groups: dict[object, list[Any]] = {}
    for item in map(_unfrozen, items):
        groups.setdefault(_kind(item), []).append(item)
    try:
        parts = tuple(default_collate(group) for group in groups.values())
    except TypeError as error:
        raise InvalidType(
            "an example without collate_fn must hold numbers, arrays and tensors, got another thing: "
            f"{str(error).split(':')[-1].strip()}. Give a collate_fn"
        ) from error
    for part in parts:
        count_rows(part)
    return parts[0] if len(parts) == 1 else Ragged(parts)


def _unfrozen(item: object) -> object:
    """Read-only mappings as dicts, since the constructor of a user's mapping class is unknown."""
    if type(item) is tuple:
        return item
    if type(item) is dict or (isinstance(item, Mapping) and not isinstance(item, MutableMapping)):
        return {key: _unfrozen(value) for key, value in cast("Mapping[Any, object]", item).items()}
    return item


def _kind(item: object) -> object:
    """The structure of a row: shapes, dtypes and types, no values."""
    kind = type(item)
    if kind in _PLAIN:
        return kind
    if isinstance(item, (Tensor, np.ndarray, np.generic)):
        return item.shape, item.dtype
    if kind is tuple:
        return kind, *map(_kind, cast("tuple[object, ...]", item))
    if isinstance(item, Mapping):
        return tuple((key, _kind(value)) for key, value in cast("Mapping[Any, object]", item).items())
    if isinstance(item, (list, tuple)):
        return kind, *map(_kind, cast("list[object]", item))
    return kind


def _check_numbers(item: object) -> None:
    """Refuse lists and strings, which ``default_collate`` does not turn into rows."""
    if type(item) is tuple:
        return
    values = cast("Mapping[str, object]", item).items() if isinstance(item, Mapping) else [("", item)]
    for name, value in values:
        if isinstance(value, (str, bytes)) or (isinstance(value, list) and isinstance(item, Mapping)):
            raise InvalidType(
                f"an example without collate_fn must hold numbers, arrays and tensors, got a {type(value).__name__} "
                f'in {name or "it"}. Give a collate_fn; for a datasets.Dataset also .with_format("torch") makes tensors'
            )


@contextmanager
def own_numbers() -> Generator[Callable[[int, int], None]]:
    """Inside, the yielded function reseeds the global generators from a key and an example's index; they are
    restored afterwards."""
    # Of torch the CPU's only: `torch.manual_seed` would reseed those of GPUs as well.
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield _begin
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def _begin(key: int, index: int) -> None:
    digest = hashlib.sha256(f"decrescendo:example:{key}:{index}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    np.random.seed(int.from_bytes(digest[8:12], "big"))
    random.seed(digest[12:])
