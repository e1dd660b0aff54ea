"""The clipped sum, one example at a time: the documentation of what the engine computes, and its oracle."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
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
    trainable,
    within_norm,
)
from decrescendo.errors import UnsupportedModel


class Reference:
    """sum_i g_i min(1, C / |g_i|) by plain autograd on one example after another. Slow, and obvious.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        loss: ``loss(model, batch)`` returns one loss an example, shape (batch,). It is given one example, whose loss
            may be a number, too.
        gamma: as `EngineSettings.gamma`.

    Edge cases:
        an empty batch (``None`` or no rows) gives zeros; a gradient that is not finite contributes zero; each
        example is seen alone, so a model that mixes rows (BatchNorm) is not refused here but computes
        something else than it would on the batch: use the engine, which refuses.

    Raises:
        UnsupportedModel: the loss is not one value an example.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> loss = lambda model, batch: (model(batch) - 1).square().squeeze(1) / 2
    >>> Reference(model, loss).clipped_sum(torch.tensor([[0.5], [3.0]]), 1.0).gradients["weight"]
    tensor([[-1.5000]])
    """

    def __init__(self, model: nn.Module, loss: Loss, gamma: float | None = None) -> None:
        trainable(model)
        self._gamma = gamma
        self._model = model
        check_loss(loss)
        self._loss = loss

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        """The clipped sum over ``batch``; see the class."""
        limit = check_clip_norm("clip_norm", clip_norm)
        parameters = trainable(self._model)
        total = empty_sum(parameters, limit)
        if batch is None:
            return total
        gradients = dict(total.gradients)
        diagnostics = total.diagnostics
        for value, example in self._examples(batch, parameters):
            norm = _norm(example)
            narrow = any(gradient.dtype != torch.float64 for gradient in example.values())
            factor = clip_factors(norm, limit, torch.float32 if narrow else torch.float64, gamma=self._gamma)
            if bool(torch.isfinite(norm)):
                for name, gradient in example.items():
                    gradients[name] += gradient * factor.to(gradient.dtype).reshape(())
            diagnostics += Diagnostics(
                examples=1,
                nonfinite=int(not torch.isfinite(norm)),
                clipped=int(count_clipped(norm, limit)),
                loss_sum=float(value) if torch.isfinite(value) else 0.0,
                within=float(within_norm(norm, limit)),
            )
        return ClippedSum(gradients, limit, diagnostics)

    def per_example_norms(self, batch: Batch) -> Float[Tensor, " batch"]:
        """|g_i| for each row of ``batch``. Private: a helper for tests and researchers."""
        parameters = trainable(self._model)
        dtype = norm_accumulator(parameters)
        norms = [_norm(example).to(dtype) for _, example in self._examples(batch, parameters)]
        return torch.cat(norms) if norms else torch.zeros(0, dtype=dtype)

    def _examples(
        self, batch: Batch, parameters: dict[str, nn.Parameter]
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for one in examples_of(batch):
            with torch.enable_grad():
                losses = check_losses(in_a_row(self._loss(self._model, one)), 1)
                found = torch.autograd.grad(losses.sum(), list(parameters.values()), materialize_grads=True)
            example = {
                name: gradient.to(accumulator(gradient.dtype))
                for name, gradient in zip(parameters, found, strict=True)
            }
            yield losses.detach()[0], example


def _norm(example: dict[str, Tensor]) -> Float[Tensor, " 1"]:
    """The joint norm over all parameters, as a batch of one: squares as they are stored, their sum in float64."""
    squares = [gradient.square().cpu().sum(dtype=torch.float64) for gradient in example.values()]
    return torch.stack(squares).sum().sqrt().reshape(1)


def in_a_row(losses: object) -> object:
    """The loss of one example in a row of one; it may have come as a number without dimensions."""
    return losses[None] if isinstance(losses, Tensor) and losses.dim() == 0 else losses


def check_losses(losses: object, rows: int) -> Float[Tensor, " batch"]:
    """``losses`` as one floating-point loss an example, or an error that says what to change."""
    found = check_form(losses, rows)
    if not found.requires_grad:
        raise UnsupportedModel(NO_GRADIENT)
    return found


NO_GRADIENT = (
    "the losses must depend on a trainable parameter, got losses without a gradient. "
    "Is there a no_grad() or a detach() round the model?"
)


def check_form(losses: object, rows: int) -> Float[Tensor, " batch"]:
    """The same, whether or not they have a gradient."""
    if not isinstance(losses, Tensor):
        raise UnsupportedModel(
            f"loss(model, batch) must return a tensor of losses, got {type(losses).__name__}"
        )
    if losses.dim() != 1 or losses.shape[0] != rows:
        raise UnsupportedModel(
            f"loss(model, batch) must return one loss an example, shape ({rows},), got "
            f"{tuple(losses.shape)}. "
            "Use reduction='none', and average over other dimensions than the first yourself"
        )
    if not losses.is_floating_point():
        raise UnsupportedModel(f"losses must be floating point, got {losses.dtype}")
    return losses
