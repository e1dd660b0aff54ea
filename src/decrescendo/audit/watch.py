"""What an adversary who sees every model on the way sees: the noisy sum of each step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from decrescendo.plans.plan import Plan

Look = Callable[[int, Float[np.ndarray, " coordinates"]], None]


def watch(optimizer: torch.optim.Optimizer, watched: nn.Parameter, plan: Plan, look: Look) -> None:
    """Before each step of ``optimizer`` call ``look(t, x)`` with x = noisy mean times B over C_t, for one parameter.

    It stands where anybody downstream may stand: what it reads is what the optimiser is given, after the noise. x is
    the clipped sum in units of C_t, plus noise of standard deviation z_t, if the training does what its plan says.

    Args:
        optimizer: any, over the parameters that are trained.
        watched: the parameter.
        plan: of the training; its declared B and C_t are public.
        look: gets t = 0, 1, .. and a flat array in float64.

    """
    taken = 0

    def before(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Mapping[str, Any]) -> None:
        nonlocal taken
        if watched.grad is None:
            return
        mean = watched.grad.detach().to("cpu", torch.float64).flatten().numpy()
        scale = float(plan.batch_size[taken]) / float(plan.clip_norm[taken])
        look(taken, mean * scale)
        taken += 1

    optimizer.register_step_pre_hook(before)
