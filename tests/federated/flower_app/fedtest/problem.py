"""What server, clients and the test agree on."""

import torch
from torch import nn

SEED, CLIENTS = 11, 40
SHARDS = (range(16), range(16, 30), range(30, CLIENTS))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def all_records() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = 2 * torch.randn(CLIENTS, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()
