"""`World`: the processes that take the steps of one training together. `Alone`, the default, is one
process."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar, cast, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from decrescendo.accounting.release import Release
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import leaves_of
from decrescendo.clipping.clipped import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel, check_instance
from decrescendo.optim.noise import NoisyMean
from decrescendo.optim.several import name_of
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.rows import Rows, taken
from decrescendo.training.persistence.checkpoint.tree import pack
from decrescendo.training.processes.bits import checksum, is_part
from decrescendo.training.run.versions import versions

T = TypeVar("T")
Tree = dict[str, Any]
# From a clipped sum to its noisy mean, and the digest of that.
Noised = Callable[[ClippedSum], tuple[NoisyMean, bytes]]
# How many examples, or bytes of rows in memory, ranks compare before the first step.
_PROBES, _PROBED = 8, 2**26
RANKS_ALIKE = assumed("ranks-alike")
# The beginning of a fact's name about a sharded part, which only some ranks have.
OF_PART = "weights of part "


@runtime_checkable
class Parts(Protocol):
    """How the parameters of a model are distributed over ranks."""

    @property
    def trained(self) -> bool:
        """Whether trained parameters are sharded: then each rank adds the noise of its part."""
        ...

    @property
    def keep(self) -> Callable[[str, Tensor], Tensor] | None:
        """Reduces the sum of each parameter to the form that the ranks keep; the engine calls it."""
        ...

    def gathered(self, work: Callable[[], T]) -> T:
        """The result of ``work`` on this rank, called while parameters are gathered; all ranks must call
        this."""
        ...

    def clipped(self, clip: Callable[[], ClippedSum]) -> ClippedSum:
        """The clipped sum, with entries of sharded parameters summed over all ranks."""
        ...

    def settle(self) -> None:
        """Put parameters back into the state between passes, in case an evaluation left them gathered."""
        ...


@final
class Whole:
    """`Parts` without sharding: each rank has all entries of each parameter."""

    trained, keep = False, None

    def gathered(self, work: Callable[[], T]) -> T:
        return work()

    def clipped(self, clip: Callable[[], ClippedSum]) -> ClippedSum:
        return clip()

    def settle(self) -> None:
        pass


@runtime_checkable
class World(Protocol):
    """The communication that a training needs between its processes (ranks). Rank 0 leads: only it has the
    random streams of batches and noise, the store and the checkpoints.

    All ranks call the same methods in the same order. The number of ranks appears in no formula of privacy.
    """

    @property
    def rank(self) -> int:
        """The rank of this process, 0 .. size - 1."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks, >= 1."""
        ...

    def training(self, number: int) -> "World":
        """The same ranks for one training: calls from different trainings on different ranks are refused."""
        ...

    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        """Refuse, on every rank, facts that differ between ranks; compared only at some of the steps above
        0."""
        ...

    def together(self, sentences: tuple[str, ...]) -> tuple[str, ...]:
        """The assumptions of all ranks, sorted; every rank gets the same."""
        ...

    def draw(self, make: Callable[[], Tree]) -> Tree:
        """The result of ``make`` on rank 0, sent to every rank."""
        ...

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        """This rank's rows of the batch; without any, the rank takes the step all the same."""
        ...

    def hold(self, model: nn.Module) -> "Parts":
        """How the parameters are distributed; refuses a model that these ranks cannot train."""
        ...

    def release(
        self, clip: Callable[[], ClippedSum], noise: Noised, record: Callable[[Release, bytes], None]
    ) -> tuple[NoisyMean, Diagnostics]:
        """Add ``noise`` to the sum of ``clip`` over all ranks, after rank 0 has recorded the release; also
        returns the diagnostics of the clipping.

        ``noise`` gives the mean and a digest of it. Rank 0 calls it and sends the mean to the others; with sharded
        parameters each rank calls it on its part.
        """
        ...

    def watched(self) -> AbstractContextManager[object]:
        """Inside, an error on this rank is raised on all ranks."""
        ...


@final
class Alone:
    """The `World` of one process.

    >>> Alone().draw(lambda: {"step": 1})
    {'step': 1}
    """

    rank, size = 0, 1

    def training(self, number: int) -> World:  # noqa: ARG002 - trainings of one process are told apart by it
        return self

    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        pass

    def together(self, sentences: tuple[str, ...]) -> tuple[str, ...]:
        return sentences

    def draw(self, make: Callable[[], Tree]) -> Tree:
        return make()

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        return indices

    def hold(self, model: nn.Module) -> Parts:
        check_unwrapped(model)
        return Whole()

    def release(
        self, clip: Callable[[], ClippedSum], noise: Noised, record: Callable[[Release, bytes], None]
    ) -> tuple[NoisyMean, Diagnostics]:
        clipped = clip()
        noisy, content = noise(clipped)
        record(noisy.release, content)
        return noisy, clipped.diagnostics

    def watched(self) -> AbstractContextManager[object]:
        return nullcontext()


