"""Where the examples are in the tensors of one pass, as the tracer says."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decrescendo.base.storages import paused
from decrescendo.clipping.layout import Layout
from decrescendo.clipping.recurrent.packing import Packing, in_order, make_packing, packing_of
from decrescendo.row_independence.tracing import Owners, RowLayout, Tracer


@dataclass(slots=True)
class Layouts:
    """The layouts of tensors, and how packed rows are padded.

    Args:
        tracer: says where the examples are.
    """

    tracer: Tracer
    packings: dict[int, tuple[Owners, Packing]] = field(default_factory=dict)

    def of(self, tensor: Tensor) -> Layout | None:
        """Where the examples are in a tensor, if there are any."""
        label = self.tracer.label(tensor)
        if not isinstance(label, RowLayout):
            return None
        owners = label.owners
        packed = None if owners is None or owners.each else self.packing(owners, tensor.device)
        return Layout.of(label, self.tracer.count, packed)

    def packing(self, owners: Owners, device: torch.device, sizes: tuple[int, ...] | None = None) -> Packing:
        """How rows on ``device`` that belong to these examples are padded; ``sizes``: of a packed sequence, at each
        step."""
        known = self.packings.get(id(owners))
        if known is None or (sizes is not None and not known[1].sizes):
            with paused():
                example = owners.example.to(device)
                made = packing_of(example, self.tracer.count)
                if sizes is not None:
                    made = make_packing(sizes, in_order(example[: sizes[0]], self.tracer.count))
            known = self.packings[id(owners)] = (owners, made)
        return known[1]
