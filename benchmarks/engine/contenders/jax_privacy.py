"""jax-privacy: its ``clipped_grad`` on the same model written in JAX, compiled whole, compile time not counted."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.engine.contenders.base import LEARNING_RATE, Refused, Setting, require

# XLA's scatter on a CPU slows down with the square of the batch here: minutes a step for the whole of it.
_MICROBATCH = {"embedding-mlp": 8}


class JaxPrivacy:
    """One compiled function from weights and batch to new weights."""

    rewritten: str
    passes = ""

    def __init__(self, setting: Setting) -> None:
        jax = require("jax")
        clipped_grad = require("jax_privacy.clipping").clipped_grad
        if setting.device.type == "cuda" and jax.default_backend() != "gpu":
            raise Refused("the installed jax has no CUDA")
        workload = setting.workload
        loss = _loss(workload.name)
        size = _MICROBATCH.get(workload.name)
        self.rewritten = "the model in JAX" + (f", its micro-batches of {size}" if size else "")
        weights = {
            name: jax.numpy.asarray(p.detach().cpu().numpy())
            for name, p in workload.model(setting.device).named_parameters()
        }
        self._batch = tuple(jax.numpy.asarray(part.cpu().numpy()) for part in workload.batch(setting.device))
        every = tuple(range(1, len(self._batch) + 1))
        mean = clipped_grad(
            loss,
            l2_clip_norm=workload.clip_norm,
            batch_argnums=every,
            normalize_by=float(workload.rows),
            microbatch_size=size,
        )

        def step(weights: Any, *batch: Any) -> Any:
            return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, mean(weights, *batch))

        self._jax, self._mean, self._rows = jax, mean, workload.rows
        self._step = jax.jit(step, donate_argnums=0).lower(weights, *self._batch).compile()
        self._weights = weights

    def step(self) -> None:
        self._weights = self._jax.block_until_ready(self._step(self._weights, *self._batch))

    def clipped_sum(self) -> Mapping[str, Any]:
        means = self._jax.jit(self._mean)(self._weights, *self._batch)
        return {name: self._rows * value for name, value in means.items()}


def _loss(workload: str) -> Callable[..., Any]:
    """Cross-entropy over the classes, or square error, its mean over all places: for one example the workload's."""
    import jax

    from benchmarks.engine.contenders.jax_models import MODELS

    if workload not in MODELS:
        raise Refused("the model is not written in JAX here")
    model = MODELS[workload]

    def loss(weights: Any, *batch: Any) -> Any:
        *inputs, label = batch
        if workload == "u-net":
            return jax.numpy.square(model(weights, *inputs) - label).mean()
        scores = jax.nn.log_softmax(model(weights, *inputs))
        return -jax.numpy.take_along_axis(scores, label[..., None], -1).mean()

    return loss