def world_of(world: World | None) -> World:
    """The given `World`; `Alone` if there is none.

    Raises:
        InvalidType: something that is no world.
        InvalidValue: none, in a process that torch has joined with others, or that torchrun started as one of several.
    """
    if world is not None and not isinstance(world, World):
        raise InvalidType(f"world must be what decrescendo.distributed.join() returns, got {type(world).__name__}")
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
    ranks = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ and world is None else "1"
    if ranks.isdecimal() and int(ranks) > 1:
        raise InvalidValue(
            f"a training that was started as one of {ranks} processes must be given its world, got none: each would "
            "train by itself, on the same data. Pass world=decrescendo.distributed.join(), or take RANK out of the "
            "environment for trainings apart"
        )
    return Alone() if world is None else world


def check_unwrapped(model: nn.Module, *, parts: bool = False) -> None:
    """Refuse wrappers that average unclipped gradients (DDP); and sharded parameters, unless ``parts``."""
    check_instance("model", model, nn.Module)
    for name, module in model.named_modules():
        wrapped = isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        if wrapped or type(module).__name__ == "FullyShardedDataParallel":
            raise UnsupportedModel(
                f"the model must be given itself, got it in {type(module).__name__} ({name or 'the whole model'}), "
                "which means gradients that nobody clipped. Give its .module, and world=decrescendo.distributed.join()"
            )
    for name, parameter in model.named_parameters():
        if is_part(parameter) and not parts:
            raise UnsupportedModel(
                f"parameters in parts must have a world of their ranks, got {name} sharded over ranks and none. Pass "
                "world=decrescendo.distributed.join(), called after the ranks have joined"
            )


def facts_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, plan: str, others: Mapping[str, object]
) -> dict[str, str]:
    """The facts on which ranks must agree before the first step, as text and digests."""
    shapes = {name: [str(p.dtype), list(p.shape), p.requires_grad, is_part(p)] for name, p in model.named_parameters()}
    held: dict[str, Tensor] = {}
    settings = pack({"optimizer": optimizer.state_dict()}, held)
    return {
        **{f"version of {name}": text for name, text in versions().items()},
        "plan": plan,
        "model": f"{type(model).__name__} in {'training' if model.training else 'evaluation'}",
        "names, shapes and kinds of parameters": _digest(shapes),
        **weight_facts(model),
        "optimizer": name_of(optimizer),
        "settings of the optimizer": _digest(
            [settings, *(checksum(value).hex() for value in held.values() if not is_part(value))]
        ),
        **{name: str(value) for name, value in others.items()},
    }


def weight_facts(model: nn.Module, *, trained: bool = False) -> dict[str, str]:
    """SHA-256 of parameters and buffers by name; with ``trained`` only of those that training updates.

    Each sharded part is a fact of its own, on which ranks that hold copies of the part must agree.
    """
    found = [(name, value) for name, value in model.named_parameters() if value.requires_grad or not trained]
    if not trained:
        found += list(model.named_buffers())
    digests: dict[str, list[tuple[str, str]]] = {"weights": []}
    for name, value in found:
        fact = "weights"
        if is_part(value):
            mesh = cast("Any", value).device_mesh
            fact = f"{OF_PART}{mesh.get_local_rank(mesh.ndim - 1)} of {mesh.size(mesh.ndim - 1)}"
        digests.setdefault(fact, []).append((name, checksum(value).hex()))
    return {fact: _digest(listed) for fact, listed in digests.items()}


def data_facts(table: Rows | Examples) -> tuple[dict[str, str], bool]:
    """The number of rows and a digest of some of them (without values if a row differs when taken twice); and
    whether the digest covers all rows."""

    def probe(count: int) -> list[Tensor]:
        indices = np.unique(np.linspace(0, table.count - 1, count).astype(np.int64))
        return leaves_of(taken(table, indices))

    count = _PROBES
    if isinstance(table, Rows):
        size = sum(value.numel() * value.element_size() for value in probe(1))
        count = min(table.count, max(_PROBES, _PROBED // max(size, 1)))
    first, second = probe(count), probe(count)
    looks = [checksum(value).hex() for value in first]
    same = looks == [checksum(value).hex() for value in second]
    shapes = [[str(value.dtype), list(value.shape)] for value in first] if same else []
    facts = {"number of rows": str(table.count), "rows of the data": _digest([shapes, looks if same else []])}
    return facts, same and count >= table.count


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
