"""Opacus: per-example gradients by hooks or by expanded weights, and ghost clipping."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from benchmarks.engine.contenders.base import Refused, Setting, require, sgd

_REPLACED = {"MultiheadAttention": "DPMultiheadAttention", "LSTM": "DPLSTM"}

# Its last view takes (batch * heads, places, width / heads) for (batch, places, width).
_MIXED = "whose batch_first form, in Opacus 1.6.0, exchanges heads and places and so is another function"


class _Opacus:
    """What the modes share: the model in a form that Opacus takes, wrapped for ``mode``."""

    passes = ""

    def __init__(self, setting: Setting, mode: str) -> None:
        wrap = require("opacus.grad_sample.utils").wrap_model
        workload = setting.workload
        self._loss, self._rows, self._clip_norm = workload.loss, workload.rows, workload.clip_norm
        self._batch = workload.batch(setting.device)
        model, self.rewritten = _fixed(workload.model(setting.device))
        more = {"max_grad_norm": workload.clip_norm} if mode == "ghost" else {}
        self._model = wrap(model.train(), grad_sample_mode=mode, loss_reduction="mean", **more)

    def _options(self) -> dict[str, float]:
        return {
            "noise_multiplier": 0.0,
            "max_grad_norm": self._clip_norm,
            "expected_batch_size": self._rows,
        }

    def _named(self, take: Callable[[nn.Parameter], Tensor]) -> dict[str, Tensor]:
        names = ((name.removeprefix("_module."), p) for name, p in self._model.named_parameters())
        return _plain_names({name: take(parameter) for name, parameter in names})


class PerExample(_Opacus):
    """``grad_sample_mode`` "hooks", "functorch" or "ew": every example's gradient is stored, `DPOptimizer` clips."""

    def __init__(self, setting: Setting, mode: str) -> None:
        super().__init__(setting, mode)
        optimizer = require("opacus.optimizers").DPOptimizer
        self._optimizer = optimizer(sgd(self._model), **self._options())

    def step(self) -> None:
        self._loss(self._model, self._batch).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def clipped_sum(self) -> Mapping[str, Tensor]:
        self._loss(self._model, self._batch).mean().backward()
        self._optimizer.clip_and_accumulate()
        found = self._named(lambda p: p.summed_grad.clone())
        self._optimizer.zero_grad(set_to_none=True)
        return found


class Ghost(_Opacus):
    """Norms without gradients where Opacus has a formula, then a second backward pass over weighted losses."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, "ghost")
        optimizer = require("opacus.optimizers").DPOptimizerFastGradientClipping
        self._optimizer = optimizer(sgd(self._model), **self._options())
        self._two_passes = require("opacus.utils.fast_gradient_clipping_utils").DPTensorFastGradientClipping

    def step(self) -> None:
        self._backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def clipped_sum(self) -> Mapping[str, Tensor]:
        self._backward()
        found = self._named(lambda p: p.grad.clone())
        self._optimizer.zero_grad(set_to_none=True)
        return found

    def _backward(self) -> None:
        losses = self._loss(self._model, self._batch)
        self._two_passes(self._model, self._optimizer, losses, "mean").backward()


def _fixed(model: nn.Module) -> tuple[nn.Module, str]:
    """The model with what Opacus documents as replacements, and what was replaced."""
    validator = require("opacus.validators").ModuleValidator
    names = {type(module).__name__ for module in model.modules()} & _REPLACED.keys()
    if names:
        model = validator.fix(model)
    problems = validator.validate(model, strict=False)
    if problems:
        raise Refused(str(problems[0]))
    said = [f"nn.{name} by {_REPLACED[name]}" for name in sorted(names)]
    if any(getattr(module, "batch_first", False) for module in model.modules() if "Attention" in type(module).__name__):
        said.append(_MIXED)
    return model, ", ".join(said)


def _plain_names(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values of `DPMultiheadAttention` as the one tensor that ``nn.MultiheadAttention`` has."""
    merged = dict(found)
    for name in found:
        if ".qlinear." not in name:
            continue
        parts = [merged.pop(name.replace(".qlinear.", f".{part}linear.")) for part in "qkv"]
        merged[name.replace(".qlinear.", ".in_proj_")] = torch.cat(parts)
    return merged
