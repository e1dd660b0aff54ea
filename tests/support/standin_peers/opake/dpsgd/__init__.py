from typing import Any

import torch

from opake.dpsgd import noise
from opake.dpsgd.noise import Clipped, gaussian_noise

__all__ = ["PoissonSampler", "clipped_grad", "gaussian_noise", "noise"]


class PoissonSampler:
    def __init__(self, data: Any, sample_rate: float, n_steps: int) -> None:
        self.size, self.sample_rate, self.steps = len(data), sample_rate, n_steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Any:
        for _ in range(self.steps):
            yield torch.nonzero(torch.rand(self.size) < self.sample_rate).flatten().tolist()


def clipped_grad(loss: Any, *, clipping_norm: float, normalize_by: float) -> Any:
    def gradients(weights: Any, *batch: Any) -> Clipped:
        each = torch.func.vmap(torch.func.grad(loss), (None, *(0 for _ in batch)))(weights, *batch)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (clipping_norm / norms).clamp(max=1.0)
        sums = {name: torch.einsum("n,n...->...", factors, g) / normalize_by for name, g in each.items()}
        return Clipped(sums, clipping_norm / normalize_by)

    return gradients
