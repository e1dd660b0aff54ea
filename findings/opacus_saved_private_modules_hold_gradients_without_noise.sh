#!/bin/bash
# opacus 1.6.0 with torch 2.13.0: torch.save of the model that make_private returned writes the last batch's gradients.
#
# Opacus keeps each record's gradient (`grad_sample`) and the clipped sum before its noise (`summed_grad`) as attributes of
# the parameters, until the next `zero_grad`, which opens the next step. torch saves attributes of parameters with a
# module that is saved whole, so after a usual loop the file of a model with a stated epsilon holds both. A `state_dict`
# does not have them.
#
# Seen: after one epoch and `torch.save(model, file)`, the loaded module has the gradients of every record of the last
# batch. Divided by the bias's, the first layer's are those records' inputs, up to rounding. `torch.save(model.state_dict())`
# is a quarter as large or less, and has none.
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0

python -W ignore - <<'END'
import io

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, labels = torch.randn(200, 12), torch.randint(3, (200,))
own = nn.Sequential(nn.Linear(12, 3))
model, optimizer, loader = PrivacyEngine().make_private(
    module=own, optimizer=torch.optim.SGD(own.parameters(), lr=0.1),
    data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=40), noise_multiplier=1.0, max_grad_norm=1.0,
)
for rows, targets in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(rows), targets).backward()
    optimizer.step()

whole, state = io.BytesIO(), io.BytesIO()
torch.save(model, whole)
torch.save(model.state_dict(), state)
whole.seek(0)
found = torch.load(whole, weights_only=False)  # our own file
weight, bias = (parameter.grad_sample for parameter in found.parameters())
recovered = weight[:, 0] / bias[:, :1]
error = float((recovered - rows).abs().max())
sums = [parameter.summed_grad is not None for parameter in found.parameters()]
print(f"{len(weight)} of {len(rows)} records' gradients are in the file; inputs computed from them differ by {error:.1e}")
print(f"the clipped sum without noise is in it: {all(sums)}; bytes {whole.getbuffer().nbytes}, of the state dict "
      f"{state.getbuffer().nbytes}")
assert len(weight) == len(rows) > 20 and error < 1e-3 and all(sums)
assert 4 * state.getbuffer().nbytes < whole.getbuffer().nbytes
END
