"""Scores of a model on declared public data."""

from collections.abc import Callable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from decrescendo.errors import InvalidValue, check_integer


def accuracy(
    model: nn.Module, inputs: Shaped[Tensor, "n ..."], targets: Int[Tensor, " n"], batch_size: int = 1024
) -> float:
    """Share of rows whose largest output is at their target, in [0, 1].

    Evaluated in eval mode and without gradients; every module's training flag is put back afterwards. No
    guarantee accounts for a score on private data: use it on declared test data.

    Args:
        model: from a batch of inputs to one score a class.
        inputs: at least one row; moved to the model's device batch by batch.
        targets: class of each row.
        batch_size: rows at a time, >= 1; a matter of memory only.

    Raises:
        InvalidValue: no rows at all.

    >>> accuracy(nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """

    def right(outputs: Tensor, classes: Tensor) -> float:
        return float((outputs.argmax(dim=1) == classes).sum())

    return _mean(right, model, inputs, targets, batch_size)


def mean_loss(
    model: nn.Module, inputs: Shaped[Tensor, "n ..."], targets: Int[Tensor, " n"], batch_size: int = 1024
) -> float:
    """Mean cross-entropy, in nats; otherwise as `accuracy`.

    >>> round(mean_loss(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 1])), 4)
    0.6931
    """

    def added(outputs: Tensor, classes: Tensor) -> float:
        return float(nn.functional.cross_entropy(outputs.double(), classes, reduction="sum"))

    return _mean(added, model, inputs, targets, batch_size)


def _mean(
    total: Callable[[Tensor, Tensor], float],
    model: nn.Module,
    inputs: Shaped[Tensor, "n ..."],
    targets: Int[Tensor, " n"],
    batch_size: int,
) -> float:
    rows = int(targets.shape[0])
    size = check_integer("batch_size", batch_size, at_least=1)
    if rows == 0:
        raise InvalidValue("inputs must have at least one row, got 0. A mean over nothing is undefined")
    device = next((parameter.device for parameter in model.parameters()), inputs.device)
    flags = [(module, module.training) for module in model.modules()]
    found = 0.0
    try:
        model.eval()
        with torch.no_grad():
            for start in range(0, rows, size):
                outputs = model(inputs[start : start + size].to(device))
                found += total(outputs, targets[start : start + size].to(device))
    finally:
        for module, training in flags:
            module.training = training
    return found / rows
