"""DP-AdamBC: Adam that takes the noise out of its second moment, also where the noise moves."""

import math
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from decrescendo.errors import InvalidType, InvalidValue, check_instance, check_real


@final
class AdamBC(torch.optim.Optimizer):
    """DP-AdamBC with a correction that follows the noise; steps only through `decrescendo.optim.apply`.

    The mean of noisy gradients g_t that Adam squares has noise of variance s_t^2 = (z_t C_t / B)^2 on every coordinate,
    which would drown what Adam wants to know. The same moving average of this known variance is subtracted::

        m_t   = beta1 m_{t-1}   + (1 - beta1) g_t
        v_t   = beta2 v_{t-1}   + (1 - beta2) g_t^2
        phi_t = beta2 phi_{t-1} + (1 - beta2) s_t^2
        w_t   = w_{t-1} - lr m^_t / sqrt(max(v^_t - phi^_t, floor, relative_floor phi^_t))

    with x^_t = x_t / (1 - beta^t). For constant noise phi^_t is s^2, and this is DP-AdamBC as published.

    Args:
        params: parameters or groups of them, float32 or float64.
        lr: learning rate >= 0.
        betas: (beta1, beta2), each in [0, 1).
        floor: gamma' > 0, the smallest square that is divided by. The error of a coordinate's v^_t - phi^_t is about
            s^2 sqrt(2 (1 - beta2) / (1 + beta2)): a floor well below it lets single coordinates leap.
        relative_floor: >= 0, a floor as a share of phi^_t, which falls with the noise; 0 as published. With constant
            noise it is the published gamma' = relative_floor s^2.
        weight_decay: >= 0, decoupled from the gradient as in AdamW.

    Guarantee:
        post-processing: it sees releases and the plan's public numbers only, and costs no privacy.

    Edge cases:
        E[v^_t - phi^_t] is the same average of the squared clean gradients, whatever the noise does; single values may
        be negative, hence the floor. Parameters that take part later or were frozen in between have their own t and
        phi_t. No noise (s_t = 0) is Adam with a floor in the place of eps.

    Raises:
        InvalidValue: a number outside its range, or a step outside `apply`, where the noise is not known.
        InvalidType: parameters of lower precision (v - phi cancels), a closure.

    Source: Tang, Shpilevskiy and Lecuyer 2023, *DP-AdamBC: Your DP-Adam Is Actually DP-SGD*, for constant noise.

    >>> from decrescendo.accounting.release import Release
    >>> from decrescendo.optim.noise import NoisyMean
    >>> from decrescendo.optim.apply import apply
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(1.0)
    >>> optimizer = AdamBC(model.parameters(), lr=0.1)
    >>> apply(NoisyMean({"weight": torch.tensor([[0.5]])}, Release(0.01, 1.0), noise_std=0.4), model, optimizer)
    >>> round(1 - model.weight.item(), 4)  # 0.1 * 0.5 / sqrt(0.5^2 - 0.4^2)
    0.1667
    """

    # On the class: copies and pickles of an optimiser leave instance attributes behind.
    _noise_std: float | None = None

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        floor: float = 1e-8,
        relative_floor: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "floor": floor,
            "relative_floor": relative_floor,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in ``torch.optim``; every group may have its own settings."""
        _check(self.defaults | param_group)
        super().add_param_group(param_group)
        for tensor in self.param_groups[-1]["params"]:
            if tensor.dtype not in (torch.float32, torch.float64):
                self.param_groups.pop()
                raise InvalidType(
                    f"parameters of AdamBC must be float32 or float64, got {tensor.dtype}: the difference of "
                    "the second moment and its noise has no digits left. Keep them in float32, or use torch.optim.Adam"
                )

    def expect_noise(self, std: float | None) -> None:
        """Called by `apply` with the noise's standard deviation on every coordinate of the next gradient; good for
        one step."""
        self._noise_std = None if std is None else check_real("noise_std", std, at_least=0)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step on the gradients that `apply` has set."""
        if closure is not None:
            raise InvalidType(
                "AdamBC must step on a given gradient, got a closure. Each evaluation would be another release"
            )
        std, self._noise_std = self._noise_std, None
        if std is None:
            raise InvalidValue(
                "AdamBC must know the noise of its gradient, got a step outside of apply. "
                "Use decrescendo.optim.apply(noisy, model, optimizer)"
            )
        for group in self.param_groups:
            for cohort in self._cohorts(group, std).values():
                _update(cohort, group, self.state)

    def _cohorts(self, group: dict[str, Any], std: float) -> dict[object, list[Tensor]]:
        """Parameters that one fused call may update: they agree in place, type, number of steps and noise so far."""
        beta2 = group["betas"][1]
        cohorts: dict[object, list[Tensor]] = {}
        for tensor in group["params"]:
            if tensor.grad is None:
                continue
            state = self.state[tensor]
            if not state:
                state["exp_avg"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
                # Plain numbers: load_state_dict would round tensors to the parameter's type.
                state["step"], state["noise_variance"] = 0, 0.0
            state["step"] += 1
            state["noise_variance"] = beta2 * state["noise_variance"] + (1 - beta2) * std**2
            key = (tensor.device, tensor.dtype, state["step"], state["noise_variance"])
            cohorts.setdefault(key, []).append(tensor)
        return cohorts


def _update(tensors: list[Tensor], group: dict[str, Any], states: dict[Tensor, Any]) -> None:
    beta1, beta2 = group["betas"]
    step, noise_variance = states[tensors[0]]["step"], states[tensors[0]]["noise_variance"]
    first, second = 1 - beta1**step, 1 - beta2**step
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    averages = [states[tensor]["exp_avg"] for tensor in tensors]
    squares = [states[tensor]["exp_avg_sq"] for tensor in tensors]
    torch._foreach_lerp_(averages, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    clean = torch._foreach_sub(squares, noise_variance)
    torch._foreach_div_(clean, second)
    torch._foreach_clamp_min_(clean, max(group["floor"], group["relative_floor"] * noise_variance / second))
    torch._foreach_sqrt_(clean)
    if group["weight_decay"]:
        torch._foreach_mul_(tensors, 1 - group["lr"] * group["weight_decay"])
    torch._foreach_addcdiv_(tensors, averages, clean, -group["lr"] / first)


def _check(group: dict[str, Any]) -> None:
    check_real("lr", group["lr"], at_least=0)
    check_real("floor", group["floor"], above=0)
    check_real("relative_floor", group["relative_floor"], at_least=0)
    check_real("weight_decay", group["weight_decay"], at_least=0)
    check_instance("betas", group["betas"], tuple)
    if len(group["betas"]) != 2:
        raise InvalidValue(f"betas must be (beta1, beta2), got {len(group['betas'])} values")
    for beta in group["betas"]:
        check_real("betas", beta, at_least=0, below=1)
    # A sqrt of it is divided by, in float32.
    if math.sqrt(group["floor"]) < torch.finfo(torch.float32).tiny:
        raise InvalidValue(f"floor must have a square root in float32, got floor={group['floor']}")
