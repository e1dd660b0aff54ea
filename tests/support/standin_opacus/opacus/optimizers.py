from typing import Any

import torch


class DPOptimizer:
    def __init__(self, optimizer: Any, noise: float, clip: float, expected: int, reduction: str) -> None:
        self.original_optimizer, self.noise_multiplier, self.max_grad_norm = optimizer, noise, clip
        self.expected_batch_size, self.loss_reduction, self.step_hook = expected, reduction, None
        self.params = [p for group in optimizer.param_groups for p in group["params"]]

    def clip_and_accumulate(self) -> None:
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in self.params]).norm(dim=0)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for p in self.params:
            p.summed_grad = torch.einsum("n,n...->...", factors, p.grad_sample)

    def add_noise(self) -> None:
        for p in self.params:
            noise = torch.normal(0.0, 1.0, p.shape) * self.noise_multiplier * self.max_grad_norm
            p.grad = p.summed_grad + noise

    def step(self) -> None:
        self.clip_and_accumulate()
        self.add_noise()
        for p in self.params:
            p.grad /= self.expected_batch_size if self.loss_reduction == "mean" else 1
        self.step_hook(self)
        self.original_optimizer.step()

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad_sample = p.summed_grad = None
        self.original_optimizer.zero_grad()
