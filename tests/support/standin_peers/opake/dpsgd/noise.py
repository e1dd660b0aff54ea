from typing import Any, NamedTuple

import torch
from torch import Tensor


class Clipped(NamedTuple):
    pytree: Any
    max_norm: float

    @property
    def sensitivity(self) -> float:
        return self.max_norm


def key(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian_noise(*, noise_multiplier: float, key: torch.Generator) -> Any:
    def noise(clipped: Clipped, state: int) -> tuple[dict[str, Tensor], int]:
        std = noise_multiplier * clipped.max_norm
        drawn = {name: sums + std * torch.randn(sums.shape, generator=key) for name, sums in clipped.pytree.items()}
        return drawn, state + 1

    return noise, 0
