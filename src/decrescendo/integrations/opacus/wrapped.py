"""The three things that a loop has in place of its own: model, optimiser and loader, by Opacus' names."""

import math
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from decrescendo.clipping.clipped import Batch, check_clip_norm
from decrescendo.errors import InvalidValue, UnsupportedModel, check_instance, check_integer, check_real
from decrescendo.integrations.opacus.loop import Loop
from decrescendo.integrations.opacus.recorded import tape_of
from decrescendo.integrations.opacus.recording import LoopRecording


class PrivateModule(nn.Module):
    """The user's model, which stands for itself in what a loop computes from a batch of its `PrivateLoader`.

    ``_module`` is the model; its attributes are found here, too. State dicts have its names; those with Opacus'
    ``_module.`` before each are read.
    """

    def __init__(self, module: nn.Module, tape: Callable[[], LoopRecording | None]) -> None:
        super().__init__()
        self._module, self._tape = module, tape
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model computes."""
        now = self._tape()
        if now is not None:
            args, kwargs = now.found((args, kwargs))
        tape = tape_of((args, kwargs))
        return self._module(*args, **kwargs) if tape is None else tape.model(self._module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """An attribute that the model has is set there. (In Opacus it would stay here, where no pass reads it.)"""
        module = self.__dict__.get("_modules", {}).get("_module")
        owned = name in self.__dict__ or hasattr(type(self), name) or not hasattr(module, name)
        (super() if owned else module).__setattr__(name, value)

    def __getitem__(self, place: Any) -> Any:
        """Of a model that has places: `nn.Sequential`."""
        return self._module[place]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self._module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Into the model."""
        return self._module.load_state_dict(without_prefix(state_dict), strict=strict, assign=assign)


def without_prefix(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without Opacus' ``_module.`` before each name."""
    return {name.removeprefix("_module."): value for name, value in state.items()}


class PrivateOptimizer(torch.optim.Optimizer):
    """The user's optimiser, whose ``step`` is a private one: clipped, noised, recorded.

    Attributes:
        original_optimizer: the user's.
        noise_multiplier: z of the next step.
        max_grad_norm: C of the next step.
        expected_batch_size: what the noisy sum is divided by.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, steps: Loop) -> None:
        # Not the optimiser's own: parameters, state and hooks are the other one's.
        self.original_optimizer, self._steps = optimizer, steps
        self.loss_reduction = "mean"

    @property
    def noise_multiplier(self) -> float:
        """z of the next step."""
        return self._steps.noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        self._steps.noise_multiplier = check_real("noise_multiplier", value, at_least=0)

    @property
    def max_grad_norm(self) -> float:
        """C of the next step."""
        return self._steps.max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        self._steps.max_grad_norm = check_clip_norm("max_grad_norm", value)

    @property
    def expected_batch_size(self) -> float:
        """B, of which Opacus cuts off what is after the point."""
        return self._steps.expected_batch_size

    @property
    def is_between_parts(self) -> bool:
        """Whether the step of a batch that comes in parts is still to be taken."""
        return self._steps.is_between_parts

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What a GradScaler asks before a step."""
        raise UnsupportedModel(
            "optimizer.step() must be called by the loop, got an enabled GradScaler. Gradients of examples are clipped "
            "by their true norms: leave the scaler out, or make it with enabled=False, and put autocast with bfloat16 "
            "into the model's forward"
        )

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that the user's optimiser has."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the user's optimiser."""
        return self.original_optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.original_optimizer.param_groups = value

    @property
    def state(self) -> Any:
        """That of the user's optimiser."""
        return self.original_optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.original_optimizer.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        """Those of the user's optimiser."""
        return self.original_optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.original_optimizer.defaults = value

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One private step with the batch just drawn; of a part of one, not the last, nothing moves yet. Returns what
        ``closure`` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._steps.step()
        return loss

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the private optimizer has no {name}: it has param_groups, state, step and zero_grad of torch, and "
            "noise_multiplier, max_grad_norm and expected_batch_size of Opacus. There are no gradients of examples to "
            "be seen or hooked: clipping and noise are done in step(). For steps of several parts take "
            "BatchMemoryManager"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad``, where the noisy mean never stays."""
        self.original_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """That of the user's optimiser."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the user's optimiser."""
        self.original_optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return repr(self.original_optimizer)


class PrivateLoader:
    """Poisson batches of the user's data: as many in a pass as its loader had; a batch may be empty.

    Attributes:
        dataset: the user's data.
        sample_rate: probability that an example is in a batch.
    """

    def __init__(self, loader: DataLoader[Any], steps: Loop, most: int | None = None) -> None:
        self.dataset, self._loader, self._steps, self._most = loader.dataset, loader, steps, most
        self.sample_rate = 1 / len(loader)
        self.batch_size, self.collate_fn, self.num_workers = (
            loader.batch_size,
            loader.collate_fn,
            loader.num_workers,
        )

    def __len__(self) -> int:
        parts = 1 if self._most is None else max(1, math.ceil(self._steps.expected_batch_size / self._most))
        return len(self._loader) * parts

    def __iter__(self) -> Iterator[Batch]:
        return self._steps.epoch(self._most)

    def in_parts(self, most: int) -> "PrivateLoader":
        """The same batches, in parts of at most so many rows."""
        self._steps.in_parts(most)
        return PrivateLoader(self._loader, self._steps, most)

    def made_for(self, optimizer: PrivateOptimizer) -> bool:
        """Whether both are of one training."""
        return optimizer._steps is self._steps


class BatchMemoryManager:
    """Large batches in parts of at most ``max_physical_batch_size`` rows, for little memory; one step a batch.

    The loop sees the parts, and calls ``optimizer.step()`` for each; weights move, noise is added and a release is
    recorded once a batch. All parts of a batch must compute the same loss.

    Args:
        data_loader: from `PrivacyEngine.make_private`.
        max_physical_batch_size: >= 1.
        optimizer: of the same training.
    """

    def __init__(
        self, *, data_loader: PrivateLoader, max_physical_batch_size: int, optimizer: PrivateOptimizer
    ) -> None:
        check_instance("data_loader", data_loader, PrivateLoader, "make_private returns one")
        check_instance("optimizer", optimizer, PrivateOptimizer, "make_private returns one")
        if not data_loader.made_for(optimizer):
            raise InvalidValue(
                "data_loader and optimizer must be of one make_private, got two of different ones. "
                "Give both that it returned"
            )
        most = check_integer("max_physical_batch_size", max_physical_batch_size, at_least=1)
        self._loader, self._most = data_loader, most

    def __enter__(self) -> PrivateLoader:
        return self._loader.in_parts(self._most)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""
