"""`Shards`: a model of which ``fully_shard`` (FSDP2) has put a part of each parameter on each rank.

Between passes the model is as torch made it: its parameters are DTensors. In a pass they are plain tensors, whose
memory exists while an operation needs it: a dispatch mode inspects the arguments of every operation, forward and
backward, and has the ranks gather missing ones. So the engine sees whole parameters, and checks and clips as always.

Ranks are not in step: one has an empty share, another splits its share into micro-batches, or checks a new shape. So
before anything is gathered or summed, all ranks exchange, in a round, what each needs; then all take part in all of it.
"""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Any, TypeVar, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial

from decrescendo.base.storages import FUNCTIONS_OFF, storage_key, tensors_of
from decrescendo.base.torch_private import TorchDispatchMode
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.distributed.fsdp import Block, blocks_of, set_parameter, without_hooks

T = TypeVar("T")
# The most blocks gathered at once: the one in use, and the one before it.
_PRESENT = 2


class _Need(IntEnum):
    NOTHING, PARAMETERS, SUM = range(3)


@final
class Shards:
    """The parts of a model's parameters.

    Args:
        model: a model that ``fully_shard`` was called on, with a mesh of all ranks.
        size: the number of ranks.
        meet: sends a number to all ranks, and returns the numbers of all.
        talking: a context that turns a failure to communicate into the error of a lost rank.

    Guarantee:
        each example's gradient and its norm are those of the whole model, whichever rank computes them. A sum is
        added over all ranks in its own dtype, float32 or wider, and each rank keeps a part of it.

    Edge cases:
        a tied parameter stays one if ``fully_shard`` was given it once; if it was split in two, it is refused.

    Raises:
        UnsupportedModel: parameters sharded in any other way (tensor parallelism), or stored in another precision or
            on another device than they are used in; a tied parameter that sharding has split.
    """

    def __init__(
        self,
        model: nn.Module,
        size: int,
        meet: Callable[[int], list[int]],
        talking: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._model, self._meet, self._talking = model, meet, talking
        self._blocks = blocks_of(model, size)
        self._by_memory = {
            storage_key(whole): index for index, block in enumerate(self._blocks) for whole in block.whole.values()
        }
        self._present: list[int] = []
        # In the same order on all ranks.
        self._names = sorted(name for block in self._blocks for name in block.parts)
        self._parts: dict[str, DTensor] = {}
        self._sums: dict[str, Tensor] = {}
        self.settle()

    @property
    def trained(self) -> bool:
        """Whether a sharded parameter is trained: then sums and means are sharded, too."""
        return any(part.requires_grad for part in self._parts.values())

    def keep(self, name: str, total: Tensor) -> Tensor:
        """Add ``total`` to the sharded sum over all ranks and return an empty tensor; itself if not sharded."""
        if name not in self._parts:
            return total
        self._round(_Need.SUM, self._names.index(name), total)
        return total.new_empty(0)

    def gathered(self, work: Callable[[], T]) -> T:
        """Run ``work`` with gathered parameters, and return its result once all ranks have finished theirs."""
        with self._gathering():
            found = work()
            while any(self._round(_Need.NOTHING)):
                pass
        return found

    def clipped(self, clip: Callable[[], ClippedSum]) -> ClippedSum:
        """What ``clip`` returns, once all ranks have clipped: for sharded parameters sums over all ranks (DTensors),
        for others sums over this rank's examples."""
        self._sums = {}
        own = self.gathered(clip)
        gradients = dict(own.gradients)
        for name, part in self._parts.items():
            if not part.requires_grad:
                continue
            local = self._sums.pop(name, None)
            if local is None:  # no rank had a gradient
                local = torch.zeros_like(part.to_local(), dtype=gradients[name].dtype)
            gradients[name] = DTensor.from_local(
                local, part.device_mesh, part.placements, shape=part.shape, stride=part.stride()
            )
        return ClippedSum(gradients, own.sensitivity, own.diagnostics, own.extra_coordinates)

    def settle(self) -> None:
        """Reshard the parameters, and take over those that the model has now."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation may have left them whole
        found = dict(self._model.named_parameters())
        for block in self._blocks:
            for name, whole in block.whole.items():
                part = block.parts[name] = cast("DTensor", found[name])
                whole.requires_grad_(part.requires_grad)
        self._parts = {name: part for block in self._blocks for name, part in block.parts.items()}

    @contextmanager
    def _gathering(self) -> Generator[None]:
        """Inside, the model has plain parameters, gathered when an operation needs them."""
        self.settle()
        table = {id(part): block.whole[name] for block in self._blocks for name, part in block.parts.items()}
        held = [
            (module, name, parameter)
            for module in self._model.modules()
            for name, parameter in cast("Any", module)._parameters.items()
            if id(parameter) in table
        ]
        with without_hooks(self._model):
            try:
                for module, name, parameter in held:
                    set_parameter(module, name, table[id(parameter)])
                with _Looking(self._bring):
                    yield
            finally:
                for module, name, parameter in held:
                    set_parameter(module, name, parameter)
                while self._present:
                    self._free(self._present[0])

    def _bring(self, tensors: Iterable[Tensor]) -> None:
        """Gather the blocks of these tensors."""
        keys = map(storage_key, tensors)
        wanted = {self._by_memory[key] for key in keys if key in self._by_memory}
        for index in sorted(wanted.difference(self._present)):
            others = [present for present in self._present if present not in wanted]
            for other in others[: max(0, len(self._present) + 1 - _PRESENT)]:
                self._free(other)
            self._round(_Need.PARAMETERS, index)
            self._present.append(index)
        if len(self._present) > 1:
            self._present.sort(key=wanted.__contains__)  # blocks in use go last, so others are freed first

    def _free(self, index: int) -> None:
        self._present.remove(index)
        for whole in self._blocks[index].whole.values():
            whole.untyped_storage().resize_(0)

    def _round(self, need: _Need, index: int = 0, total: Tensor | None = None) -> list[int]:
        """Exchange what each rank needs and take part in all of it; returns all ranks' needs (0: nothing)."""
        with FUNCTIONS_OFF(), torch.no_grad():
            wide = total is not None and total.dtype == torch.float64
            own = need + len(_Need) * (2 * index + wide)
            said = self._meet(own)
            with self._talking():
                for code in sorted(set(said)):
                    which, wider = divmod(code // len(_Need), 2)
                    if code % len(_Need) == _Need.PARAMETERS:
                        self._gather(self._blocks[which], mine=code == own)
                    elif code % len(_Need) == _Need.SUM:
                        name, dtype = self._names[which], torch.float64 if wider else torch.float32
                        self._add(name, dtype, total if code == own else None)
        return said

    @staticmethod
    def _gather(block: Block, *, mine: bool) -> None:
        """Gather a block: all parameters of one dtype at once, each rank's rows padded to equal numbers."""
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, part in block.parts.items():
            by_dtype.setdefault(part.dtype, []).append(name)
        for names in by_dtype.values():
            parts = [cast("DTensor", block.parts[name].detach()) for name in names]
            mesh = parts[0].device_mesh
            group = mesh.get_group(mesh.ndim - 1)
            size = dist.get_world_size(group)
            counts = [-(-part.shape[0] // size) * math.prod(part.shape[1:]) for part in parts]
            own = parts[0].to_local().new_zeros(sum(counts))
            for part, numbers in zip(parts, own.split(counts), strict=True):
                local = part.to_local().reshape(-1)
                numbers[: len(local)] = local
            every = own.new_empty(size * len(own))
            dist.all_gather(list(every.split(len(own))), own, group=group)
            for name, rows in zip(names, every.view(size, -1).split(counts, 1), strict=True):
                whole = block.whole[name]
                if mine:
                    whole.untyped_storage().resize_(whole.numel() * whole.element_size())
                    numbers = rows.reshape(-1)[: whole.numel()]
                    whole.data.copy_(numbers.view(whole.shape))  # unseen by autograd's version counter

    def _add(self, name: str, dtype: torch.dtype, total: Tensor | None) -> None:
        """Sum a gradient over all ranks, and keep this rank's part."""
        part = self._parts[name]
        mesh = part.device_mesh
        own = torch.zeros(part.shape, dtype=dtype, device=part.device) if total is None else total
        summed = DTensor.from_local(own, mesh, [Partial()] * mesh.ndim).redistribute(placements=part.placements)
        local = summed.to_local()
        self._sums[name] = self._sums[name].add_(local) if name in self._sums else local


class _Looking(TorchDispatchMode):
    """Hands the arguments of each operation to ``bring`` before it is run."""

    def __init__(self, bring: Callable[[Iterable[Tensor]], None]) -> None:
        super().__init__()
        self._bring = bring

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._bring(tensors_of((*args, *kwargs.values())))
        return func(*args, **kwargs)
