from typing import Any


class _NoiseScheduler:
    def __init__(self, optimizer: Any, *, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.step()

    def step(self) -> None:
        self.last_epoch += 1
        self.optimizer.noise_multiplier = self.get_noise_multiplier()

    def get_noise_multiplier(self) -> float:
        raise NotImplementedError


class ExponentialNoise(_NoiseScheduler):
    def __init__(self, optimizer: Any, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def get_noise_multiplier(self) -> float:
        now: float = self.optimizer.noise_multiplier
        return now if self.last_epoch == 0 else now * self.gamma


class _GradClipScheduler(_NoiseScheduler):
    pass
