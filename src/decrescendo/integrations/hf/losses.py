"""One loss per example from a Hugging Face model: the model's own loss of that example alone."""

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import count_of_dispatch_modes
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.each_row import PerExample
from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue, UnsupportedModel

# Parts of names of arguments that models take for what they are to learn.
_LABELS = ("label", "positions", "target")
# Ends of the names of outputs that balance experts over all tokens of a batch.
_BALANCES = ("aux_loss", "z_loss")
# Of values, alone and in a batch of two: in float32, on a device that may round its products, in half precision.
_CLOSE, _ROUNDED, _HALF = 1e-4, 1e-3, 5e-2
_OWN = "write a loss of your own, one value per example from model(**inputs)"


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The model's own loss of each example: ``loss(model, batch)[i]`` is ``model(**row_i).loss``, row i alone.

    The model is called with its labels, as a trainer calls it, so what it makes of them (shifted labels, inputs of a
    decoder, a prompt's places) is its own. Where it would average over the batch, each example's mean is taken over
    its own places.

    Args:
        model: any model of ``transformers`` that takes labels and returns a loss, with adapters of ``peft`` or without.
        batch: what a collator of ``transformers`` makes: tensors by name with a row per example, labels among them.

    Edge cases:
        an example of which no token counts has a loss of zero, where the model's own would be NaN; a loss that is not
        each example's own (of contrast, of balance between experts) is refused: in a private pass by the proof, and
        elsewhere the first and the last row are passed alone and compared, without their dropout.

    Raises:
        InvalidType: a batch without labels, or with something in it that has no rows.
        InvalidValue: tensors that do not have a row for each example.
        UnsupportedModel: a model that returns no loss, or one that is not each example's own.

    >>> import torch
    >>> class Classifier(nn.Module):
    ...     def forward(self, x, labels):
    ...         return {"logits": x, "loss": nn.functional.cross_entropy(x, labels)}
    >>> x = torch.zeros(2, 4)
    >>> loss(Classifier(), {"x": x, "labels": torch.tensor([0, 3])})
    tensor([1.3863, 1.3863])
    """
    return _checked(model, batch)[0]


def loss_and_accuracy(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """`loss`, and beside it whether the class with the largest logit is the label: for ``Telemetry(accuracy=True)``.

    Raises:
        UnsupportedModel: a model that returns no logits of shape (examples, classes) for one label per example.

    >>> import torch
    >>> class Classifier(nn.Module):
    ...     def forward(self, x, labels):
    ...         return {"logits": x, "loss": nn.functional.cross_entropy(x, labels)}
    >>> loss_and_accuracy(Classifier(), {"x": torch.eye(2), "labels": torch.tensor([0, 0])})[1]
    tensor([ True, False])
    """
    each, output, inputs = _checked(model, batch)
    fields: object = output if isinstance(output, Mapping) else vars(output)
    logits = cast("Mapping[str, object]", fields).get("logits")
    labels = next((value for name, value in inputs.items() if name in ("labels", "label")), None)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or labels is None or labels.dim() != 1:
        raise UnsupportedModel(
            f"a model must return logits of shape (examples, classes) for one label per example, got another kind from "
            f"{_name(model)}. Give follow(plan, loss=..) a loss of your own that returns (losses, scores)"
        )
    return each, logits.argmax(dim=1) == labels


def _checked(model: nn.Module, batch: Batch) -> tuple[Tensor, object, dict[str, Any]]:
    inputs, rows = _inputs(batch)
    each, output = _each(model, inputs, rows)
    if rows > 1 and not count_of_dispatch_modes():
        _check_alone(model, inputs, rows)
    return each, output, inputs


def _inputs(batch: Batch) -> tuple[dict[str, Any], int]:
    """The arguments of the model, and how many examples they hold."""
    if not isinstance(batch, Mapping):
        raise InvalidType(
            f"a batch must be a mapping with labels, got {type(batch).__name__}. Use a collator of transformers"
        )
    inputs = {str(key): value for key, value in cast("Mapping[str, Any]", batch).items() if value is not None}
    for key, value in inputs.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            raise InvalidType(
                f"a batch must hold tensors with a row per example, got {key} as {type(value).__name__}. Boxes and "
                "masks in lists are matched over the whole batch, return_loss compares its examples with each other, "
                f"and settings belong into model.config: {_OWN}"
            )
    sizes = {key: len(value) for key, value in inputs.items()}
    rows = next(iter(sizes.values()), 0)
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{key}={size}" for key, size in sizes.items())
        raise InvalidValue(
            f"every tensor of a batch must have one row per example, got rows {shown}. Give tensors that have "
            f"(position_ids with the examples first, images of one size), or {_OWN}"
        )
    return inputs, rows


def _each(model: nn.Module, inputs: dict[str, Any], rows: int) -> tuple[Tensor, object]:
    """One loss per example, from one forward pass, and what the model returned."""
    _check_taken(model, inputs)
    mode = PerExample(rows)
    try:
        with problem_type_kept(model), mode:
            output = model(**inputs)
    except (DecrescendoError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not mode.met:
            raise
        raise UnsupportedModel(
            f"a model must take its loss as one value per example, but {_name(model)} does with it what one number "
            f"alone allows ({type(error).__name__}). It is not each example's own: {_OWN}"
        ) from error
    _check_balance(model, output)
    found = _loss_of(output)
    if found is None:
        raise _without(model, inputs, output)
    if found.shape != (rows,):
        met = ", ".join(dict.fromkeys(mode.met)) or "no loss function of torch's"
        raise UnsupportedModel(
            f"a model's loss must be a mean over places that belong to one example each, but {_name(model)} returns "
            f"one of shape {tuple(found.shape)} for {rows} examples, from {met}. It is not each example's own: {_OWN}"
        )
    return found, output


def _check_taken(model: nn.Module, inputs: dict[str, Any]) -> None:
    taken = inspect.signature(_base(model).forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return
    left = [name for name in inputs if name not in taken and any(part in name for part in _LABELS)]
    if left:
        raise UnsupportedModel(
            f"a model must take labels and return a loss, but the forward of {_name(model)} takes no {left[0]}. Take "
            f"the class with a head (..ForSequenceClassification), or {_OWN}"
        )


def _check_balance(model: nn.Module, output: object) -> None:
    """Refuse a loss with a part that looks at how all tokens of the batch are spread over experts."""
    fields = cast("Mapping[str, object]", output) if isinstance(output, Mapping) else vars(output)
    for name, value in fields.items():
        if isinstance(value, Tensor) and str(name).endswith(_BALANCES):
            raise UnsupportedModel(
                f"the loss of an example must be its own, but {_name(model)} adds {name}, which balances experts over "
                "all tokens of the batch. Leave it out: model.config.output_router_logits = False (in TRL "
                "router_aux_loss_coef=0.0)"
            )


def _loss_of(output: object) -> Tensor | None:
    found: object = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None and isinstance(output, tuple) and not hasattr(output, "_fields"):
        first: object = cast("tuple[object, ...]", output)[0] if output else None
        found = first if isinstance(first, Tensor) and first.dim() <= 1 else None
    return found if isinstance(found, Tensor) else None


def _without(model: nn.Module, inputs: dict[str, Any], output: object) -> DecrescendoError:
    """Why there is no loss."""
    if not any(part in name for name in inputs for part in _LABELS):
        return InvalidType(
            f"a batch must be a mapping with labels, got {', '.join(inputs)}. Name the column 'labels' (or 'label', "
            "with a collator of transformers); a Trainer drops columns that the model's forward does not take"
        )
    return UnsupportedModel(
        f"a model must return a loss, got {type(output).__name__} without one from {_name(model)}. Take the class "
        f"with a head (..ForSequenceClassification), or {_OWN}"
    )


def _check_alone(model: nn.Module, inputs: dict[str, Any], rows: int) -> None:
    """Refuse a loss that is another one in company: the first and the last row, together and each alone."""
    two = {key: value[[0, rows - 1]] for key, value in inputs.items()}
    with _quietly(model) as began:
        together, _ = _each(model, two, 2)
        drew = not torch.equal(began, torch.get_rng_state())
        for row in (0, 1):
            torch.set_rng_state(began)
            with problem_type_kept(model):
                alone = _loss_of(model(**{key: value[row : row + 1] for key, value in two.items()}))
            if drew or not torch.equal(began, torch.get_rng_state()):
                return  # the model draws random numbers here, too: other ones in company
            if alone is None or not _close(model, together[row], alone):
                raise UnsupportedModel(
                    f"the loss of an example must be the same alone as in a batch, got another one from "
                    f"{_name(model)}: its loss, or its forward pass, compares or mixes the examples of a batch, or has "
                    f"their places in another order. In place of it {_OWN}"
                )


def _close(model: nn.Module, found: Tensor, alone: Tensor) -> bool:
    expected = alone.reshape(()).double()
    if bool(expected.isnan()):  # no token counts
        return True
    dtypes = {value.dtype for value in model.parameters()} - {torch.float32, torch.float64}
    full = _CLOSE if found.device.type == "cpu" else _ROUNDED
    limit = _HALF if dtypes or torch.is_autocast_enabled(found.device.type) else full
    return torch.allclose(found.double(), expected, rtol=limit, atol=limit / 10)


@contextmanager
def _quietly(model: nn.Module) -> Generator[Tensor]:
    """Without dropout and gradients, and with random numbers that nobody else gets; yields where they begin."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {value.device for value in model.parameters() if value.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(list(devices)):
        try:
            model.eval()
            yield torch.get_rng_state()
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def problem_type_kept(model: nn.Module) -> Generator[None]:
    """What Transformers notes of the first labels that a model sees (``config.problem_type``) is taken back."""
    config = getattr(model, "config", None)
    unset = config is not None and getattr(config, "problem_type", "") is None
    try:
        yield
    finally:
        if unset:
            cast("Any", config).problem_type = None


def _base(model: nn.Module) -> nn.Module:
    """The model below adapters."""
    return cast("Any", model).get_base_model() if hasattr(model, "get_base_model") else model


def _name(model: nn.Module) -> str:
    return type(_base(model)).__name__
