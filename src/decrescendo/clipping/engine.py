"""The clipped sum from one forward and one backward pass, on an unmodified model."""

from dataclasses import dataclass

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
    clip_factors,
    count_clipped,
    empty_sum,
    norm_accumulator,
    trainable,
)
from decrescendo.clipping.means import Choice, Means
from decrescendo.clipping.passes import Form, Pass, run
from decrescendo.clipping.recording import Decision
from decrescendo.clipping.selfcheck import self_check
from decrescendo.errors import InvalidValue, check_instance, check_integer


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How fast and in how much memory; no setting changes a result by more than rounding.

    Args:
        microbatch_size: at most this many examples at once; ``None`` for the whole batch.
        self_check: check the model and loss on the first batch (and on every new form of the forward pass).
            Without it batch-mixing models are not noticed: turn it off only for a model that was checked.
        kept_bytes: per-example gradients that a norm has needed are kept for the sum up to this size, of all
            operations together; what does not fit is computed from inputs and output gradients again.
        choice: how the fastest of several forms of one gradient is found: ``"measured"`` on first use (the
            last digits then depend on the machine), or ``"counted"`` in operations.

    >>> EngineSettings(microbatch_size=64)
    EngineSettings(microbatch_size=64, self_check=True, kept_bytes=16777216, choice='measured')
    """

    microbatch_size: int | None = None
    self_check: bool = True
    kept_bytes: int = 2**24
    choice: Choice = "measured"

    def __post_init__(self) -> None:
        if self.microbatch_size is not None:
            check_integer("microbatch_size", self.microbatch_size, at_least=1)
        check_integer("kept_bytes", self.kept_bytes, at_least=0)
        if self.choice not in ("measured", "counted"):
            raise InvalidValue(f"choice must be 'measured' or 'counted', got {self.choice!r}")


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
        up to rounding, for models in which no example's loss depends on another example. The self-check
        refuses those in which it does.

    Edge cases:
        an empty batch (``None`` or no rows) gives zeros; an example whose gradient is not finite contributes
        zero and is counted; a parameter used several times, or tied, gets the sum of its gradients before
        the norm is taken; ``clip_norm=inf`` gives the plain sum, with infinite sensitivity.

    Raises:
        UnsupportedModel: examples see each other, a parameter is used in a way that cannot be followed, or
            the loss is not one value an example.

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
        self._means = Means(settings.kept_bytes, settings.choice)
        # What the self-check has seen and accepted: the operations of a forward pass, in order.
        # Passes over one example are apart: nothing about mixing was learned from them.
        self._accepted: set[tuple[bool, Form]] = set()
        self._hints: tuple[Decision, ...] = ()

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        parameters = trainable(self._model)
        rows = 0 if batch is None else count_rows(batch)
        if rows == 0:
            return empty_sum(parameters, limit)
        size = rows if self._settings.microbatch_size is None else self._settings.microbatch_size
        gradients: dict[str, Tensor] = {}
        diagnostics = Diagnostics(0, 0, 0, 0.0)
        for start in range(0, rows, size):
            part = batch if size >= rows else slice_rows(batch, start, min(start + size, rows))
            sums, seen = self._clipped(part, min(size, rows - start), limit)
            diagnostics += seen
            for name, total in sums.items():
                gradients[name] = total if name not in gradients else gradients[name].add_(total)
        return ClippedSum(gradients, limit, diagnostics)

    def per_example_norms(self, batch: Batch) -> Float[Tensor, " batch"]:
        """|g_i| for each row of ``batch``. Private: a helper for tests and researchers."""
        parameters = trainable(self._model)
        rows = count_rows(batch)
        size = rows if self._settings.microbatch_size is None else self._settings.microbatch_size
        norms = [
            _joint(self._pass(slice_rows(batch, start, min(start + size, rows)), min(size, rows - start)))
            for start in range(0, rows, max(size, 1))
        ]
        return torch.cat(norms) if norms else torch.zeros(0, dtype=norm_accumulator(parameters))

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

    def _clipped(self, batch: Batch, rows: int, limit: float) -> tuple[dict[str, Tensor], Diagnostics]:
        done = self._pass(batch, rows)
        norms = _joint(done)
        factors = clip_factors(norms, limit)
        finite = torch.isfinite(norms)
        measured = done.measured
        if not bool(finite.all()):
            # 0 times infinity is not 0: what these examples left behind is cleared, not weighted away.
            measured = measured.without(~finite)
        losses = torch.where(torch.isfinite(done.losses), done.losses, torch.zeros_like(done.losses))
        seen = Diagnostics(
            examples=rows,
            nonfinite=rows - int(finite.sum()),
            clipped=count_clipped(norms, limit),
            loss_sum=float(losses.sum(dtype=torch.float64))
            if losses.device.type == "cpu"
            else float(losses.sum()),
        )
        return measured.weighted_sums(factors), seen

    def _pass(self, batch: Batch, rows: int) -> Pass:
        """One recorded pass, of a form that the self-check has accepted."""
        checked, many = self._settings.self_check, rows > 1
        if checked and not any(known == many for known, _ in self._accepted):
            self._accept(slice_rows(batch, 0, min(rows, CHECK_ROWS)))
        done = run(self._model, self._loss, batch, rows, self._hints, self._means)
        if checked and (many, done.form) not in self._accepted:
            accepted = self._accept(batch)
            if accepted is not None and accepted.form != done.form:
                # The check found other places for the examples than this pass had assumed.
                return run(self._model, self._loss, batch, rows, self._hints, self._means)
        return done

    def _accept(self, batch: Batch) -> Pass | None:
        accepted = self_check(self._model, self._loss, batch, self._hints, self._means)
        if accepted is not None:
            many = accepted.measured.batch > 1
            if many:
                self._hints = accepted.decisions
            self._accepted.add((many, accepted.form))
        return accepted


# A small prime: sizes of a model are rarely multiples of it, so the examples are found without guessing.
CHECK_ROWS = 13


def _joint(done: Pass) -> Float[Tensor, " batch"]:
    """The norm over all parameters."""
    squares = list(done.squares().values())
    total = squares[0].clone()
    for square in squares[1:]:
        total += square.to(total.device)
    return total.sqrt()
