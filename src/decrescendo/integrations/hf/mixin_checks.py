"""What a private trainer of Hugging Face is asked before it trains, and what it logs of telemetry."""

import inspect
from collections.abc import Sequence
from typing import Any

from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Loss
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.integrations.hf.losses import loss as own_tokens
from decrescendo.training.steering.reading import Reading, smoothed

PUBLIC_EVAL = assumed("eval-data-public")


# Classes whose ``compute_loss`` is the model's own loss (``object`` has none).
_OWN_LOSS = ("Trainer", "SFTTrainer", "object")


def check_class(kind: type, loss: Loss, mixin: type) -> None:
    """Step and batches are the mixin's, and no loss, sampler or input of a subclass is left aside without a word."""

    def first(name: str) -> Any:
        return next((base for base in kind.__mro__ if name in vars(base)), kind.__mro__[-1])

    for name, why in (
        ("training_step", "it would train without privacy"), ("get_train_dataloader", "the plan draws the batches"),
    ):  # fmt: skip
        if first(name) is not mixin:
            raise InvalidType(
                f"{name} must be PrivateMixin's, got {first(name).__name__}'s: {why}. Name PrivateMixin first among "
                "the bases of the class, and look at steps from a callback"
            )
    for name in ("_prepare_inputs", "_prepare_input", "compute_loss_context_manager", "get_batch_samples"):
        if not _is_library(first(name)):
            raise InvalidType(
                f"{name} must be the library's own, got {first(name).__name__}'s: private steps would not call it. "
                "Change the inputs in the data set or the collator, or in a loss: follow(plan, loss=..)"
            )
    sampler, computed = first("_get_train_sampler"), first("compute_loss")
    if not _is_library(sampler):
        raise InvalidType(
            f"_get_train_sampler must be the library's own, got {sampler.__name__}'s: the plan draws the batches, and "
            "would not ask it. For classes or sources at rates of their own give the plan a StratifiedPoissonSampling"
        )
    if loss is own_tokens and not (_is_library(computed) and computed.__name__ in _OWN_LOSS):
        raise InvalidType(
            f"compute_loss must be Trainer's or SFTTrainer's, got {computed.__name__}'s: it returns one number for a "
            "batch, and steps would not use it. Give follow(plan, loss=..) one that returns a loss per example"
        )


def check_order(arguments: Any, people: object, strata: object) -> None:
    """Rows that the trainer has moved are not told apart by their place."""
    if (people is not None or strata is not None) and getattr(arguments, "shuffle_dataset", False):
        raise InvalidValue(
            "shuffle_dataset must be False with people= or strata=, which say whose each row is by its place in the "
            "given data; batches are random in any order. Got shuffle_dataset=True"
        )


def _is_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("transformers", "trl", "builtins")


def told(readings: Sequence[Reading]) -> dict[str, float]:
    """What stands in a trainer's log of the telemetry of these steps: means over them."""
    found: dict[str, float] = {}
    for name in readings[-1].shown() if readings else ():
        if (mean := smoothed(readings, name, window=len(readings))) is not None:
            found |= {
                f"telemetry_{name}": mean.value,
                f"telemetry_{name}_standard_error": mean.standard_error,
            }
    return found


def given(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, also those given by place."""
    try:
        found = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    except TypeError:  # the function itself says what is wrong
        found = dict[str, Any]()
    return {**found, **kwargs}
