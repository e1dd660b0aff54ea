"""Draws the batches of a training on rank 0, possibly ahead of the steps; its random streams can be resumed
at any batch."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, final

import numpy as np
import torch
from jaxtyping import Int

from decrescendo.base.batches import to_device
from decrescendo.base.rng import Keystream, Secure, SecureStream, Seeds, grouping, sampling_and_noise
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim.correlated import CorrelatedNoise
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import RandomAllocation, Sampling
from decrescendo.plans.strategy import Strategy
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training.data.examples import Draw, Examples
from decrescendo.training.data.loading import made
from decrescendo.training.data.rows import Rows
from decrescendo.training.data.unmoved import Unmoved
from decrescendo.training.persistence.checkpoint.streams import copied, stream_at, stream_state
from decrescendo.training.processes.world import Tree, World
from decrescendo.training.steering.source import Source


@dataclass(slots=True)
class RunStreams:
    """The random streams of a run: sampling, noise, seeds of the model's passes, and keys of transforms."""

    sampling: np.random.Generator | SecureStream
    noise: Keystream | SecureStream
    masks: Seeds
    data: Seeds
    # For cyclic sampling: assigns records to groups. For correlated noise: the noise of past steps.
    grouping: np.random.Generator | SecureStream | None = None
    correlated: CorrelatedNoise | None = None

    @classmethod
    def of(
        cls,
        seed: int | Secure,
        sampling: Sampling,
        strategy: Strategy | None = None,
        *,
        on_host: bool = False,
    ) -> "RunStreams":
        """The streams of a seed (`Secure`: of secret random keys) for a plan's ``sampling`` and its ``strategy`` of
        correlated noise, whose state is kept in CPU memory if ``on_host``."""
        if seed in cast("Any", (Secure, None)):
            raise InvalidType(f"seed must be Secure(), which nobody knows, or a whole number, got seed={seed!r}")
        return cls(
            *sampling_and_noise(seed),
            Seeds.of(seed),
            Seeds.of(seed, "data"),
            grouping(seed) if isinstance(sampling, CyclicPoissonSampling) else None,
            None if strategy is None else CorrelatedNoise(strategy, sampling.dataset_size, on_host=on_host),
        )

    def positions(self) -> dict[str, Any]:
        """The positions of the streams that batches are drawn from."""
        return {"sampling": stream_state(self.sampling), "data": stream_state(self.data.stream)}

    def go_to(self, positions: Mapping[str, Any]) -> None:
        """Move the sampling and data streams to the given `positions`."""
        self.sampling = stream_at(self.sampling, positions["sampling"])
        self.data.stream = stream_at(self.data.stream, positions["data"])

    def others(self) -> dict[str, Any]:
        """The state of the streams that `positions` leaves out: noise, masks, grouping."""
        grouped = {} if self.grouping is None else {"grouping": stream_state(self.grouping)}
        return {"noise": stream_state(self.noise), "masks": stream_state(self.masks.stream), **grouped}

    def put_others(self, state: dict[str, Any]) -> None:
        """Restore the streams saved by `others`; their entries are removed from ``state``."""
        self.noise = stream_at(self.noise, state.pop("noise"))
        self.masks.stream = stream_at(self.masks.stream, state.pop("masks"))
        if self.grouping is not None:
            self.grouping = stream_at(self.grouping, state.pop("grouping"))

    def groups(
        self, sampling: CyclicPoissonSampling, person_of_row: Int[np.ndarray, " records"] | None
    ) -> list[Int[np.ndarray, "_"]]:
        """The groups of cyclic sampling, the same in each call; ``person_of_row``: each row's person or ``None``."""
        assert self.grouping is not None
        return sampling.groups(copied(self.grouping), person_of_row)


