#!/bin/bash
# opacus 1.6.0: ghost clipping takes every convolution's padding for zeros, so that gradients are clipped by a wrong
# norm where padding_mode is "reflect", "replicate" or "circular".
#
# The norm of an example's gradient is computed from patches of its input (opacus.grad_sample.conv), which are cut out of
# the input padded with zeros, whatever the layer's padding_mode. A norm that is too small clips too little:
# the example's gradient in the sum is longer than max_grad_norm, which is what the noise was scaled to. The noise is
# then too small for the epsilon that the accountant states. Nothing is said.
#
# Seen, for one convolution with padding 3 on images that are bright at the edge (true norm over the norm used):
#     zeros 1.00, replicate 1.53, reflect 1.11, circular 1.38
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0

python -W ignore - <<'END'
import copy

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import nn


def ratio(mode):
    """The longest true gradient after clipping to the norm that ghost clipping found, in units of the clip norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 7, padding=3, padding_mode=mode, bias=False), nn.Flatten(), nn.Linear(128, 1, bias=False))
    model[1:].requires_grad_(False)
    images = torch.zeros(4, 1, 8, 8)
    images[:, :, 0, :] = images[:, :, -1, :] = 3.0
    images += 0.1 * torch.randn(images.shape)
    private = GradSampleModuleFastGradientClipping(
        copy.deepcopy(model), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )
    private(images).sum().backward()
    used = private.get_norm_sample()
    longest = 0.0
    for image, norm in zip(images, used):
        model.zero_grad()
        model(image[None]).sum().backward()
        longest = max(longest, float(model[0].weight.grad.norm() / norm))
    return longest


found = {mode: ratio(mode) for mode in ("zeros", "replicate", "reflect", "circular")}
print(", ".join(f"{mode} {value:.2f}" for mode, value in found.items()))
assert abs(found["zeros"] - 1) < 1e-4
assert found["replicate"] > 1.4 and found["reflect"] > 1.05 and found["circular"] > 1.2
END
