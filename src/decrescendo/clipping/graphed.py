"""The private step as a fixed program: padded chunks of one size, recorded once as a CUDA graph and replayed.

Launching the hundreds of small kernels of a private step costs more than running them on a fast device. A CUDA graph
launches them as one. It needs fixed shapes and no look at values on the host: batches are cut into chunks of a fixed
size, the last one is filled up, and what fills it has weight zero. Without CUDA the same program runs as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.clipping.batches import count_rows, map_rows, slice_rows
from decrescendo.clipping.clipped import (
    Batch,
    ClippedSum,
    Diagnostics,
    Loss,
    accumulator,
    check_clip_norm,
    empty_sum,
    norm_dtype,
    trainable,
)
from decrescendo.clipping.engine import Engine, EngineSettings
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import Signature, signature
from decrescendo.clipping.passes import Pass, run
from decrescendo.clipping.precision import full_precision
from decrescendo.clipping.proof.watch import Watch
from decrescendo.clipping.prover import drawing, given
from decrescendo.clipping.static import static_shapes
from decrescendo.clipping.weighing import loss_sum, weights_of
from decrescendo.errors import UnsupportedModel, check_instance, check_integer

_WARM_UP = 3
_REMEDY = "Use Engine for this model"


class GraphedEngine:
    """A `Clipper` like `Engine` that replays one recorded step a chunk.

    Args:
        model: its operations, their order and all shapes must be the same for every chunk; parameters are
            updated in place (as ``torch.optim`` does).
        loss: ``loss(model, batch)`` returns one loss an example. Nothing in it may look at values on the host
            (``.item()``, ``if tensor:``); on CUDA that is refused when the step is recorded.
        chunk_size: examples a chunk; choose it so that the expected batch is a whole number of chunks, or
            one. Rows that fill up the last chunk cost time.
        settings: as for `Engine`; ``microbatch_size`` and ``memory_limit`` are not used.

    Guarantee:
        that of `Engine`. A row that fills up contributes exactly zero, also where its gradient is not finite.

    Edge cases:
        the step is recorded anew for other shapes, another mode (train, eval) of any module, other trainable
        parameters, or parameters that moved in memory; random numbers (dropout) are drawn for the filled-up
        rows too.

    Raises:
        UnsupportedModel: as `Engine`, and for operations that change from chunk to chunk or cannot be
            recorded.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> loss = lambda model, batch: (model(batch) - 1).square().squeeze(1) / 2
    >>> engine = GraphedEngine(model, loss, chunk_size=4)
    >>> engine.clipped_sum(torch.tensor([[0.5], [3.0]]), 1.0).gradients["weight"]
    tensor([[-1.5000]])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        chunk_size: int,
        settings: EngineSettings | None = None,
        *,
        seeds: Callable[[], int] | None = None,
    ) -> None:
        settings = EngineSettings() if settings is None else settings
        check_instance("settings", settings, EngineSettings)
        self._chunk = max(2, check_integer("chunk_size", chunk_size, at_least=1))
        self._model, self._loss, self._settings = model, loss, settings
        # Proves the step before it is recorded: what is replayed are the same operations on the same memory.
        self._engine = Engine(model, loss, settings, seeds=seeds)
        self._programs: dict[tuple[Signature, int], _Program] = {}

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        parameters = trainable(self._model)
        rows = 0 if batch is None else count_rows(batch)
        if rows == 0:
            return empty_sum(parameters, limit, precise=self._settings.precise)
        program = self._program(batch)
        program.clear(limit)
        for start in range(0, rows, self._chunk):
            stop = min(start + self._chunk, rows)
            program.load(slice_rows(batch, start, stop), stop - start)
            program.replay()
        gradients = {name: total.clone() for name, total in program.totals.items()}
        return ClippedSum(gradients, limit, program.diagnostics(rows))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """As of `Engine`."""
        return self._engine.assumptions

    def _program(self, batch: Batch) -> "_Program":
        place = hash((
            tuple((name, p.data_ptr(), p.dtype) for name, p in trainable(self._model).items()),
            tuple(module.training for module in self._model.modules()),
        ))  # fmt: skip
        key = (signature(Inventory.of(self._model), batch), place)
        if key not in self._programs:
            # One that was recorded for parameters elsewhere would read freed memory: it is dropped.
            self._programs = {known: p for known, p in self._programs.items() if known[1] == place}
            self._programs[key] = _Program.build(
                self._model, self._loss, self._engine, self._settings, batch, self._chunk
            )
        return self._programs[key]


