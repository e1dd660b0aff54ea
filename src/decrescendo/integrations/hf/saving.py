"""What saving a model of transformers writes into its configuration: done before the first pass, not between two."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from torch import nn


def configure(model: nn.Module) -> None:
    """Give the model's configuration the names that ``save_pretrained`` gives it: its class and its dtype.

    A training that saves would find its model changed between two steps, and its run would say so.

    >>> configure(nn.Linear(1, 1))
    """
    config: Any = getattr(model, "config", None)
    is_adapted = hasattr(model, "peft_config")  # saves adapters, and leaves the configuration alone
    if config is None or is_adapted or not hasattr(model, "save_pretrained"):
        return
    known = cast("Any", model)
    config.dtype = str(known.dtype).removeprefix("torch.")
    config.architectures = [type(model).__name__]


@contextmanager
def saving(model: nn.Module) -> Generator[None]:
    """Inside the model is saved: where its configuration gets an equal list of names, it keeps the one it has.

    >>> with saving(nn.Linear(1, 1)):
    ...     pass
    """
    config: Any = getattr(model, "config", None)
    names = getattr(config, "architectures", None)
    yield
    if names is not None and config.architectures == names:
        config.architectures = names
