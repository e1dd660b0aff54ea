"""Training without privacy: what all others are measured against."""

from benchmarks.engine.contenders.base import Setting, sgd


class Plain:
    """Forward, backward of the mean loss, SGD."""

    rewritten = passes = ""

    def __init__(self, setting: Setting) -> None:
        self._loss = setting.workload.loss
        self._model = setting.workload.model(setting.device)
        self._batch = setting.workload.batch(setting.device)
        self._optimizer = sgd(self._model)

    def step(self) -> None:
        self._loss(self._model, self._batch).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def clipped_sum(self) -> None:
        return None
