"""What server and nodes agree on: the model, the loss, and here also the data, split over the clients."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS, RECORDS = 500, 3  # the first 1,500 of scikit-learn's digits; the rest is public test data


def make_model() -> nn.Module:
    """The same initial weights everywhere."""
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The server's; what it does is post-processing."""
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss a record."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def all_records() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Clients' records, client after client, and public test records. A real node reads its own clients' only."""
    images, labels = load_digits(return_X_y=True)
    rows = torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()
    cut = CLIENTS * RECORDS
    return (rows[0][:cut], rows[1][:cut]), (rows[0][cut:], rows[1][cut:])


def accuracy(model: nn.Module) -> float:
    """On the public test records."""
    inputs, labels = all_records()[1]
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).double().mean())
