"""What every contender is: a step that can be timed, and its clipped sum, which can be checked."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from benchmarks.engine.workloads import Workload

# Small: the weights hardly move, so that the hundredth step costs what the first did.
LEARNING_RATE = 1e-3


class Missing(Exception):
    """A library that is not installed."""


class Refused(Exception):
    """A library that says, or documents, that it does not do this."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and on what a contender runs."""

    workload: Workload
    device: torch.device


class Step(Protocol):
    """A contender that is ready to go.

    Attributes:
        rewritten: what of the model had to be exchanged for it; empty for the model as it is.
        passes: of our engine, how its passes run (`clipping.Engine.passes`); empty for others.
    """

    rewritten: str

    @property
    def passes(self) -> str: ...

    def step(self) -> None:
        """One private step: clip each example's gradient, add, divide by the batch size, SGD."""
        ...

    def clipped_sum(self) -> Mapping[str, Any] | None:
        """The sum of clipped gradients at the present weights by the plain model's names; ``None`` for plain training.

        In whatever layout the library has it; `as_torch` makes it comparable.
        """
        ...


def require(name: str) -> ModuleType:
    """An optional package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{error.name or name} is not installed") from None


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    """The optimiser of all torch contenders."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
