#!/bin/bash
# opacus 1.6.0: ghost clipping clips nothing where the loss of a batch has the shape [batch, 1], as that of MSELoss,
# L1Loss or BCEWithLogitsLoss on a model with one output has.
#
# The criterion that make_private returns takes the losses without reduction, weights each by its record's clip factor and
# adds them up (opacus.utils.fast_gradient_clipping_utils, whose docstring expects losses in a column). The factors have
# the shape [batch], so that their product with a column is a square, every factor with every loss. Its sum is the sum of
# the factors times the plain sum of the gradients: all records have the same weight, up to the number of records rather than
# up to 1, and a long gradient is not clipped. The noise is for one clip norm, and so is the epsilon. Nothing is said: the
# loss that is shown is right. Losses of shape [batch], after squeeze(1), are clipped. No issue about it was found upstream.
#
# Seen, clip norm 1, 64 records, noise multiplier 1; what the last record moves the sum by that gets the noise, and how far
# one private step of SGD goes:
#     hooks, a column: 1.00 clip norms; 0.0028
#     ghost, squeezed: 1.00 clip norms; 0.0028
#     ghost, a column: 2831.99 clip norms; 0.3856
# Each sum agrees with its formula, computed without opacus, up to rounding.
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0 numpy==2.4.6

python -W ignore - <<'END'
import copy

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECORDS, CLIP = 64, 1.0
torch.manual_seed(0)
inputs, targets = torch.randn(RECORDS, 10), torch.randn(RECORDS, 1)
targets[-1] = 20.0  # the record whose gradient is longest
first = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double()


def one_step(mode, squeezed, rows):
    """The sum that gets the noise, and how far one private step then moves the weights."""
    torch.manual_seed(1)
    model = copy.deepcopy(first)
    data = TensorDataset(inputs[:rows], targets[:rows])
    private = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), data_loader=DataLoader(data, batch_size=rows),
        criterion=nn.MSELoss(), noise_multiplier=1.0, max_grad_norm=CLIP, grad_sample_mode=mode, poisson_sampling=False,
    )
    model, optimizer, loader = private[0], private[1], private[-1]
    criterion = private[2] if mode == "ghost" else nn.MSELoss()
    ((x, y),) = loader
    before = flat(model.parameters())
    optimizer.zero_grad()
    outputs = model(x)
    loss = criterion(outputs.squeeze(1), y.squeeze(1)) if squeezed else criterion(outputs, y)
    assert abs(float(loss.item()) - float(nn.functional.mse_loss(outputs, y))) < 1e-5
    loss.backward()
    optimizer.step()
    return flat(parameter.summed_grad for parameter in optimizer.params), float((flat(model.parameters()) - before).norm())


# The same without opacus: every record's gradient by itself.
gradients = []
for x, y in zip(inputs, targets):
    loss = nn.functional.mse_loss(first(x), y)
    gradients.append(flat(torch.autograd.grad(loss, first.parameters())))
gradients = torch.stack(gradients)
factors = (CLIP / gradients.norm(dim=1)).clamp(max=1)


def clipped(rows):
    return factors[:rows] @ gradients[:rows]


def multiplied(rows):
    return factors[:rows].sum() * gradients[:rows].sum(0)


moved, went = {}, {}
for name, mode, squeezed, formula in (
    ("hooks, a column", "hooks", False, clipped),
    ("ghost, squeezed", "ghost", True, clipped),
    ("ghost, a column", "ghost", False, multiplied),
):
    with_it, went[name] = one_step(mode, squeezed, RECORDS)
    without, _ = one_step(mode, squeezed, RECORDS - 1)
    error = float((with_it - formula(RECORDS)).norm() / formula(RECORDS).norm())
    moved[name] = float((with_it - without).norm()) / CLIP
    print(f"{name}: the last record moves the sum by {moved[name]:.2f} clip norms; differs from its formula by {error:.1e}; "
          f"one step goes {went[name]:.4f} far")
    assert error < 1e-4
assert moved["hooks, a column"] < 1.001 and moved["ghost, squeezed"] < 1.001
assert moved["ghost, a column"] > 100
END
