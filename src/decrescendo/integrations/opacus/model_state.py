"""`ModelState`: what a private model holds, into which nothing may come that was made of a batch."""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus.constants import Knowledge
from decrescendo.integrations.opacus.outputs import tree_leaves
from decrescendo.integrations.opacus.recorded import Recorded
from decrescendo.row_independence.tracing import Numbers, changed_places, numbers_of
from decrescendo.training.processes.bits import fingerprint

_NOTHING = object()
# What a module keeps by name, and not as attributes.
_TABLES = ("_buffers", "_parameters", "_modules")
_PLAIN = (bool, int, float, str, type(None))
_IDS = 2**40  # numbers of objects are larger
_CONTAINERS = (dict, OrderedDict, list, tuple, set)


class ModelState:
    """Weights, buffers, and attributes of all submodules, of the model of a loop.

    Args:
        module: the model, as it was made.

    Attributes:
        tensors: ids of its parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.tensors = module, set[int]()
        # What a forward pass put into attributes, and what was there before; places of numbers that passes change.
        self._put: list[tuple[dict[str, Any], str, Any, Any, Any]] = []
        self._moving = set[str]()
        self.note()

    @contextmanager
    def forward(self, numbers: Numbers | None = None) -> Generator[None]:
        """A pass: the buffers are left as they were, and what it puts into attributes is noted, for `restore`.

        Args:
            numbers: `numbers_of` the model now, where they are known.
        """
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        before = [(held, dict(held), _copies_in(held)) for held in self._held()]
        numbers = numbers or self._numbers_now()
        self._by_loop |= _set_places(self._after, numbers)
        try:
            yield
        finally:
            for held, olds, copies in before:
                for name, new in held.items():
                    old, content = olds.get(name, _NOTHING), copies.get(name)
                    if name in _TABLES or (new is old and content is None):
                        continue
                    tensors = [leaf for leaf in tree_leaves(new) if isinstance(leaf, Tensor)]
                    same = new is old and set(map(id, tree_leaves(content))) >= set(map(id, tensors))
                    if tensors and not same:
                        self._put.append((held, name, new, old, content))
            with torch.no_grad():
                for buffer, kept in buffers:
                    if fingerprint(buffer) != fingerprint(kept):
                        buffer.data.copy_(kept)
            self._after = self._numbers_now()
            self._moving |= set(changed_places(numbers, self._after))

    @property
    def has_outputs(self) -> bool:
        """Whether the last pass put tensors into attributes."""
        return bool(self._put)

    def restore(self) -> None:
        """Take tensors that a pass put into attributes, and into their lists and dictionaries, out again."""
        for held, name, new, old, content in reversed(self._put):
            if held.get(name) is new:
                held.pop(name)
                held.update({} if old is _NOTHING else {name: old})
            if content is not None:
                old.clear()
                (old.extend if isinstance(old, list) else old.update)(content)
        self._put.clear()

    @contextmanager
    def step(self, seen: Knowledge) -> Generator[None]:
        """The engine's pass: no tensor of the batch is in the model before it, and all is as the step before left it,
        if the loop has read anything since.

        Raises:
            UnsupportedModel: the buffer or attribute.
        """
        self.restore()
        numbers = self.check(seen)
        with self.forward(numbers):
            yield
        numbers = None if self._put else self._after
        self.restore()
        self.note(numbers)

    def check(self, seen: Knowledge) -> Numbers:
        """Refuse what the loop may have put into the model; `numbers_of` it now.

        Raises:
            UnsupportedModel: the buffer or attribute.
        """
        tensors = list(self._tensors())
        inside = [name for name, value in tensors if isinstance(value, Recorded) or seen.is_made(value)]
        numbers, codes = self._numbers_now(), self._codes_of(tensors)
        by_loop = self._by_loop | _set_places(self._after, numbers)
        changed = [
            place for place in changed_places(self._numbers, numbers)
            if place not in self._moving or place in by_loop
        ]  # fmt: skip
        changed += [name for name in codes.keys() | self._codes.keys() if codes.get(name) != self._codes.get(name)]
        if inside or (seen.read and changed):
            raise UnsupportedModel(
                "weights, buffers and attributes of the model must hold nothing that was made of a batch, got "
                f"{(inside or changed)[0]}, which the loop set after it had read or computed something of one. Set it "
                "before anything is read, keep what the model does not use (a counter) in an object that it does not "
                "hold, or compute it in the model's forward; a number that changes with the epoch "
                "goes into the model as an argument, from a tensor made before the loop: model(x, tau=taus[epoch]). "
                "Weights of federated rounds are another training each: decrescendo.federated"
            )
        return numbers

    def note(self, numbers: Numbers | None = None) -> None:
        """As it is now is how it may be; ``numbers`` as in `forward`."""
        self._numbers, self._codes = numbers or self._numbers_now(), self._codes_of(self._tensors())
        self._after = self._numbers  # after the last pass
        self._by_loop = set[str]()  # what was set between passes
        held = (*self.module.parameters(), *self.module.buffers())
        self.tensors, self._memories = set(map(id, held)), set(map(_memory, held)) - {0}

    def owns(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or buffer, or lies in the memory of one."""
        return id(tensor) in self.tensors or _memory(tensor) in self._memories

    def _numbers_now(self) -> Numbers:
        return numbers_of(self.module, None, choices=True)

    def _codes_of(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, object]:
        codes: dict[str, object] = {name: fingerprint(value) for name, value in tensors}
        for name, weight in self.module.named_parameters():
            codes[name] = id(weight), weight._version, weight.requires_grad  # torch counts what is written
        return codes

    def _held(self) -> Iterator[dict[str, Any]]:
        for module in self.module.modules():
            yield vars(module)
            yield module._buffers

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers and tensors in attributes, by name."""
        for path, module in self.module.named_modules():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if name in _TABLES or _has_none(value):
                    continue
                for place, leaf in enumerate(tree_leaves(value)):
                    if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                        yield f"{path}.{name}".strip(".") + (f"[{place}]" if leaf is not value else ""), leaf


def _set_places(before: Numbers, now: Numbers) -> set[str]:
    """Places that were set between two passes. A count that only grew may be that of a pass which nobody saw: an
    evaluation with the model itself."""

    def grew(place: str) -> bool:
        for name in (place, f"len({place})"):
            one, other = before.get(name, 0), now.get(name, 0)
            if one != other and not (type(one) is int and type(other) is int and one < other < _IDS):
                return False
        return True

    return {place for place in changed_places(before, now) if not grew(place)}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _copies_in(held: dict[str, Any]) -> dict[str, Any]:
    """Copies of lists and dictionaries by name, which a pass may change in place."""
    return {name: value.copy() for name, value in held.items() if type(value) in (list, dict)}


def _has_none(value: Any) -> bool:
    """Whether a value has no tensors at first sight: a number, a text, an empty container."""
    kind = type(value)
    return kind in _PLAIN or (kind in _CONTAINERS and not value)
