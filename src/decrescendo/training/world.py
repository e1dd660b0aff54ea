"""`World`: the processes that take one training's steps together. `Alone`, the default, is one process."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from decrescendo.clipping.batches import leaves_of
from decrescendo.clipping.clipped import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel
from decrescendo.optim.noise import NoisyMean
from decrescendo.training.bits import checksum
from decrescendo.training.checkpoint.tree import pack
from decrescendo.training.data import Rows
from decrescendo.training.examples import Draw, Examples
from decrescendo.training.run.versions import versions

Tree = dict[str, Any]
# Rows of the data that ranks compare before the first step.
_PROBES = 8


@runtime_checkable
class World(Protocol):
    """What a training asks of its processes (ranks). Rank 0 leads: it alone holds the streams of batches and noise,
    the store and the checkpoints.

    All ranks call the same methods in the same order. The number of ranks appears in no formula of privacy.
    """

    @property
    def rank(self) -> int:
        """0 .. size - 1."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are, >= 1."""
        ...

    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        """Refuse, on every rank, facts in which the ranks differ; at some of the steps above 0 only."""
        ...

    def draw(self, make: Callable[[], Tree]) -> Tree:
        """What ``make`` returns on rank 0, on every rank."""
        ...

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        """This rank's rows of the batch; may be none, which is a step all the same."""
        ...

    def release(
        self, clip: Callable[[], ClippedSum], publish: Callable[[ClippedSum], NoisyMean]
    ) -> tuple[NoisyMean, Diagnostics]:
        """``publish``, on rank 0, of the sum over all ranks of ``clip``; and what their clipping saw."""
        ...

    def watched(self) -> AbstractContextManager[object]:
        """Inside, an error of this rank is an error of all."""
        ...


@final
class Alone:
    """One process.

    >>> Alone().draw(lambda: {"step": 1})
    {'step': 1}
    """

    rank, size = 0, 1

    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        """There is nobody to differ from."""

    def draw(self, make: Callable[[], Tree]) -> Tree:
        """What ``make`` returns."""
        return make()

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        """All of the batch."""
        return indices

    def release(
        self, clip: Callable[[], ClippedSum], publish: Callable[[ClippedSum], NoisyMean]
    ) -> tuple[NoisyMean, Diagnostics]:
        """One after the other."""
        clipped = clip()
        return publish(clipped), clipped.diagnostics

    def watched(self) -> AbstractContextManager[object]:
        """Errors stay errors."""
        return nullcontext()


def world_of(world: World | None) -> World:
    """`Alone` where there is none.

    Raises:
        InvalidType: something that is no world.
        InvalidValue: none, in a process that torch has joined with others.
    """
    if world is not None and not isinstance(world, World):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidType(
            f"world must be what decrescendo.distributed.join() returns, got {type(world).__name__}"
        )
    if world is not None and world.size > 1:
        return world
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            raise InvalidValue(
                f"a training in {ranks} processes must be given its world, got world={world and 'Alone()'}: each "
                "would train by itself, on the same data. Pass world=decrescendo.distributed.join()"
            )
    return Alone() if world is None else world


def check_plain(model: nn.Module) -> None:
    """Refuse wrappers that mean gradients of unclipped losses, and parameters that are parts of tensors."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise UnsupportedModel(
                f"the model must be given itself, got it in {type(module).__name__} ({name or 'the whole model'}), "
                "which means gradients that nobody clipped. Give its .module, and world=decrescendo.distributed.join()"
            )
        if type(module).__name__ == "FullyShardedDataParallel":
            raise UnsupportedModel(
                f"the model must be given itself, got it in {type(module).__name__} ({name or 'the whole model'}). "
                "Give the model that was wrapped, whole on each rank"
            )
    for name, parameter in model.named_parameters():
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise UnsupportedModel(
                f"parameters must be whole on each rank, got {name} sharded over ranks. No rank would see the norm of "
                "an example's whole gradient: give the model before fully_shard or tensor parallelism"
            )


def facts_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, plan: str, others: Mapping[str, object]
) -> dict[str, str]:
    """What ranks must agree on before the first step, in words and digests."""
    shapes = {name: [str(p.dtype), list(p.shape), p.requires_grad] for name, p in model.named_parameters()}
    held: dict[str, Tensor] = {}
    settings = pack({"optimizer": optimizer.state_dict()}, held)
    return {
        **{f"version of {name}": text for name, text in versions().items()},
        "plan": plan,
        "model": f"{type(model).__name__} in {'training' if model.training else 'evaluation'}",
        "names, shapes and kinds of parameters": _digest(shapes),
        "weights": weights_digest(model),
        "optimizer": type(optimizer).__qualname__,
        "settings of the optimizer": _digest([settings, *(checksum(value).hex() for value in held.values())]),
        **{name: str(value) for name, value in others.items()},
    }


def weights_digest(model: nn.Module, *, trained: bool = False) -> str:
    """SHA-256 of parameters and buffers by name; of those alone that training moves with ``trained``."""
    found = [(name, value) for name, value in model.named_parameters() if value.requires_grad or not trained]
    if not trained:
        found += list(model.named_buffers())
    return _digest([(name, checksum(value).hex()) for name, value in found])


def data_facts(table: Rows | Examples) -> dict[str, str]:
    """Number of rows, and a digest of a few of them; of their shapes where a row is not twice the same."""
    indices = np.unique(np.linspace(0, table.count - 1, _PROBES).astype(np.int64))

    def probe() -> list[Tensor]:
        batch = table.take(indices) if isinstance(table, Rows) else table.take(Draw(indices))
        return leaves_of(batch)

    first, second = probe(), probe()
    looks = [checksum(value).hex() for value in first]
    same = looks == [checksum(value).hex() for value in second]
    shapes = [[str(value.dtype), list(value.shape)] for value in first] if same else []
    return {"number of rows": str(table.count), "rows of the data": _digest([shapes, looks if same else []])}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
