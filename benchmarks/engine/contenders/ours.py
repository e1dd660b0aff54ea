"""decrescendo: its engine alone, as all others are measured, and the whole private step with noise."""

from collections.abc import Mapping

from torch import Tensor

import decrescendo as dc
from benchmarks.engine.contenders.base import Refused, Setting, sgd
from decrescendo.base.rng import SecureStream
from decrescendo.errors import UnsupportedModel
from decrescendo.optim import apply
from decrescendo.optim.noise import privatise


class Ours:
    """`clipping.Engine`, then SGD on the sum over the batch size. No noise, like the others."""

    rewritten = ""
    settings = dc.clipping.EngineSettings()

    def __init__(self, setting: Setting) -> None:
        workload = setting.workload
        self._model = workload.model(setting.device)
        self._batch = workload.batch(setting.device)
        self._rows, self._clip_norm = workload.rows, workload.clip_norm
        self._engine = dc.clipping.Engine(self._model, workload.loss, self.settings)
        self._optimizer = sgd(self._model)

    def step(self) -> None:
        gradients = self.clipped_sum()
        for name, parameter in self._model.named_parameters():
            parameter.grad = gradients[name].div_(self._rows)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def clipped_sum(self) -> Mapping[str, Tensor]:
        return self._clipped().gradients

    def _clipped(self) -> dc.clipping.ClippedSum:
        try:
            return self._engine.clipped_sum(self._batch, self._clip_norm)
        except UnsupportedModel as error:
            raise Refused(str(error)) from None


class OursCaptured(Ours):
    """The same with captured passes."""

    settings = dc.clipping.EngineSettings(capture=True)


class OursWithNoise(Ours):
    """The step that a user makes: clipped sum, `privatise` with noise multiplier 1, `apply`."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._sampling = dc.PoissonSampling(100 * self._rows, self._rows)
        self._stream = SecureStream.fresh()

    def step(self) -> None:
        noisy = privatise(self._clipped(), 1.0, self._sampling, self._stream)
        apply(noisy, self._model, self._optimizer)


class OursCapturedWithNoise(OursWithNoise, OursCaptured):
    """That step with captured passes."""


class OursByHalves(OursCapturedWithNoise):
    """That step in two micro-batches, each with half of the room for what is kept: less memory."""

    def __init__(self, setting: Setting) -> None:
        self.settings = dc.clipping.EngineSettings(
            capture=True, microbatch_size=-(-setting.workload.rows // 2), cache_bytes=2**26
        )
        super().__init__(setting)