@dataclass(slots=True)
class _Program:
    """Static inputs, the step, and static outputs."""

    model: nn.Module
    loss: Loss
    engine: Engine
    settings: EngineSettings
    chunk: int
    inputs: Batch
    present: Tensor
    limit: Tensor
    totals: dict[str, Tensor]
    counts: Tensor
    graph: Any = field(default=None)

    @classmethod
    def build(
        cls, model: nn.Module, loss: Loss, engine: Engine, settings: EngineSettings, batch: Batch, chunk: int
    ) -> "_Program":
        parameters = trainable(model)
        device = next(iter(parameters.values())).device
        wide = norm_dtype(device)
        program = cls(
            model=model,
            loss=loss,
            engine=engine,
            settings=settings,
            chunk=chunk,
            inputs=map_rows(lambda rows: rows.new_zeros((chunk, *rows.shape[1:])), batch),
            present=torch.zeros(chunk, dtype=torch.bool, device=device),
            limit=torch.ones((), dtype=wide, device=device),
            totals={
                name: torch.zeros(
                    p.shape,
                    dtype=torch.float64 if settings.precise else accumulator(p.dtype),
                    device=p.device,
                )
                for name, p in parameters.items()
            },
            counts=torch.zeros(4, dtype=wide, device=device),
        )
        rows = min(count_rows(batch), chunk)
        program.load(slice_rows(batch, 0, rows), rows)
        if device.type == "cuda":
            program.capture(device)
        return program

    def load(self, batch: Batch, rows: int) -> None:
        """Copy a chunk in; what is left over is filled with its first row, which any model can digest."""

        def copy(target: Tensor, source: Tensor) -> None:
            target[:rows].copy_(source, non_blocking=True)
            if rows < self.chunk:
                target[rows:].copy_(
                    source[:1].expand(self.chunk - rows, *source.shape[1:]), non_blocking=True
                )

        sources = iter(_leaves(batch))
        map_rows(lambda target: (copy(target, next(sources)), target)[1], self.inputs)
        self.present.copy_(torch.arange(self.chunk, device=self.present.device) < rows)

    def clear(self, clip_norm: float) -> None:
        """Before the first chunk of a batch."""
        self.limit.fill_(clip_norm)
        self.counts.zero_()
        for total in self.totals.values():
            total.zero_()

    def replay(self) -> None:
        """One chunk more, with random numbers of its own."""
        if self.graph is None:
            with static_shapes():
                self.add(self.engine.prove(self.inputs))
            return
        with drawing(self.model, self.engine.draw_seed()):
            self.graph.replay()

    def add(self, done: Pass) -> None:
        """A pass into the totals, without a look at any value."""
        with full_precision():
            weights = weights_of(done, self.limit, self.present)
            # Always cleared: whether anything is not finite is not known here.
            sums = done.measured.without(~weights.counted).weighted_sums(weights.factors)
            for name, total in self.totals.items():
                total += sums[name]
            finite = weights.counted
            self.counts += torch.stack([
                self.present.sum(),
                (self.present & ~finite).sum(),
                (finite & (weights.norms > self.limit)).sum(),
                loss_sum(done.losses, self.present),
            ]).to(self.counts.dtype)  # fmt: skip

    def step(self, seed: int) -> None:
        """What is recorded: from the static inputs into the totals."""
        watch = Watch(self.chunk, self.engine.memory, seed)
        with static_shapes():
            self.add(
                run(self.model, self.loss, given(self.inputs, self.chunk, watch), self.engine.means, watch)
            )
        watch.end()

    def capture(self, device: torch.device) -> None:
        """Record the step as a CUDA graph."""
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.engine.prove(self.inputs)
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        try:
            seed = self.engine.draw_seed()
            with drawing(self.model, seed), torch.cuda.graph(graph):
                self.step(seed)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise UnsupportedModel(
                "a step must be recordable as a CUDA graph, got an operation that waits for the device or "
                f"allocates by values ({reason}). {_REMEDY}, or write that part with fixed shapes"
            ) from error
        self.graph = graph

    def diagnostics(self, rows: int) -> Diagnostics:
        """The counts: the one wait for the device in a step."""
        _, nonfinite, clipped, total = self.counts.tolist()
        return Diagnostics(rows, int(nonfinite), int(clipped), total)


def _leaves(batch: Batch) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(rows: Tensor) -> Tensor:
        found.append(rows)
        return rows

    map_rows(cast("Callable[[Tensor], Tensor]", keep), batch)
    return found
