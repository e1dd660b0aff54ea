"""What the doctor observes of Opacus, in a hundred lines, for machines without it: the same names, the same order of
calls, linear layers alone. Tests take the real one where it is installed."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from decrescendo import Budget, PoissonSampling, calibrate
from opacus.accountants.accountant import RDPAccountant
from opacus.optimizers import DPOptimizer


@functools.cache
def calibrated(epsilon: float, delta: float, steps: int, epochs: int) -> float:
    sampling = PoissonSampling(steps * 10, 10)
    plan = calibrate(Budget(epsilon, delta), sampling, epochs=epochs, clip=1.0)
    return float(plan.ledger.noise_multiplier[0])


class UniformWithReplacementSampler:
    def __init__(self, size: int, rate: float) -> None:
        self.size, self.sample_rate = size, rate

    def __len__(self) -> int:
        return round(1 / self.sample_rate)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield torch.nonzero(torch.rand(self.size) < self.sample_rate).flatten().tolist()


class GradSampleModule(nn.Module):
    """Gradients of each row, of linear layers, into `grad_sample`."""

    def __init__(self, module: nn.Module, reduction: str) -> None:
        super().__init__()
        self._module, self._mean = module, reduction == "mean"
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(self._keep)

    def _keep(self, layer: Any, inputs: Any, output: Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        rows = inputs[0].detach()

        def sample(gradient: Tensor) -> None:
            scaled = gradient * len(gradient) if self._mean else gradient
            layer.weight.grad_sample = torch.einsum("ni,nj->nij", scaled, rows)
            layer.bias.grad_sample = scaled.clone()

        output.register_hook(sample)

    def forward(self, *args: Any) -> Any:
        return self._module(*args)


class PrivacyEngine:
    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False) -> None:
        self.accountant, self.secure_mode = RDPAccountant(), secure_mode

    def make_private(
        self, *, module: nn.Module, optimizer: Any, data_loader: Any, noise_multiplier: float, max_grad_norm: float,
        poisson_sampling: bool = True, loss_reduction: str = "mean",
    ) -> Any:  # fmt: skip
        rows, rate = data_loader.dataset, 1 / len(data_loader)
        loader = data_loader
        if poisson_sampling:
            loader = DataLoader(rows, batch_sampler=UniformWithReplacementSampler(len(rows), rate))  # type: ignore[arg-type]
        made = DPOptimizer(optimizer, noise_multiplier, max_grad_norm, int(len(rows) * rate), loss_reduction)
        made.step_hook = lambda o: self.accountant.step(noise_multiplier=o.noise_multiplier, sample_rate=rate)
        return GradSampleModule(module, loss_reduction), made, loader

    def make_private_with_epsilon(
        self, *, module: nn.Module, optimizer: Any, data_loader: Any, target_epsilon: float, target_delta: float,
        epochs: int, max_grad_norm: float, poisson_sampling: bool = True, loss_reduction: str = "mean",
    ) -> Any:  # fmt: skip
        return self.make_private(
            module=module, optimizer=optimizer, data_loader=data_loader, max_grad_norm=max_grad_norm,
            noise_multiplier=calibrated(target_epsilon, target_delta, len(data_loader), epochs),
            poisson_sampling=poisson_sampling,
            loss_reduction=loss_reduction,
        )  # fmt: skip

    def get_epsilon(self, delta: float) -> float:
        return self.accountant.get_epsilon(delta)
