"""`Several`: optimisers that share the parameters of one model, as one."""

from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor

from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim.noise_aware import as_noise_aware


@final
class Several(torch.optim.Optimizer):
    """Several optimisers over one model, each over its own part of the parameters, as one optimiser.

    ``step`` steps each of them in order. ``param_groups`` and ``state`` are theirs, one after another, so a scheduler
    on this optimiser or on one of them sets the same learning rates. `decrescendo.train` makes one of a list.

    Args:
        optimizers: at least one; no parameter is in two of them.

    Raises:
        InvalidType: something that is no ``torch.optim.Optimizer``.
        InvalidValue: no optimiser, or a parameter that two of them hold.

    >>> hidden, head = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1)
    >>> muon = torch.optim.Muon(hidden.parameters(), lr=0.02)
    >>> both = Several([muon, torch.optim.AdamW(head.parameters(), lr=1e-3)])
    >>> [group["lr"] for group in both.param_groups]
    [0.02, 0.001]
    >>> Several([muon, torch.optim.SGD(hidden.parameters(), lr=0.1)])
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: each parameter must be in one optimizer, got 1 in two of them (Muon and SGD). ...
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        if not self.optimizers:
            raise InvalidValue("optimizer must be an optimizer or several, got none. Make one of model.parameters()")
        owner: dict[int, torch.optim.Optimizer] = {}
        for optimizer in self.optimizers:
            if not isinstance(cast("object", optimizer), torch.optim.Optimizer):
                raise InvalidType(
                    f"each optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}. Give a list of "
                    "optimizers, each made of its own parameters"
                )
            twice = [tensor for tensor in _tensors(optimizer) if id(tensor) in owner]
            if twice:
                raise InvalidValue(
                    f"each parameter must be in one optimizer, got {len(twice)} in two of them "
                    f"({type(owner[id(twice[0])]).__name__} and {type(optimizer).__name__}). Leave them out of one"
                )
            owner |= {id(tensor): optimizer for tensor in _tensors(optimizer)}
        self._made = False
        super().__init__(self.param_groups, {})
        self._made = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all optimisers, in order."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: object) -> None:
        """Ignored: each optimiser keeps its own."""

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The state of all optimisers, by parameter."""
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    @state.setter
    def state(self, state: object) -> None:
        """Ignored: each optimiser keeps its own."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: add it to one of the optimisers instead."""
        del param_group
        if self._made:
            raise InvalidValue(
                "a group of parameters must be added to one of the optimizers, got it for several. Call "
                "add_param_group of the one that is to train it"
            )

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of each optimiser."""
        del closure
        for optimizer in self.optimizers:
            optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into each optimiser its part of a ``state_dict`` of several."""
        groups, state = list(state_dict["param_groups"]), state_dict["state"]
        if len(groups) != len(self.param_groups):
            raise ValueError("the state of several optimizers has another number of parameter groups")
        for optimizer in self.optimizers:
            own, groups = groups[: len(optimizer.param_groups)], groups[len(optimizer.param_groups) :]
            ids = [index for group in own for index in group["params"]]
            optimizer.load_state_dict({"state": {i: state[i] for i in ids if i in state}, "param_groups": own})

    def expect_noise(self, std: float | None) -> None:
        """Tell the optimisers among them that use it how much noise is on the gradient."""
        for optimizer in self.optimizers:
            told = as_noise_aware(optimizer)
            if told is not None:
                told.expect_noise(std)


def as_one(optimizer: object) -> Any:
    """A list or tuple of optimisers as `Several`; anything else as it is."""
    return Several(cast("Any", optimizer)) if isinstance(optimizer, (list, tuple)) else optimizer


def parts_of(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimisers that `Several` holds; of another, the optimiser itself."""
    return optimizer.optimizers if isinstance(optimizer, Several) else (optimizer,)


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """The class name of an optimiser; of `Several`, those of all.

    >>> weights = torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    >>> name_of(Several([torch.optim.Muon([weights[0]]), torch.optim.AdamW([weights[1]])]))
    'Muon + AdamW'
    """
    return " + ".join(type(part).__name__ for part in parts_of(optimizer))


def _tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]
