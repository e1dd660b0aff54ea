"""Models that keep what they saw, and put it where a state dict is made of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Keeps(nn.Module):
    """Sums its inputs up in a plain attribute: raw data, which no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.seen = torch.zeros(3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + inputs.detach().sum(0)
        return self.layer(inputs)


class ExtraTensor(Keeps):
    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


class ExtraFacts(ExtraTensor):
    def get_extra_state(self) -> Any:
        return {"seen": self.seen.tolist()}


class ExtraNothing(ExtraTensor):
    """Nothing yet; what comes later is not known."""

    def get_extra_state(self) -> Any:
        return None


class Saves(Keeps):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "seen"] = self.seen


class Exchanges(Keeps):
    """Another tensor under a name that belongs there."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "layer.weight": self.layer.weight.detach() + self.seen}


class Whole(Keeps):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "seen": self.seen}


class Inside(nn.Module):
    """Of a child of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(ExtraTensor())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)


def hooked(model: nn.Module) -> nn.Module:
    """With a hook that adds a tensor."""

    def add(module: Any, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "seen"] = torch.ones(3)

    model.register_state_dict_post_hook(add)
    return model


HIDING: dict[str, Callable[[], nn.Module]] = {
    "extra tensor": ExtraTensor, "extra facts": ExtraFacts, "extra nothing": ExtraNothing, "saves": Saves,
    "exchanges": Exchanges, "whole": Whole, "inside": Inside,
    "hooked": lambda: hooked(nn.Sequential(nn.Linear(3, 2))),
}  # fmt: skip
