"""Tracks which tensors of a pass are trainable parameters, or are made from them only."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from decrescendo.base.storages import FUNCTIONS_OFF, ORDINARY, is_hollow, paused, tensors_of
from decrescendo.clipping.graph import leaf_of, walk
from decrescendo.clipping.rules import lookup
from decrescendo.clipping.uses import Tracked, edge_of, roots_of
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Tracer

# Operations that only rearrange a tensor's entries: norms do not change, nor by a selection (`lookup.selects`).
ISOMETRIES = frozenset({
    "t", "T", "mT", "transpose", "permute", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
    "contiguous", "clone", "swapaxes", "movedim",
})  # fmt: skip
# autograd's node for ``as_subclass``.
_ALIAS = "AliasBackward0"


@dataclass(slots=True)
class Tracking:
    """The trainable parameters of one pass, and the tensors made from them only.

    Args:
        parameters: by name.
        tracer: numbers the writes to tensors.
    """

    parameters: Mapping[str, Tensor]
    tracer: Tracer
    items: dict[int, Tracked] = field(default_factory=dict)
    # Tensors that are read again after the forward pass: operation, tensor, version, number of the last write.
    kept: list[tuple[str, Tensor, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, parameter in self.parameters.items():
            self.items[id(parameter)] = Tracked(parameter, (name,), parameter._version, root=True)

    def __contains__(self, value: object) -> bool:
        return id(value) in self.items

    def among(self, values: Iterable[Any]) -> list[Tracked]:
        """The tracked tensors among the values."""
        found: list[Tracked] = []
        for tensor in tensors_of(values):
            item = self.items.get(id(tensor)) or self._subclassed(tensor)
            if item is not None:
                found.append(item if item.version == tensor._version else self._changed(item))
        return found

    def _changed(self, item: Tracked) -> Tracked:
        """A tracked tensor that was written to since, perhaps through a view: its roots, by its autograd graph."""
        reached = {self.items[key].roots[0] for key in leaves(item.tensor) if key in self.items}
        self.items[id(item.tensor)] = found = Tracked(item.tensor, tuple(sorted(reached)), item.tensor._version)
        return found

    def _subclassed(self, tensor: Tensor) -> Tracked | None:
        """A tracked tensor made by `as_subclass`, which no torch function shows; ``None`` for other tensors."""
        if type(tensor) in ORDINARY or is_hollow(tensor):
            return None
        with FUNCTIONS_OFF():
            node, version = tensor.grad_fn, tensor._version
        if node is None or node.name() != _ALIAS:
            return None
        output = 0
        while node is not None and node.name() == _ALIAS:
            ((node, output),) = node.next_functions
        if node is None:
            return None
        # Of several outputs of one operation (chunks of a weight) the one with this index.
        source = self.items.get(leaf_of(node)) or next(
            (item for item in self.items.values() if item.tensor.grad_fn is node and item.tensor.output_nr == output),
            None,
        )
        if source is None:
            return None
        self.keep("as_subclass", (source.tensor, tensor))
        parent = source if source.isometric else None
        self.items[id(tensor)] = found = Tracked(tensor, source.roots, version, parent)
        return found

    def derive(
        self,
        made: list[Tensor],
        name: str,
        found: list[Tracked],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Note tensors that an operation made from parameters only."""
        self.keep(name, (*tensors_of((*args, *kwargs.values())), *made))
        with paused(), FUNCTIONS_OFF():  # its comparisons are no operations of the program
            chosen = lookup.selects(name, args, kwargs, self.tracer.same)
        chosen = chosen or (name in ISOMETRIES and len(made) == 1)
        kept = chosen and len(found) == 1 and found[0].isometric and found[0].tensor.dtype == made[0].dtype
        ids = lookup.ids_of(name, args, kwargs) if kept else None
        for tensor in made:
            if kept and tensor is not found[0].tensor:
                item = Tracked(tensor, found[0].roots, tensor._version, found[0], ids)
            else:
                item = Tracked(tensor, roots_of(found), tensor._version)
            self.items[id(tensor)] = item

    def keep(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Note tensors that are read again after the forward pass."""
        self.kept += [(name, tensor, tensor._version, self.tracer.written(tensor)) for tensor in tensors]

    def check_kept(self) -> None:
        """Refuse if any of them was written to unseen by autograd (``.data``)."""
        for name, tensor, version, written in self.kept:
            if tensor._version == version and self.tracer.written(tensor) != written:
                raise UnsupportedModel(
                    f"what an operation was given must not be overwritten after its use, got {name}, of which a tensor "
                    f"of shape {tuple(tensor.shape)} was changed through .data. Use the out-of-place form"
                )


def leaves(tensor: Tensor) -> Iterator[int]:
    """The ids of the leaves of a tensor's autograd graph."""
    starts = [edge_of(tensor).node] if tensor.requires_grad else []
    return (leaf_of(node) for node, _ in walk(starts))
