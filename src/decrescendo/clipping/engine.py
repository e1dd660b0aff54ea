"""`Engine`: the clipped sum from one forward and one backward pass of an unmodified model."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption, are_independent
from decrescendo.base.batches import OneByOne, count_rows, parts_of, slice_rows
from decrescendo.clipping.batch_passes import BatchPasses, no_seed
from decrescendo.clipping.capture import Captures
from decrescendo.clipping.capture_choice import Choice, clock_on
from decrescendo.clipping.checker import Checker
from decrescendo.clipping.clipped import (
    Batch,
    ClippedSum,
    Diagnostics,
    Loss,
    check_clip_norm,
    check_loss,
    empty_sum,
    norm_accumulator,
    trainable,
    trainable_of,
)
from decrescendo.clipping.engine_settings import EngineSettings
from decrescendo.clipping.factors import PassNumbers, factors_of, warn_of_lost
from decrescendo.clipping.inventory import Inventory, check_values
from decrescendo.clipping.memory import Peak, Sizes, is_out_of_memory, metered, release, signature, too_large
from decrescendo.clipping.mixed_rows import OWN_LOSS, mixes_rows
from decrescendo.clipping.one_example import ONE_BY_ONE, OneExamplePasses, kept_by
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.reference import is_scored
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.clipping.workspace import Workspace, kept_on
from decrescendo.errors import InvalidType, OutOfMemory, UnsupportedModel, check_instance, check_real
from decrescendo.row_independence.tracing import Memory, naming

T = TypeVar("T")
# The end of a message that refuses rows which may depend on each other; `OWN_LOSS` if `mixes_rows`.
WAY_OUT = "Or pass the examples one by one, which is slower: EngineSettings(one_example_a_pass=True)"


class Engine:
    """sum_i g_i min(1, C / |g_i|) with g_i the gradient of example i over all trainable parameters jointly.

    The forward pass records each operation that uses a trainable parameter; one backward pass gives the gradients at
    the outputs of these operations; rules turn them into norms and weighted sums. The model is not changed.

    At every pass the engine checks that examples are independent: it sees each operation, forward and backward, at
    torch's dispatcher and labels every tensor with what it may depend on. Losses and gradients that may depend on
    another example, on the place in the batch or on the number of examples are refused.

    Args:
        model: its parameters with ``requires_grad`` are trained; not changed, wrapped or hooked.
        loss: ``loss(model, batch)`` returns one loss per example, shape (batch,).
        settings: speed and memory only, and what you declare.
        seeds: gives the seed (from 0 on) of the random numbers of each pass, such as dropout's, from a stream that
            nobody can predict: with masks that are known, one more row shows in all of them. Without it, a pass that
            draws random numbers is refused. torch's global generators are restored afterwards.
        telemetry: coordinates released with the sum: an example's gradient and coordinates have joint norm at most
            ``clip_norm``.
        keep: called with a parameter's name and its sum over a micro-batch as soon as that is computed; what it
            returns is accumulated instead. For ranks that hold a part of each sum; ``None`` keeps all.
        steps: of the training, to tell whether a capture pays; ``None`` where nobody knows.

    Guarantee:
        adding or removing one example changes the sum by at most ``clip_norm`` in the joint Euclidean norm. What each
        example contributes is at most ``clip_norm`` as stored, rounding included; docs/explanation/rounding.md says
        what the rounding of the additions can do, and ``accumulate="float64"`` that it cannot.
        docs/explanation/engine.md says what is proven, and what is assumed (`assumptions`, and that tensors from before
        the pass hold no data but the batch).

    Edge cases:
        an empty batch (``None`` or no rows) gives zeros; an example whose gradient is not finite contributes
        zero and is counted; a parameter used several times, or tied, gets the sum of its gradients before
        the norm is taken; ``clip_norm=inf`` gives the plain sum, with infinite sensitivity; a batch of one row is
        passed as two of which the second counts for nothing.

    Raises:
        UnsupportedModel: examples not shown to be independent, a parameter that is used in a way that cannot be
            followed, or a loss that is not one value per example.
        OutOfMemory: one example alone does not fit into memory. More examples than fit are cut into halves until
            they do.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> loss = lambda model, batch: (model(batch) - 1).square().squeeze(1) / 2
    >>> engine = Engine(model, loss)
    >>> engine.clipped_sum(torch.tensor([[0.5], [3.0]]), 1.0).gradients["weight"]
    tensor([[-1.5000]])
    >>> engine.per_example_norms(torch.tensor([[0.5], [3.0]]))
    tensor([0.5000, 3.0000])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: EngineSettings = EngineSettings(),  # noqa: B008 (frozen)
        *,
        seeds: Callable[[], int] | None = None,
        keep: Callable[[str, Tensor], Tensor] | None = None,
        telemetry: Telemetry | None = None,
        steps: int | None = None,
    ) -> None:
        check_instance("settings", settings, EngineSettings)
        if telemetry is not None:
            check_instance("telemetry", telemetry, Telemetry)
        check_values(trainable(model).items())
        check_loss(loss)
        self._model, self._loss, self._settings, self._telemetry = model, loss, settings, telemetry
        device = next((parameter.device for parameter in trainable(model).values()), torch.device("cpu"))
        parts = 2 if settings.memory == "low" else 1
        kept = kept_on(device) // parts if settings.cache_bytes is None else settings.cache_bytes
        kept = kept if settings.memory_limit is None else min(kept, settings.memory_limit // 8)
        self._workspace = Workspace(kept, settings.wide)
        held = sum(p.numel() * (8 if settings.wide else p.element_size()) for p in trainable(model).values())
        self._sizes = Sizes(settings.microbatch_size, settings.memory_limit, held + kept, parts)
        self._checker = Checker(model, loss, settings.declared, scored=is_scored(telemetry))
        self._factors = partial(factors_of, gamma=settings.gamma, telemetry=telemetry, wide=settings.wide)
        choice = Choice(settings.capture, clock_on(device), parts=keep is not None, steps=steps)
        self._captures = Captures(self._checker, self._workspace, self._factors, choice)
        self._seeds = no_seed if seeds is None else seeds
        self._keep = keep
        given = (self._checker, self._workspace, self._captures, self._factors, self._seeds, keep)
        self._passes = BatchPasses(*given)
        alone = OneExamplePasses(model, loss, self.memory, self._seeds, self._factors, settings, telemetry)
        self._alone = alone if settings.one_example_a_pass else None
        self._peak: Peak | None = None
        # Whether the last `clipped_sum` was replayed: neither the model nor the loss ran in Python.
        self.replayed = False

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UnsupportedModel(
            "an engine must stay with its model, got a request to copy it. Create a new Engine for the copied model"
        )

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        if self._telemetry is not None:
            check_real("clip_norm with telemetry", limit)  # coordinates are in units of it: it must be finite
        held, ran, self.replayed = Inventory.of(self._model), self._checker.comparison.runs, False
        rows = 0 if batch is None else count_rows(batch)
        if rows == 0:
            wide, stored = self._settings.wide, self._keep is None
            return empty_sum(trainable_of(held), limit, self._telemetry, wide=wide, stored=stored)
        if self._alone is not None:
            sums, seen = self._alone.clipped(batch, held, limit)
            extra = self._coordinates([seen.extra_coordinates])
            return ClippedSum(kept_by(self._keep, sums), limit, seen.diagnostics, extra)
        self._captures.choice.done += 1
        gradients: dict[str, Tensor] = {}
        diagnostics, parts = Diagnostics(0, 0, 0, 0.0), list[tuple[float, ...]]()
        for sums, seen in self._in_parts(batch, held, partial(self._clipped, held=held, limit=limit)):
            self._captures.end()
            diagnostics += seen.diagnostics
            parts.append(seen.extra_coordinates)
            for name, total in sums.items():
                gradients[name] = total if name not in gradients else gradients[name].add_(total)
        self.replayed = ran == self._checker.comparison.runs
        return ClippedSum(gradients, limit, diagnostics, self._coordinates(parts))

    def _coordinates(self, parts: list[tuple[float, ...]]) -> Tensor | None:
        return torch.tensor(parts, dtype=torch.float64, device="cpu").sum(0) if self._telemetry else None

    def before_step(self, batch: Batch, clip_norm: float) -> list[Tensor]:
        """What the loss notes (`note_byproducts`) of each row. The next `clipped_sum` of the same batch and clip norm
        then has its sum from the same pass. Nothing where it would not replay one pass over the whole batch."""
        limit, held = check_clip_norm("clip_norm", clip_norm), Inventory.of(self._model)
        rows, key = count_rows(batch), signature(held, batch)
        if self._alone or len(parts_of(batch)) > 1 or rows < 2 or not self._sizes.are_one(key, rows):
            return []
        return self._passes.before_step(batch, rows, held, limit, self._sizes.most(key))

    def per_example_norms(self, batch: Batch) -> Float[Tensor, " batch"]:
        """|g_i| for each row of ``batch``. Private: a helper for tests and researchers."""
        held = Inventory.of(self._model)
        dtype = norm_accumulator(trainable_of(held))
        in_parts = self._in_parts(batch, held, lambda part, size: self._passes.norms(part, size, held))
        parts = in_parts if self._alone is None else self._alone.norms(batch, held)
        norms = [part.to(dtype) for part in parts]
        return torch.cat(norms) if norms else torch.zeros(0, dtype=dtype)

    def withhold(self, data: Iterable[Tensor | np.ndarray], others: Iterable[tuple[str, Tensor]] = ()) -> None:
        """From now on refuse passes that read these training data, except through their batch.

        ``others``: the optimiser's tensors, by name.

        Raises:
            UnsupportedModel: a parameter, a buffer or a tensor of ``others`` shares memory with the data.
        """
        self._checker.withhold(data)
        self.memory.check_apart([*Inventory.of(self._model).tensors(), *others])

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions so far, about rows within a pass or state between passes, by code; empty if all was
        checked."""
        return tuple(sorted(self._checker.memory.assumed))

    @property
    def rows_independent(self) -> bool:
        """Whether every pass so far was shown to keep rows independent, and nothing of that was assumed."""
        return are_independent(self.assumptions)

    @property
    def passes(self) -> str:
        """Whether passes are captured and replayed, or run in Python, and why: a sentence without any of the data."""
        return self._captures.choice.why if self._alone is None else ONE_BY_ONE

    @property
    def workspace(self) -> Workspace:
        """The memory for kept per-example gradients, and the choice between closed forms."""
        return self._workspace

    def checked_pass(self, batch: Batch) -> Pass:
        """One pass over ``batch``, checked and measured, with a seed of its own; raises as `check`."""
        with naming(lambda: self._way_out(batch)):
            return self._passes.checked_pass(batch, Inventory.of(self._model))

    def check(self, batch: Batch) -> None:
        """Check one pass over these rows, as every `clipped_sum` does, and keep no result. Warns of rows whose
        gradient is not finite: a training counts them as zero without a warning, as their number is private.

        Raises:
            UnsupportedModel: with the reason and the remedy.
        """
        warn_of_lost(batch, int((~torch.isfinite(self.per_example_norms(batch))).sum()))

    @property
    def memory(self) -> Memory:
        """Records of tensors and Python state that outlive a pass."""
        return self._checker.memory

    def _in_parts(self, batch: Batch, held: Inventory, work: Callable[[Batch, int], T]) -> Iterator[T]:
        """The result of ``work`` for each micro-batch of ``batch``, each with rows of one shape."""
        if isinstance(batch, OneByOne):
            raise InvalidType(f"a batch must have rows, got examples of any form. {WAY_OUT}")
        at_once = self._sizes.at_once(count_rows(batch))
        for part in parts_of(batch):
            with naming(partial(self._way_out, part)):
                yield from self._cut(part, count_rows(part), at_once, held, work)

    def _way_out(self, batch: Batch) -> str:
        return OWN_LOSS if mixes_rows(self._model, self._loss, batch) else WAY_OUT

    def _cut(
        self, batch: Batch, rows: int, at_once: int, held: Inventory, work: Callable[[Batch, int], T]
    ) -> Iterator[T]:
        """The result of ``work`` for each micro-batch of rows of one shape; where memory runs out, smaller ones are
        tried."""
        start, key = 0, signature(held, batch)
        device = next(iter(trainable_of(held).values())).device
        while start < rows:
            size = self._sizes.next(key, rows - start, at_once)
            part = batch if size == rows else slice_rows(batch, start, start + size)
            found: list[T] = []
            failure = ""
            try:
                # The first pass's extra checks run before memory is measured. Nothing of them is released: they take
                # a fixed seed, and none of the run's stream.
                seed = -1 if self._seeds is no_seed else 0
                self._checker.begin(part, size, held, seed, self._workspace)
                with metered(device) if self._sizes.measures(key, size) else nullcontext() as self._peak:
                    found.append(work(part, size))
                if self._peak is not None:
                    self._sizes.learn(key, size, self._peak.bytes)
            except Exception as error:
                if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
                    raise
                failure = too_large(error)
            finally:
                self._peak = None
            if found:
                start += size
                yield found.pop()
                continue
            # Outside of the handler: the error's traceback holds on to what the pass had allocated.
            self._captures.forget()
            if not self._workspace.shrink():
                if size == 1:
                    raise OutOfMemory(failure)
                self._sizes.failed(key, size)
            release()

    def _clipped(self, batch: Batch, rows: int, held: Inventory, limit: float) -> tuple[dict[str, Tensor], PassNumbers]:
        most = self._sizes.most(signature(held, batch))
        return self._passes.clipped(batch, rows, held, limit, most, metered=self._peak is not None)
