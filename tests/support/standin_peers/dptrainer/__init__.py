"""What the doctor observes of DPTrainer, over Opacus or its stand-in: a trainer that makes and steps its optimiser."""

from types import SimpleNamespace
from typing import Any

import torch
from opacus import GradSampleModule, UniformWithReplacementSampler
from opacus.accountants.accountant import RDPAccountant
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

TrainingArguments = PrivacyArguments = SimpleNamespace


class DPTrainer:
    def __init__(self, model: nn.Module, args: Any, train_dataset: Any, privacy_args: Any) -> None:
        self.model, self.args, self.privacy_args, self.rows = model, args, privacy_args, train_dataset
        self.rate = args.per_device_train_batch_size / len(train_dataset)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        expected = args.per_device_train_batch_size
        self.optimizer: Any = DPOptimizer(plain, privacy_args.noise_multiplier, 1.0, expected, "mean")
        self.dp_callback = SimpleNamespace(accountant=RDPAccountant())
        self.optimizer.step_hook = lambda o: self.dp_callback.accountant.step(
            noise_multiplier=o.noise_multiplier, sample_rate=self.rate
        )

    def get_train_dataloader(self) -> Any:
        size = self.args.per_device_train_batch_size
        if not self.privacy_args.poisson_sampling:
            return DataLoader(self.rows, size, shuffle=True)
        batches: Any = UniformWithReplacementSampler(len(self.rows), self.rate)
        return DataLoader(self.rows, batch_sampler=batches)

    def train(self) -> None:
        model, loader = GradSampleModule(self.model, "mean"), self.get_train_dataloader()
        for _ in range(self.args.num_train_epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                self.optimizer.step()
