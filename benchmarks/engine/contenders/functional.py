"""What torch.func gives: ``vmap(grad(..))`` by hand, and opake, which is built on it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.engine.contenders.base import Setting, require, sgd

Gradients = Mapping[str, Tensor]


class _Functional:
    """The model as a function of its parameters, and the loss of one example."""

    rewritten = passes = ""

    def __init__(self, setting: Setting) -> None:
        workload = setting.workload
        self._loss, self._rows, self._clip_norm = workload.loss, workload.rows, workload.clip_norm
        self._model = workload.model(setting.device)
        self._batch = workload.batch(setting.device)
        self._optimizer = sgd(self._model)

    def step(self) -> None:
        for parameter, gradient in zip(self._model.parameters(), self._mean().values(), strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def clipped_sum(self) -> Gradients:
        return {name: gradient * self._rows for name, gradient in self._mean().items()}

    def _mean(self) -> Gradients:
        """The clipped sum over the batch size, in the order of the parameters."""
        raise NotImplementedError

    def _parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def _one(self, parameters: Gradients, *example: Tensor) -> Tensor:
        def call(*inputs: Tensor) -> Any:
            return functional_call(self._model, dict(parameters), inputs)

        return self._loss(call, tuple(part.unsqueeze(0) for part in example))[0]


class ByHand(_Functional):
    """Per-example gradients by vmap, one norm, one product: what the tutorials of torch.func lead to."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._gradients: Callable[..., Gradients] = vmap(grad(self._one), in_dims=(None, *[0] * len(self._batch)))

    def _mean(self) -> Gradients:
        found = self._gradients(self._parameters(), *self._batch)
        squares = [gradient.flatten(1).square().sum(1) for gradient in found.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = (self._clip_norm / norms).clamp(max=1.0) / self._rows
        return {name: torch.tensordot(factors, gradient, 1) for name, gradient in found.items()}


class Opake(_Functional):
    """``opake.dpsgd.clipping.clipped_grad``."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        clipped_grad = require("opake.dpsgd.clipping").clipped_grad
        self._clipped, self._state = clipped_grad(
            self._one,
            clipping_norm=self._clip_norm,
            batch_argnums=tuple(range(1, len(self._batch) + 1)),
            normalize_by=float(self._rows),
        )

    def _mean(self) -> Gradients:
        result, self._state = self._clipped(self._parameters(), *self._batch, state=self._state)
        return result.pytree
