"""`ModelState`: what a private model holds, into which nothing may come that was made of a batch."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import tree_leaves
from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus.constants import Knowledge
from decrescendo.integrations.opacus.recorded import Recorded
from decrescendo.row_independence.tracing import changed_places, numbers_of
from decrescendo.training.processes.bits import fingerprint

_NOTHING = object()
# What a module keeps by name, and not as attributes.
_TABLES = ("_buffers", "_parameters", "_modules")


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
    def forward(self) -> Generator[None]:
        """A pass: the buffers are left as they were, and what it puts into attributes is noted, for `restore`."""
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        before = [(held, {name: (old, _copied(old)) for name, old in held.items()}) for held in self._held()]
        numbers = numbers_of(self.module, None, choices=True)
        try:
            yield
        finally:
            for held, olds in before:
                for name, new in held.items():
                    old, content = olds.get(name, (_NOTHING, None))
                    tensors = [leaf for leaf in tree_leaves(new) if isinstance(leaf, Tensor)]
                    same = new is old and set(map(id, tree_leaves(content))) >= set(map(id, tensors))
                    if tensors and name not in _TABLES and (new is not old or not (content is None or same)):
                        self._put.append((held, name, new, old, content))
            with torch.no_grad():
                for buffer, kept in buffers:
                    if fingerprint(buffer) != fingerprint(kept):
                        buffer.data.copy_(kept)
            self._moving |= set(changed_places(numbers, numbers_of(self.module, None, choices=True)))

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

    def check(self, seen: Knowledge) -> None:
        """Before the engine's pass: that no tensor of the batch is in the model, and that all is as the step before
        left it, if the loop has read anything since.

        Raises:
            UnsupportedModel: the buffer or attribute.
        """
        self.restore()
        inside = [
            name for name, value in self._tensors() if isinstance(value, Recorded) or seen.is_made(value)
        ]
        numbers, codes = self._look()
        changed = [place for place in changed_places(self._numbers, numbers) if place not in self._moving]
        changed += [
            name for name in codes.keys() | self._codes.keys() if codes.get(name) != self._codes.get(name)
        ]
        if inside or (seen.read and changed):
            raise UnsupportedModel(
                "weights, buffers and attributes of the model must hold nothing that was made of a batch, got "
                f"{(inside or changed)[0]}, which the loop set after it had read or computed something of one. Set it "
                "before anything is read, keep what the model does not use (a counter) in an object that it does not "
                "hold, or compute it in the model's forward; a number that changes with the epoch "
                "goes into the model as an argument, from a tensor made before the loop: model(x, tau=taus[epoch])"
            )

    def note(self) -> None:
        """As it is now is how it may be."""
        self._numbers, self._codes = self._look()
        held = (*self.module.parameters(), *self.module.buffers())
        self.tensors, self._memories = set(map(id, held)), set(map(_memory, held)) - {0}

    def owns(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or buffer, or lies in the memory of one."""
        return id(tensor) in self.tensors or _memory(tensor) in self._memories

    def _look(self) -> tuple[dict[str, Any], dict[str, object]]:
        codes: dict[str, object] = {name: fingerprint(value) for name, value in self._tensors()}
        for name, weight in self.module.named_parameters():
            codes[name] = id(weight), weight._version, weight.requires_grad  # torch counts what is written
        return numbers_of(self.module, None, choices=True), codes

    def _held(self) -> Iterator[dict[str, Any]]:
        for module in self.module.modules():
            yield vars(module)
            yield module._buffers

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers and tensors in attributes, by name."""
        for path, module in self.module.named_modules():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if name in _TABLES:
                    continue
                for place, leaf in enumerate(tree_leaves(value)):
                    if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                        yield f"{path}.{name}".strip(".") + (f"[{place}]" if leaf is not value else ""), leaf


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _copied(value: Any) -> Any:
    """A copy of a list or dictionary, which a pass may change in place."""
    return value.copy() if type(value) in (list, dict) else None
