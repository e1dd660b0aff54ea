"""decrescendo: the private step with secure noise, as people get it and by other settings; and the engine alone."""

from collections.abc import Mapping

from torch import Tensor

import decrescendo as dc
from benchmarks.engine.contenders.base import Refused, Setting, sgd
from decrescendo.base.rng import SecureStream
from decrescendo.errors import UnsupportedModel
from decrescendo.optim import apply
from decrescendo.optim.noise import privatise

_IN_PYTHON = dc.clipping.EngineSettings(capture=False)


class EngineAlone:
    """`clipping.Engine` with its defaults, then SGD on the sum over the batch size. No noise, like the peers."""

    rewritten = ""
    settings = dc.clipping.EngineSettings()

    def __init__(self, setting: Setting) -> None:
        workload = setting.workload
        self._model = workload.model(setting.device)
        self._batch = workload.batch(setting.device)
        self._rows, self._clip_norm = workload.rows, workload.clip_norm
        self._engine = dc.clipping.Engine(self._model, workload.loss, self.settings)
        self._optimizer = sgd(self._model)

    @property
    def passes(self) -> str:
        return self._engine.passes

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


class EngineInPython(EngineAlone):
    """The same without captured passes: for what counts operations and looks into passes."""

    settings = _IN_PYTHON


class Ours(EngineAlone):
    """The step that a user makes, by default: clipped sum, `privatise` with noise multiplier 1, `apply`."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._sampling = dc.PoissonSampling(100 * self._rows, self._rows)
        self._stream = SecureStream.fresh()

    def step(self) -> None:
        noisy = privatise(self._clipped(), 1.0, self._sampling, self._stream)
        apply(noisy, self._model, self._optimizer)


class OursInPython(Ours):
    """That step without captured passes, as the default was before."""

    settings = _IN_PYTHON


class OursInLittleMemory(Ours):
    """That step in less memory."""

    settings = dc.clipping.EngineSettings(memory="low")
