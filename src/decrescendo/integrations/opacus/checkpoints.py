"""Checkpoints as Opacus writes them: read without running code that is in them."""

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, NoReturn, final

import torch

from decrescendo.errors import FileRefused, InvalidValue, PlanViolation

_PARTS = ("module_state_dict", "privacy_accountant_state_dict")


def written(content: dict[str, Any], path: Any, how: dict[str, Any]) -> None:
    """``content`` at ``path``, by `torch.save`."""
    torch.save(content, path, **how)


def read(path: Any, how: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint.

    Raises:
        FileRefused: another file, or one that holds other objects than tensors, numbers and texts.
    """
    if "weights_only" in how and not how["weights_only"]:
        raise InvalidValue(
            "a checkpoint must be read with weights_only=True, got False in torch_load_kwargs. A file may run any "
            "code otherwise: leave it out"
        )
    try:
        content: Any = torch.load(path, weights_only=True, **{key: how[key] for key in how if key != "weights_only"})
    except (UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise FileRefused(
            "a checkpoint must hold tensors, numbers and texts alone, got another file or other objects "
            f"({type(error).__name__}). Save a state_dict() in place of an object"
        ) from error
    missing = [part for part in _PARTS if not isinstance(content, dict) or part not in content]
    if missing:
        raise FileRefused(
            f"a checkpoint must have {_PARTS[0]} and {_PARTS[1]}, got none of {missing[0]}. Give one that "
            "save_checkpoint wrote"
        )
    return content


@final
class Unsaved:
    """A function that no file takes: a private module that is saved whole is refused by it. Copies share it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()

    def __deepcopy__(self, memo: object) -> "Unsaved":
        return self

    def __reduce__(self) -> NoReturn:
        raise PlanViolation(
            "a private model must not be saved whole, got a request for it. Save model.state_dict(), or "
            "model._module, which is your own model"
        )
