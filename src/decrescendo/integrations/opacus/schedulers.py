"""Opacus' schedulers of noise and clip norm, by its names: they set what the optimiser's next steps have.

==========================================  ==========================================================
`ExponentialNoise`, `ExponentialGradClip`   times gamma at each ``step()``
`StepNoise`, `StepGradClip`                 times gamma at every ``step_size``-th ``step()``
`LambdaNoise`, `LambdaGradClip`             what it was at first, times a function of the number of ``step()``
==========================================  ==========================================================

Each release is accounted with the noise that it had. After `make_private_with_epsilon` a scheduler of noise is refused:
give the curve to it, and the whole schedule is calibrated.
"""

from collections.abc import Callable, Mapping
from typing import Any

from decrescendo.errors import check_instance, check_integer, check_real
from decrescendo.integrations.opacus.wrapped import PrivateOptimizer


class _Scheduler:
    """Sets one attribute of an optimiser once at the beginning, and at each ``step``."""

    _attribute: str

    def __init__(self, optimizer: PrivateOptimizer, *, last_epoch: int = -1) -> None:
        check_instance("optimizer", optimizer, PrivateOptimizer, "make_private returns one")
        self.optimizer, self.last_epoch = optimizer, check_integer("last_epoch", last_epoch, at_least=-1)
        self.step()

    def _factor(self) -> float:
        """What the value is multiplied by now."""
        raise NotImplementedError

    def step(self) -> None:
        """Go on by one, once an epoch or once a step as the loop likes. A part of a batch that is not its last is no
        step: how many parts there are depends on the data."""
        if self.optimizer.is_between_parts:
            return
        self.last_epoch += 1
        setattr(self.optimizer, self._attribute, self._next())

    def _next(self) -> float:
        value: float = getattr(self.optimizer, self._attribute)
        return value * self._factor() if self.last_epoch else value

    def state_dict(self) -> dict[str, Any]:
        """Its numbers; not the optimiser, and no functions."""
        return {key: value for key, value in vars(self).items() if key != "optimizer" and not callable(value)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Back to the numbers of `state_dict`; those of another kind of scheduler are left out."""
        vars(self).update({key: value for key, value in state_dict.items() if key in self.state_dict()})


class _Exponential(_Scheduler):
    def __init__(self, optimizer: PrivateOptimizer, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = check_real("gamma", gamma, above=0)
        super().__init__(optimizer, last_epoch=last_epoch)

    def _factor(self) -> float:
        return self.gamma


class _Steps(_Scheduler):
    def __init__(self, optimizer: PrivateOptimizer, *, step_size: int, gamma: float, last_epoch: int = -1) -> None:
        self.step_size = check_integer("step_size", step_size, at_least=1)
        self.gamma = check_real("gamma", gamma, above=0)
        super().__init__(optimizer, last_epoch=last_epoch)

    def _factor(self) -> float:
        return 1.0 if self.last_epoch % self.step_size else self.gamma


class ExponentialNoise(_Exponential):
    """Multiplies ``noise_multiplier`` by ``gamma`` at each ``step()``."""

    _attribute = "noise_multiplier"


class StepNoise(_Steps):
    """Multiplies ``noise_multiplier`` by ``gamma`` at every ``step_size``-th ``step()``."""

    _attribute = "noise_multiplier"


class LambdaNoise(_Scheduler):
    """Sets ``noise_multiplier`` to its first value times ``noise_lambda(last_epoch)``."""

    _attribute = "noise_multiplier"

    def __init__(
        self, optimizer: PrivateOptimizer, *, noise_lambda: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.noise_lambda, self.base_noise_multiplier = noise_lambda, optimizer.noise_multiplier
        super().__init__(optimizer, last_epoch=last_epoch)

    def _next(self) -> float:
        return self.base_noise_multiplier * self.noise_lambda(self.last_epoch)


class ExponentialGradClip(_Exponential):
    """Multiplies ``max_grad_norm`` by ``gamma`` at each ``step()``."""

    _attribute = "max_grad_norm"


class StepGradClip(_Steps):
    """Multiplies ``max_grad_norm`` by ``gamma`` at every ``step_size``-th ``step()``."""

    _attribute = "max_grad_norm"


class LambdaGradClip(_Scheduler):
    """Sets ``max_grad_norm`` to its first value times ``scheduler_function(last_epoch)``."""

    _attribute = "max_grad_norm"

    def __init__(
        self, optimizer: PrivateOptimizer, *, scheduler_function: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.scheduler_function, self.base_max_grad_norm = scheduler_function, optimizer.max_grad_norm
        super().__init__(optimizer, last_epoch=last_epoch)

    def _next(self) -> float:
        return self.base_max_grad_norm * self.scheduler_function(self.last_epoch)
