"""`Group`: the ranks of one training over ``torch.distributed``.

Every operation begins with a meeting (`meetings`). Clipped sums travel between ranks without noise: their network is
trusted.
"""

import copy
import functools
import hashlib
import json
import math
import struct
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any, Concatenate, ParamSpec, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor, nn

from decrescendo.accounting.release import Release
from decrescendo.clipping.clipped import ClippedSum, Diagnostics, accumulator
from decrescendo.distributed.meetings import HEAD, At, Meetings
from decrescendo.distributed.messages import (
    buckets,
    bytes_of,
    differs,
    empty_like,
    flat_of,
    kinds,
    packed,
    raising,
    tensor_of,
    unflatten,
    unpacked,
)
from decrescendo.errors import PlanViolation
from decrescendo.optim.noise import NoisyMean
from decrescendo.training.processes.bits import is_part
from decrescendo.training.processes.world import OF_PART, Noised, Parts, Tree, Whole, check_unwrapped

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")

_SEEN = struct.Struct("<3qd")
# The binary form of a release and of the noise of its mean.
_RELEASE = struct.Struct("<2dqd3qd")


def _in_turn(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Make a method an operation of its training, which meetings name; other threads' operations wait."""

    @functools.wraps(method)
    def asked(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._turns, self._meetings.of(self._number):
            return method(self, *args, **kwargs)

    return asked


@final
class Group:
    """The ranks of one training; `join` makes it.

    Args:
        control: a gloo group of all ranks.
        gradients: the group that sums travel in; ``None`` for ``control``. With NCCL they stay on their devices.
        every: steps between two comparisons of the weights.

    Guarantee:
        what `release` gives is the noisy mean of sum_r S_r with S_r the clipped sum of rank r's share. Shares of one
        batch are disjoint and are all of it, so the sum has the sensitivity C of each. It is added with SUM in float32
        or wider. Noise and divisor are those of one process, whatever the number of ranks.

    Edge cases:
        a rank with an empty share takes part in the step: its sum is zero.
        an error of a rank, or a refusal, is an error of all, before noise is drawn; Ctrl-C and ``sys.exit`` too.
        a rank that ends without notice (killed) is an error of the others: `RankLost`.
        after an error the group is closed: every later operation raises that error.

    >>> Group.__name__  # docs/how-to/distribute.md has a script for torchrun
    'Group'
    """

    def __init__(
        self, control: dist.ProcessGroup, gradients: dist.ProcessGroup | None = None, every: int = 100
    ) -> None:
        self._meetings = Meetings(control, gradients or control)
        self._on_device = "nccl" in str(dist.get_backend(self._meetings.gradients))
        self._every, self._number = every, 0
        # Several threads may each run a training.
        self._turns = threading.RLock()
        self.rank, self.size = dist.get_rank(control), dist.get_world_size(control)

    @property
    def goes_on(self) -> bool:
        """Whether the processes are still connected, without an error."""
        return self._meetings.goes_on

    def training(self, number: int) -> "Group":
        """A group of the same ranks for the training with this number."""
        found = copy.copy(self)
        found._number = number
        return found

    @_in_turn
    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        """Refuse a rank whose facts differ from rank 0's; after step 0 only at each ``every``-th step.

        Raises:
            PlanViolation: the first fact that differs, with both values.
        """
        if step % self._every:
            return
        own = {"compare_every": str(self._every)}
        texts = self._meetings.exchange(At.AGREE, lambda: json.dumps(own | dict(facts())).encode())
        found: list[dict[str, str]] = [json.loads(text) for text in texts]
        for name in sorted(set[str]().union(*found)):
            told = [
                (rank, one.get(name)) for rank, one in enumerate(found) if name in one or not name.startswith(OF_PART)
            ]
            for rank, other in told:
                if other != told[0][1]:
                    self._meetings.over(
                        PlanViolation(
                            f"all ranks must have the same {name}, got {differs(*told[0], rank, other)}. Run the same "
                            "script with the same data and settings, and give the model its weights from one seed or "
                            "file"
                        )
                    )

    @_in_turn
    def together(self, sentences: tuple[str, ...]) -> tuple[str, ...]:
        """The union of all ranks' sentences, on every rank, sorted."""
        texts = self._meetings.exchange(At.AGREE, lambda: json.dumps(sentences).encode())
        return tuple(sorted({str(sentence) for text in texts for sentence in json.loads(text)}))

    @_in_turn
    def draw(self, make: Callable[[], Tree]) -> Tree:
        """Broadcast what ``make`` returns on rank 0: numbers, texts, lists, dicts, tensors and arrays."""
        made: list[Tree] = []

        def message() -> bytes:
            if self.rank:
                return b""
            made.append(make())
            return packed(made[0])

        content, lengths, heads = self._meetings.begin(At.DRAW, message)
        if lengths[0] <= HEAD:
            return made[0] if made else unpacked(heads[0][: lengths[0]])
        sent = torch.empty(lengths[0], dtype=torch.uint8)
        if not self.rank:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with self._meetings.talking():
            dist.broadcast(sent, 0, group=self._meetings.control)
        return made[0] if made else unpacked(sent.numpy().tobytes())

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        """This rank's share of a batch: every ``size``-th index."""
        return indices[self.rank :: self.size]

    def hold(self, model: nn.Module) -> Parts:
        """The `Parts` of a model: whole parameters, or a rank's parts where ``fully_shard`` was called."""
        check_unwrapped(model, parts=True)
        sharded = any(is_part(p) for p in model.parameters()) or any(
            type(module).__name__.startswith("FSDP") for module in model.modules()
        )
        self._meetings.in_parts |= sharded
        if not sharded:
            return Whole()
        from decrescendo.distributed.sharded import Shards  # slow to load

        return Shards(model, self.size, self._meet, self._meetings.talking)

    @_in_turn
    def release(
        self, clip: Callable[[], ClippedSum], noise: Noised, record: Callable[[Release, bytes], None]
    ) -> tuple[NoisyMean, Diagnostics]:
        """The noisy mean of the clipped sums of all ranks; with sharded parameters each rank's part of it."""
        total = self._total(clip)
        in_parts = any(map(is_part, total.gradients.values()))
        noisy = (self._each if in_parts else self._first)(total, noise, record)
        return noisy, total.diagnostics

    @contextmanager
    def watched(self) -> Generator[None]:
        """Inside, an error of this rank is sent to all others, unless it came from them."""
        try:
            yield
        except BaseException as error:
            if self._meetings.error is None and isinstance(error, Exception) and not self._meetings.in_parts:
                # (The other ranks may have ended; this error is the one to raise.)
                with suppress(Exception), self._turns:
                    self._meetings.begin(At.FAIL, raising(error))
            elif self._meetings.error is None:  # an interrupted rank may be in the middle of a meeting
                self._meetings.leave(error)
            raise

    def _total(self, clip: Callable[[], ClippedSum]) -> ClippedSum:
        """The clipped sum over all ranks: on rank 0, and with sharded parameters on every rank. Elsewhere the buffers
        that were sent, which only `_first` uses."""
        clipped: list[ClippedSum] = []

        def message() -> bytes:
            clipped.append(clip())
            own = clipped[0]
            return _SEEN.pack(*astuple(own.diagnostics)) + kinds(own) + bytes_of(own.extra_coordinates)

        found = self._meetings.exchange(At.SUM, message)
        own, seen = clipped[0], Diagnostics(0, 0, 0, 0.0)
        alike = kinds(own)
        parts: list[Tensor] = []
        for rank, text in enumerate(found):
            seen += Diagnostics(*_SEEN.unpack_from(text))
            parts.append(tensor_of(text[_SEEN.size + len(alike) :]))
            if text[_SEEN.size :][: len(alike)] != found[0][_SEEN.size :][: len(alike)]:
                self._meetings.over(
                    PlanViolation(
                        "all ranks must train the same parameters with the same clip norm, got others on rank "
                        f"{rank} than on rank 0. Freeze and unfreeze on every rank alike"
                    )
                )
        extra = None if own.extra_coordinates is None else torch.stack(parts).sum(0)
        sums, in_parts = dict(own.gradients), any(map(is_part, own.gradients.values()))
        whole = {name: v.to(accumulator(v.dtype)) for name, v in own.gradients.items() if not is_part(v)}
        with self._meetings.talking():
            for names in buckets(whole):
                flat = flat_of([whole[name] for name in names], on_device=self._on_device)
                dist.reduce(flat, 0, op=dist.ReduceOp.SUM, group=self._meetings.gradients)
                if in_parts:
                    dist.broadcast(flat, 0, group=self._meetings.gradients)
                unflatten(flat, whole, names)
        return ClippedSum(sums | whole, own.sensitivity, seen, extra)

    def _each(self, total: ClippedSum, noise: Noised, record: Callable[[Release, bytes], None]) -> NoisyMean:
        """Release a sharded sum: each rank adds the noise of its part, rank 0 records the release."""
        made: list[NoisyMean] = []

        def message() -> bytes:
            noisy, content = noise(total)
            made.append(noisy)
            return content

        def recorded() -> bytes:
            if not self.rank:
                record(made[0].release, hashlib.sha256(b"".join(found)).digest() if found[0] else b"")
            return b""

        found = self._meetings.exchange(At.PUBLISH, message)
        self._meetings.begin(At.PUBLISH, recorded)
        return made[0]

    def _first(self, total: ClippedSum, noise: Noised, record: Callable[[Release, bytes], None]) -> NoisyMean:
        """Release a sum on rank 0: it adds the noise, records the release, and sends the mean to all."""
        made: list[NoisyMean] = []

        def message() -> bytes:
            if self.rank:
                return b""
            noisy, content = noise(total)
            record(noisy.release, content)
            made.append(noisy)
            release, std = noisy.release, math.nan if noisy.noise_std is None else noisy.noise_std
            return _RELEASE.pack(*astuple(release), std) + bytes_of(noisy.extra_coordinates)

        found = self._meetings.exchange(At.PUBLISH, message)
        means = dict((made[0] if made else total).gradients)
        with self._meetings.talking():
            for names in buckets(means):
                own = [means[name] for name in names]
                flat = flat_of(own, on_device=self._on_device) if made else empty_like(own, on_device=self._on_device)
                dist.broadcast(flat, 0, group=self._meetings.gradients)
                if self.rank:
                    unflatten(flat, means, names)
        if made:
            return made[0]
        *release, std = _RELEASE.unpack_from(found[0])
        extra = None if total.extra_coordinates is None else tensor_of(found[0][_RELEASE.size :])
        return NoisyMean(means, Release(*release), None if math.isnan(std) else std, extra)

    def _meet(self, number: int) -> list[int]:
        """Exchange one number of every rank during a sharded model's passes."""
        return self._meetings.begin(At.PARTS, bytes, number)[1]
