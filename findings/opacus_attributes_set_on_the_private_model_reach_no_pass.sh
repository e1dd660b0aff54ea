#!/bin/bash
# opacus 1.6.0: an attribute set on the model that make_private returns stays on the wrapper, and reads back as set.
#
# The private model finds the submodules of the user's model. Another attribute of it (a temperature, a flag) raises when it
# is read, and is taken without a word when it is set: `model.temperature = 0.1` puts it on the wrapper, from where it
# reads back as set, and every pass goes on with the old value. Before make_private the same line reached the model.
#
# Seen: a classifier whose outputs are divided by a temperature, trained twice with one seed: once at 1 throughout, once
# set to 0.1 before each epoch. The attribute then reads 0.1, and the two trainings have the same weights to the bit. Set
# on `model._module`, it trains other weights.
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0

python -W ignore - <<'END'
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = nn.Linear(4, 3), 1.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) / self.temperature

def trained(where: str) -> tuple[torch.Tensor, float, float]:
    """Weights after three epochs; the temperature as read from the private model, 0 if that raises; the model's own."""
    torch.manual_seed(0)
    own, rows = Tempered(), TensorDataset(torch.randn(120, 4), torch.randint(3, (120,)))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=own, optimizer=torch.optim.SGD(own.parameters(), lr=0.5),
        data_loader=DataLoader(rows, batch_size=30), noise_multiplier=1.0, max_grad_norm=10.0,
    )
    for _ in range(3):
        if where:
            setattr(model if where == "model" else model._module, "temperature", 0.1)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return own.layer.weight.detach().clone(), getattr(model, "temperature", 0.0), own.temperature

never, on_model, on_own = trained(""), trained("model"), trained("own")
print(f"set on the private model: reads {on_model[1]}, the model has {on_model[2]}, the weights are those of a training "
      f"without it: {torch.equal(on_model[0], never[0])}")
print(f"set on model._module: the weights are the same: {torch.equal(on_own[0], never[0])}")
assert on_model[1] == 0.1 and on_model[2] == 1.0 and torch.equal(on_model[0], never[0])
assert never[1] == 0.0 and not torch.equal(on_own[0], never[0])
END
