"""The clipped sum from one forward and one backward pass, on an unmodified model."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.clipping.batches import count_rows, slice_rows
from decrescendo.clipping.clipped import (
    Batch,
    ClippedSum,
    Diagnostics,
    Loss,
    check_clip_norm,
    check_loss,
    count_clipped,
    empty_sum,
    norm_accumulator,
    trainable,
    trainable_of,
)
from decrescendo.clipping.inventory import Inventory, Mode
from decrescendo.clipping.means import Choice, Means
from decrescendo.clipping.memory import (
    Peak,
    RandomStates,
    Sizes,
    is_out_of_memory,
    metered,
    release,
    signature,
)
from decrescendo.clipping.passes import Form, Pass, run
from decrescendo.clipping.precision import full_precision
from decrescendo.clipping.recording import Decision
from decrescendo.clipping.selfcheck import self_check
from decrescendo.clipping.weighing import joint_norms, loss_sum, weights_of
from decrescendo.errors import InvalidValue, OutOfMemory, check_instance, check_integer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How fast and in how much memory; no setting changes a result by more than rounding.

    Args:
        microbatch_size: at most this many examples at once; ``None`` for the whole batch.
        self_check: look, on the first batch and on every new form of the forward pass, whether an example's
            loss depends on other examples. Without it many models that mix their batch are not noticed: turn
            it off only for a model that was checked. (Where the examples are in each operation's output, and
            that sums are autograd's, is looked at in any case.)
        kept_bytes: per-example gradients that a norm has needed are kept for the sum up to this size, of all
            operations together; what does not fit is computed from inputs and output gradients again.
        choice: how the fastest of several forms of one gradient is found: ``"measured"`` on first use (the
            last digits then depend on the machine), or ``"counted"`` in operations (then on whether there was a C
            compiler when this package was installed).
        memory_limit: bytes that a `clipped_sum` may take at its peak beyond the model and the batch. The
            engine measures what the first micro-batches take and cuts batches so that it is kept;
            ``None`` for no limit. The self-check of the first batch looks at up to 13 rows at once,
            whatever the limit.
        precise: after the backward pass everything is measured and summed in float64, and the sum is stored
            so. Then the whole sum is proven to move by at most C, not each example's part of it alone: see
            docs/rounding.md. Slower; the noise hides the difference from all but an adversary who picks the
            data for it.

    >>> EngineSettings(microbatch_size=64).kept_bytes
    134217728
    """

    microbatch_size: int | None = None
    self_check: bool = True
    kept_bytes: int = 2**27
    choice: Choice = "measured"
    memory_limit: int | None = None
    precise: bool = False

    def __post_init__(self) -> None:
        if self.microbatch_size is not None:
            check_integer("microbatch_size", self.microbatch_size, at_least=1)
        check_integer("kept_bytes", self.kept_bytes, at_least=0)
        if self.choice not in ("measured", "counted"):
            raise InvalidValue(f"choice must be 'measured' or 'counted', got {self.choice!r}")
        if self.memory_limit is not None:
            check_integer("memory_limit", self.memory_limit, at_least=1)