@final
class Drawing:
    """Draws the batches of a training's steps, by one iterator at a time.

    Attributes:
        positions: of the streams, after the last batch yielded. `Trainer` sets, checkpoints save them; an iterator
            begins there: batches drawn ahead, or lost on the way (out of memory, interrupted), are drawn again.
    """

    def __init__(self, source: Source, world: World, streams: RunStreams, device: torch.device) -> None:
        self._source, self._world, self._streams, self._device = source, world, streams, device
        self.positions = streams.positions()
        # With random allocation: an epoch's number, its batches, and the sampling stream after they were drawn.
        self._epoch: tuple[int, list[Int[np.ndarray, " batch"]], dict[str, Any]] | None = None
        self._groups: list[Int[np.ndarray, "_"]] = []

    def batches(
        self,
        table: Rows | Examples,
        workers: int,
        taken: int,
        person_of_row: Int[np.ndarray, " rows"] | None,
        strata: object = None,
        *,
        unmoved: Unmoved,
    ) -> Generator[tuple[Batch | None, int, dict[str, Any]]]:
        """Yield, for each step after ``taken``, this rank's part of the batch (``None`` if empty), its number of rows
        and the `positions` after it. ``person_of_row``: each row's person, if people are protected; ``strata``: each
        row's stratum, for stratified sampling; ``unmoved``: the rows as they must stay."""
        if isinstance(self._source.sampling, StratifiedPoissonSampling):
            self._groups = self._source.sampling.members(strata)
        elif strata is not None:
            raise InvalidValue(
                "strata must come with a plan by StratifiedPoissonSampling, got them with one whose rows are all drawn "
                "alike. Calibrate for StratifiedPoissonSampling({name: (records, expected)})"
            )
        if self._world.rank == 0 and isinstance(self._source.sampling, CyclicPoissonSampling):
            self._groups = self._streams.groups(self._source.sampling, person_of_row)
        self._streams.go_to(self.positions)
        self._epoch = None
        ahead: deque[tuple[int, dict[str, Any]]] = deque()
        with closing(made(table, self._draws(ahead, taken, unmoved), workers, self._device)) as batches:
            for batch in batches:
                unmoved.check()  # what workers read meanwhile
                yield None if batch is None else self._to_device(batch), *ahead.popleft()

    def _draws(
        self, ahead: deque[tuple[int, dict[str, Any]]], taken: int, unmoved: Unmoved
    ) -> Iterator[Draw]:  # fmt: skip
        """The draws of the remaining steps, with this rank's rows; ``ahead`` gets the size of each and the
        stream positions after it."""
        for step in range(taken, self._source.steps):
            drawn = self._world.draw(partial(self._drawn, step))
            indices = self._world.share(drawn["indices"])
            unmoved.check(indices)
            ahead.append((len(indices), self._streams.positions()))
            yield Draw(indices, drawn["key"])

    def _drawn(self, step: int) -> Tree:
        """On rank 0: the row indices of the batch after ``step`` steps, and the random key of its transforms."""
        sampling = self._source.sampling.at(step)
        if isinstance(sampling, RandomAllocation):
            indices = self._allocated(sampling, step)
        elif isinstance(sampling, CyclicPoissonSampling | StratifiedPoissonSampling):
            (indices,) = sampling.batches(1, self._streams.sampling, self._groups)
        else:
            (indices,) = sampling.batches(1, self._streams.sampling)
        return {"indices": indices, "key": self._streams.data()}

    def _allocated(self, sampling: RandomAllocation, step: int) -> Int[np.ndarray, " batch"]:
        """The row indices of one step's batch under random allocation.

        The sampling stream stays at the epoch's start until the last batch: a resumed run draws the epoch again.
        """
        number, place = divmod(step, sampling.steps_per_epoch)
        streams = self._streams
        if self._epoch is None or self._epoch[0] != number:
            began = stream_state(streams.sampling)
            batches = sampling.epoch(streams.sampling)
            self._epoch = number, batches, stream_state(streams.sampling)
            streams.sampling = stream_at(streams.sampling, began)
        _, batches, after = self._epoch
        if place == sampling.steps_per_epoch - 1:
            streams.sampling = stream_at(streams.sampling, after)
        return batches[place]

    def _to_device(self, batch: Batch) -> Batch:
        return to_device(batch, self._device)
