"""The clipped sum, one example at a time: documents what the engine computes, and is its reference in
tests."""

import math
from collections.abc import Iterator
from typing import cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from decrescendo.base.batches import examples_of
from decrescendo.clipping.clipped import (
    Batch,
    ClippedSum,
    Diagnostics,
    Loss,
    accumulator,
    check_clip_norm,
    check_loss,
    clip_factors,
    count_clipped,
    empty_sum,
    norm_accumulator,
    split,
    trainable,
)
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import UnsupportedModel


class Reference:
    """sum_i g_i min(1, C / |g_i|) by plain autograd on one example after another. Slow, and obvious.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        loss: ``loss(model, batch)`` returns one loss per example, shape (batch,). It is given one example, whose loss
            may be a number, too.
        gamma: as `EngineSettings.gamma`.
        telemetry: coordinates that are summed with the gradients.

    Edge cases:
        an empty batch (``None`` or no rows) gives zeros; a gradient that is not finite contributes zero; each
        example is seen alone, so a model that mixes rows (BatchNorm) is not refused here but computes
        something else than it would on the batch: use the engine, which refuses.

    Raises:
        UnsupportedModel: the loss is not one value per example.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> loss = lambda model, batch: (model(batch) - 1).square().squeeze(1) / 2
    >>> Reference(model, loss).clipped_sum(torch.tensor([[0.5], [3.0]]), 1.0).gradients["weight"]
    tensor([[-1.5000]])
    """

    def __init__(
        self, model: nn.Module, loss: Loss, gamma: float | None = None, telemetry: Telemetry | None = None
    ) -> None:
        trainable(model)
        self._gamma, self._telemetry = gamma, telemetry
        self._model = model
        check_loss(loss)
        self._loss = loss

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        parameters = trainable(self._model)
        told = self._telemetry
        total = empty_sum(parameters, limit, told)
        if batch is None:
            return total
        gradients, extra = dict(total.gradients), total.extra_coordinates
        diagnostics, whole = total.diagnostics, limit
        limit = limit if told is None else told.gradient_limit(limit)
        for value, score, example in self._examples(batch, parameters):
            norm = _norm(example)
            narrow = any(gradient.dtype != torch.float64 for gradient in example.values())
            factor = clip_factors(norm, limit, torch.float32 if narrow else torch.float64, gamma=self._gamma)
            told_of = math.inf, math.nan, math.nan
            if bool(torch.isfinite(norm)):
                for name, gradient in example.items():
                    gradients[name] += gradient * factor.to(gradient.dtype).reshape(())
                told_of = float(factor) * float(norm), float(value), score
            if told is not None and extra is not None:
                extra += extra_one(told, *told_of, whole)
            diagnostics += Diagnostics(
                examples=1,
                nonfinite=int(not torch.isfinite(norm)),
                clipped=int(count_clipped(norm, limit)),
                loss_sum=float(value) if torch.isfinite(value) else 0.0,
            )
        return ClippedSum(gradients, whole, diagnostics, extra)

    def per_example_norms(self, batch: Batch) -> Float[Tensor, " batch"]:
        """|g_i| for each row of ``batch``. Private: a helper for tests and researchers."""
        parameters = trainable(self._model)
        dtype = norm_accumulator(parameters)
        norms = [_norm(example).to(dtype) for _, _, example in self._examples(batch, parameters)]
        return torch.cat(norms) if norms else torch.zeros(0, dtype=dtype)

    def _examples(
        self, batch: Batch, parameters: dict[str, nn.Parameter]
    ) -> Iterator[tuple[Tensor, float, dict[str, Tensor]]]:
        for one in examples_of(batch):
            with torch.enable_grad():
                losses, scores = check_losses(
                    in_a_row(self._loss(self._model, one)), 1, scored=is_scored(self._telemetry)
                )
                found = torch.autograd.grad(losses.sum(), list(parameters.values()), materialize_grads=True)
            example = {
                name: gradient.to(accumulator(gradient.dtype)) for name, gradient in zip(parameters, found, strict=True)
            }
            yield losses.detach()[0], 0.0 if scores is None else float(scores[0]), example


def _norm(example: dict[str, Tensor]) -> Float[Tensor, " 1"]:
    """The joint norm over all parameters, as a batch of one: squares in the gradient's dtype, their sum in
    float64."""
    squares = [gradient.square().cpu().sum(dtype=torch.float64) for gradient in example.values()]
    return torch.stack(squares).sum().sqrt().reshape(1)


def extra_one(
    telemetry: Telemetry, length: float, loss: float, score: float, clip_norm: float
) -> Float64[Tensor, " size"]:
    """What one example adds to the telemetry coordinates, in plain Python; see `Telemetry`."""
    norm_unit, unit = telemetry.units(clip_norm)
    left = telemetry.norms * (1 - min(length / telemetry.gradient_limit(clip_norm), 1.0))
    found = [norm_unit * min(max(left - j, 0.0), 1.0) for j in range(telemetry.norms)]
    low, high = telemetry.loss_range
    values = [(1.0 if math.isnan(loss) else (loss - low) / (high - low))] * telemetry.loss
    values += [0.0 if math.isnan(score) else score] * telemetry.accuracy
    found += [unit * (min(max(value, 0.0), 1.0) - 0.5) for value in values]
    return torch.tensor(found, dtype=torch.float64, device="cpu")


def is_scored(telemetry: Telemetry | None) -> bool:
    """Whether the loss must return a score per example."""
    return telemetry is not None and telemetry.accuracy


def in_a_row(returned: object) -> object:
    """The result of a loss for one example, with scalars as rows of one."""
    if isinstance(returned, tuple):
        return tuple(map(in_a_row, cast("tuple[object, ...]", returned)))
    return returned[None] if isinstance(returned, Tensor) and returned.dim() == 0 else returned


NO_GRADIENT = (
    "the losses must depend on a trainable parameter, got losses without a gradient. "
    "Is there a no_grad() or a detach() round the model?"
)


def check_losses(
    returned: object, rows: int, *, scored: bool = False, constant: bool = False
) -> tuple[Float[Tensor, " batch"], Tensor | None]:
    """One floating-point loss per example, and with ``scored`` one score per example, or an error that says what to
    change. ``constant``: also losses without a gradient."""
    losses, scores = split(returned)
    if not isinstance(losses, Tensor):
        raise UnsupportedModel(f"loss(model, batch) must return a tensor of losses, got {type(losses).__name__}")
    if losses.dim() != 1 or losses.shape[0] != rows:
        raise UnsupportedModel(
            f"loss(model, batch) must return one loss per example, shape ({rows},), got "
            f"{tuple(losses.shape)}. "
            "Use reduction='none', and average over other dimensions than the first yourself"
        )
    if not losses.is_floating_point():
        raise UnsupportedModel(f"losses must be floating point, got {losses.dtype}")
    if not losses.requires_grad and not constant:
        raise UnsupportedModel(NO_GRADIENT)
    if not scored:
        return losses, None
    if not isinstance(scores, Tensor) or scores.shape != losses.shape or scores.is_complex():
        got = "losses alone" if scores is None else tuple(getattr(scores, "shape", ())) or type(scores).__name__
        raise UnsupportedModel(
            "a loss for Telemetry(accuracy=True) must return a pair of tensors, one loss and one score in [0, 1] an "
            f"example, each of shape ({rows},), got {got}. For classes: return losses, outputs.argmax(1) == targets"
        )
    return losses, scores.detach()