class Engine:
    """sum_i g_i min(1, C / |g_i|) with g_i the gradient of example i over all trainable parameters jointly.

    Each use of a trainable parameter is recorded as its operation in the forward pass; one backward pass
    brings the gradients of their outputs; rules turn these into norms and weighted sums. The model is left
    as it was.

    Args:
        model: its parameters with ``requires_grad`` are trained; not changed, wrapped or hooked.
        loss: ``loss(model, batch)`` returns one loss an example, shape (batch,).
        settings: speed and memory only.

    Guarantee:
        adding or removing one example changes the sum by at most ``clip_norm`` in the joint Euclidean norm,
        for models in which no example's loss depends on another example. The self-check refuses those in
        which it does. What each example contributes is at most ``clip_norm`` as stored, rounding included;
        docs/rounding.md says what the rounding of the additions can do, and ``precise`` that it cannot.

    Edge cases:
        an empty batch (``None`` or no rows) gives zeros; an example whose gradient is not finite contributes
        zero and is counted; a parameter used several times, or tied, gets the sum of its gradients before
        the norm is taken; ``clip_norm=inf`` gives the plain sum, with infinite sensitivity.

    Raises:
        UnsupportedModel: examples see each other, a parameter is used in a way that cannot be followed, or
            the loss is not one value an example.
        OutOfMemory: one example alone does not fit into memory. More examples than fit are cut into halves,
            with the random numbers they had, until they do.

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

    def __init__(self, model: nn.Module, loss: Loss, settings: EngineSettings = EngineSettings()) -> None:
        check_instance("settings", settings, EngineSettings)
        trainable(model)
        self._model = model
        check_loss(loss)
        self._loss = loss
        self._settings = settings
        kept = settings.kept_bytes
        if settings.memory_limit is not None:
            kept = min(kept, settings.memory_limit // 8)
        self._means = Means(kept, settings.choice, settings.precise)
        held = sum(
            p.numel() * (8 if settings.precise else p.element_size()) for p in trainable(model).values()
        )
        self._sizes = Sizes(settings.microbatch_size, settings.memory_limit, held + kept)
        # What the self-check has seen and accepted: the operations of a forward pass, in order.
        # Passes over one example are apart: nothing about mixing was learned from them.
        # With the uses of which it has not seen enough gradient.
        self._accepted: dict[tuple[bool, Mode, Form], frozenset[int]] = {}
        self._hints: tuple[Decision, ...] = ()
        self._peak: Peak | None = None

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        held = Inventory.of(self._model)
        parameters = trainable_of(held)
        rows = 0 if batch is None else count_rows(batch)
        if rows == 0:
            return empty_sum(parameters, limit, precise=self._settings.precise)
        gradients: dict[str, Tensor] = {}
        diagnostics = Diagnostics(0, 0, 0, 0.0)
        for sums, seen in self._in_parts(
            batch, rows, held, lambda part, size: self._clipped(part, size, limit)
        ):
            diagnostics += seen
            for name, total in sums.items():
                gradients[name] = total if name not in gradients else gradients[name].add_(total)
        return ClippedSum(gradients, limit, diagnostics)

    def per_example_norms(self, batch: Batch) -> Float[Tensor, " batch"]:
        """|g_i| for each row of ``batch``. Private: a helper for tests and researchers."""
        held = Inventory.of(self._model)
        rows = count_rows(batch)
        dtype = norm_accumulator(trainable_of(held))
        parts = self._in_parts(batch, rows, held, lambda part, size: self._norms(part, size).to(dtype))
        norms = list(parts)
        return torch.cat(norms) if norms else torch.zeros(0, dtype=dtype)

    @property
    def hints(self) -> tuple[Decision, ...]:
        """Where the examples are in each operation, as far as the self-check has found out."""
        return self._hints

    @property
    def means(self) -> Means:
        """Memory for kept gradients, and the choice of methods."""
        return self._means

    def learn_form(self, batch: Batch, rows: int) -> Form:
        """The operations of a pass over ``batch``, after the self-check has accepted them."""
        return self._pass(batch, rows).form

    @property
    def undecided(self) -> bool:
        """Whether some operation of an accepted form has not shown enough gradient to know where the examples are."""
        mode = self._mode()
        return any(lacks for (_, known, _), lacks in self._accepted.items() if known == mode)

    def has_decided(self, form: Form, rows: int) -> bool:
        """Whether the self-check has accepted this form in this mode, and every operation showed enough gradient."""
        lacks = self._accepted.get((rows > 1, self._mode(), form))
        return lacks is not None and not lacks

    def check(self, batch: Batch) -> None:
        """Check the model and the loss on these rows, at least two, as on the first batch.

        Raises:
            UnsupportedModel: with the reason and the remedy.
            InvalidValue: fewer than two rows.
        """
        rows = count_rows(batch)
        if rows < 2:
            raise InvalidValue(
                f"a check must have at least two rows to see them mix, got {rows}. Give it more"
            )
        self_check(self._model, self._loss, batch, self._hints, self._means)

    def _in_parts(
        self, batch: Batch, rows: int, held: Inventory, work: Callable[[Batch, int], T]
    ) -> Iterator[T]:
        """``work`` on one micro-batch after another, on smaller ones where memory runs out."""
        start, key = 0, signature(held, batch)
        device = next(iter(trainable_of(held).values())).device
        while start < rows:
            size = self._sizes.next(key, rows - start)
            part = batch if size == rows else slice_rows(batch, start, start + size)
            states = RandomStates.of(held)
            found: list[T] = []
            failure = ""
            try:
                if self._sizes.measures(key, size):
                    with metered(device) as self._peak:
                        found.append(work(part, size))
                    self._sizes.learn(key, size, self._peak.bytes)
                else:
                    found.append(work(part, size))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = (str(error).strip() or type(error).__name__).splitlines()[0]
            finally:
                self._peak = None
            if found:
                start += size
                yield found.pop()
                continue
            # Outside of the handler: the error's traceback holds on to what the pass had allocated.
            if size == 1:
                raise OutOfMemory(
                    f"one example alone must fit into memory, got: {failure}. "
                    "Make the model or the example smaller, use checkpointing, or lower kept_bytes"
                )
            release()
            self._sizes.failed(key, size)
            states.restore()

    def _norms(self, batch: Batch, rows: int) -> Float[Tensor, " batch"]:
        done = self._pass(batch, rows)
        with full_precision():
            return joint_norms(done)

    def _clipped(self, batch: Batch, rows: int, limit: float) -> tuple[dict[str, Tensor], Diagnostics]:
        done = self._pass(batch, rows)
        with full_precision():
            weights = weights_of(done, limit)
            measured = done.measured
            if self._peak is not None or not bool(weights.counted.all()):
                # (What is measured is the most that memory can be needed, so that sizes do not depend on values.)
                # 0 times infinity is not 0: what these examples left behind is cleared, not weighted away.
                measured = measured.without(~weights.counted)
            seen = Diagnostics(
                examples=rows,
                nonfinite=rows - int(weights.counted.sum()),
                clipped=count_clipped(weights.norms, limit),
                loss_sum=float(loss_sum(done.losses)),
            )
            return measured.weighted_sums(weights.factors), seen

    def _pass(self, batch: Batch, rows: int) -> Pass:
        """One recorded pass, of a form that the self-check has accepted."""
        held = Inventory.of(self._model)
        many, mode = rows > 1, held.mode
        if not any(key[:2] == (many, mode) for key in self._accepted):
            self._accept(slice_rows(batch, 0, check_rows(rows)))
        # (The form is not known before the pass: what any accepted form lacks is watched.)
        watched = frozenset[int]().union(
            *(lacks for key, lacks in self._accepted.items() if key[:2] == (many, mode))
        )
        states = RandomStates.of(held)
        done = self._run(batch, rows, watched)
        lacks = self._accepted.get((many, mode, done.form))
        if lacks is None or lacks & done.awake:
            # With the random numbers of the pass: what the check sees is what the pass computes.
            states.restore()
            self._accept(batch)
            return self._run(batch, rows, frozenset())
        return done

    def _mode(self) -> Mode:
        return Inventory.of(self._model).mode

    def _run(self, batch: Batch, rows: int, watched: frozenset[int]) -> Pass:
        return run(self._model, self._loss, batch, rows, self._hints, self._means, watched)

    def _accept(self, batch: Batch) -> Pass | None:
        with nullcontext() if self._peak is None else self._peak.paused():
            accepted = self_check(
                self._model,
                self._loss,
                batch,
                self._hints,
                self._means.counted(),
                alone=self._settings.self_check,
            )
        if accepted is not None:
            many = accepted.measured.batch > 1
            if many:
                self._hints = accepted.decisions
            self._accepted[many, self._mode(), accepted.form] = accepted.unseen
        return accepted


# Small primes: sizes of a model are rarely multiples of one, so the examples are found without guessing.
_CHECK_ROWS = (13, 11, 7, 5, 3)


def check_rows(rows: int) -> int:
    """How many of the first batch's rows the self-check looks at: few enough to cost less than the step.

    >>> [check_rows(rows) for rows in (250, 16, 8, 2)]
    [13, 3, 3, 2]
    """
    return next((size for size in _CHECK_ROWS if 5 * size <= rows), min(rows, _CHECK_ROWS[-1]))
