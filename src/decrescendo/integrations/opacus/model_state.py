"""`ModelState`: what a private model has beside its weights, into which nothing may come that was made of a batch."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import tree_leaves
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import changed_places, numbers_of
from decrescendo.training.processes.bits import fingerprint

_NOTHING = object()


class ModelState:
    """Buffers, and attributes of all submodules, of the model of a loop.

    Args:
        module: the model, as it was made.

    Attributes:
        tensors: ids of its parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.tensors = module, set[int]()
        # What a forward pass put into attributes, and what was there before; places of numbers that passes change.
        self._put: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._moving = set[str]()
        self.note()

    @contextmanager
    def forward(self) -> Generator[None]:
        """A pass of the loop's own: the buffers are left as they were, and what it puts into attributes is noted."""
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        before = [(held, dict(held)) for held in self._held()]
        numbers = numbers_of(self.module, None)
        try:
            yield
        finally:
            for held, old in before:
                self._put += [
                    (held, name, old.get(name, _NOTHING), new)
                    for name, new in held.items()
                    if new is not old.get(name, _NOTHING)
                    and any(isinstance(leaf, Tensor) for leaf in tree_leaves(new))
                ]
            with torch.no_grad():
                for buffer, kept in buffers:
                    if fingerprint(buffer) != fingerprint(kept):
                        buffer.data.copy_(kept)
            self._moving |= set(changed_places(numbers, numbers_of(self.module, None)))

    def restore(self) -> None:
        """Take tensors that a pass put into attributes out again."""
        for held, name, old, new in reversed(self._put):
            if held.get(name) is new:
                held.pop(name)
                held.update({} if old is _NOTHING else {name: old})
        self._put.clear()

    def check(self, is_of_batch: Callable[[Tensor], bool], *, read: bool) -> None:
        """Before the engine's pass: that no tensor of the batch is in the model, and that all is as the step before
        left it, if the loop has read anything since.

        Raises:
            UnsupportedModel: the buffer or attribute.
        """
        self.restore()
        inside = [name for name, value in self._tensors() if is_of_batch(value)]
        numbers, codes = self._look()
        changed = [place for place in changed_places(self._numbers, numbers) if place not in self._moving]
        changed += [
            name for name in codes.keys() | self._codes.keys() if codes.get(name) != self._codes.get(name)
        ]
        if inside or (read and changed):
            raise UnsupportedModel(
                "buffers and attributes of the model must hold nothing that was made of a batch, got "
                f"{(inside or changed)[0]}, which the loop set after it had read or computed something of one. Set it "
                "before anything is read, or compute it in the model's forward"
            )

    def note(self) -> None:
        """As it is now is how it may be."""
        self._numbers, self._codes = self._look()
        self.tensors = {id(value) for value in (*self.module.parameters(), *self.module.buffers())}

    def _look(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return numbers_of(self.module, None), {name: fingerprint(value) for name, value in self._tensors()}

    def _held(self) -> Iterator[dict[str, Any]]:
        for module in self.module.modules():
            yield vars(module)
            yield module._buffers

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers and tensors in attributes, by name."""
        for path, module in self.module.named_modules():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if name in ("_buffers", "_parameters", "_modules"):
                    continue
                for place, leaf in enumerate(tree_leaves(value)):
                    if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                        yield f"{path}.{name}".strip(".") + (f"[{place}]" if leaf is not value else ""), leaf
