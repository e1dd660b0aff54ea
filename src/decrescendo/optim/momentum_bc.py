"""Descent along a moving average of the gradients, corrected for its bias towards zero (Hong et al. 2022)."""

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from decrescendo.errors import InvalidType, check_real


@final
class MomentumBC(torch.optim.Optimizer):
    """Steps along the bias-corrected moving average of the gradients::

        v_{t+1} = beta v_t + (1 - beta) g_t        v_1 = 0
        w_{t+1} = w_t - lr v_{t+1} / (1 - beta^t)

    which is Hong et al. Eq. (3), m_{t+1} = [beta (1 - beta^(t-1)) m_t + (1 - beta) g_t] / (1 - beta^t), without m.
    The coefficients of all gradients so far add up to one from the first step on: the first step is as long as one of
    plain gradient descent, and ``momentum=0`` is plain gradient descent. (``torch.optim.SGD`` adds gradients up
    instead: its steps grow by up to 1 / (1 - beta).)

    Averaging also averages the noise: of T steps with noise z_t, step i's goes into all later steps, with the factors
    that Hong et al. call the influence under momentum.

    Args:
        params: parameters or groups of them.
        lr: learning rate >= 0.
        momentum: beta in [0, 1).

    Guarantee:
        post-processing: it sees releases only, and costs no privacy.

    Edge cases:
        a parameter that was without a gradient at some steps counts its own t; groups may have their own settings.

    Raises:
        InvalidValue: a number outside its range.
        InvalidType: a closure.

    Source: Hong, Wang and Zhou 2022, Eq. (3), (13).

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> optimizer = MomentumBC([weight], lr=1.0, momentum=0.5)
    >>> for gradient in (1.0, 0.0):  # the averages are 1 and (0.5 * 1 + 1 * 0) / 1.5
    ...     weight.grad = torch.tensor([gradient])
    ...     optimizer.step()
    >>> round(weight.item(), 4)
    -1.3333
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float = 1e-3,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in ``torch.optim``; every group may have its own settings."""
        settings = self.defaults | param_group
        check_real("lr", settings["lr"], at_least=0)
        check_real("momentum", settings["momentum"], at_least=0, below=1)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step on the gradients that are set."""
        if closure is not None:
            raise InvalidType(
                "MomentumBC must step on a given gradient, got a closure. Each evaluation would be another release"
            )
        for group in self.param_groups:
            # One fused call moves all parameters that agree in place, type and number of steps.
            cohorts: dict[object, list[Tensor]] = {}
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["average"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
                    state["step"] = 0  # a plain number: load_state_dict would round a tensor
                state["step"] += 1
                cohorts.setdefault((tensor.device, tensor.dtype, state["step"]), []).append(tensor)
            for cohort in cohorts.values():
                _update(cohort, group["lr"], group["momentum"], self.state)


def _update(tensors: list[Tensor], lr: float, beta: float, states: dict[Tensor, Any]) -> None:
    averages = [states[tensor]["average"] for tensor in tensors]
    torch._foreach_lerp_(averages, [tensor.grad for tensor in tensors if tensor.grad is not None], 1 - beta)
    torch._foreach_add_(tensors, averages, alpha=-lr / (1 - beta ** states[tensors[0]]["step"]))
