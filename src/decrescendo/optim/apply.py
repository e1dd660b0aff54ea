"""Puts a noisy mean into ``.grad`` for one step of any ``torch.optim`` optimiser: the only way to the weights."""

import functools
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import nn

from decrescendo.clipping.clipped import trainable_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import InvalidType, InvalidValue, check_instance
from decrescendo.optim.noise import NoisyMean
from decrescendo.optim.noise_aware import as_noise_aware
from decrescendo.optim.several import as_one, name_of, parts_of


def apply(
    noisy: NoisyMean,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> None:
    """Let ``optimizer`` step on the noisy mean: sets every ``.grad``, steps, and clears ``.grad`` again.

    A list of optimisers, each over its own parameters, is taken as `Several`.

    Guarantee:
        post-processing of a release: any optimiser state and learning rate keep the guarantee. A gradient
        left in a ``.grad`` by someone's ``backward()`` is private; it is overwritten for trained parameters
        and refused for frozen ones, so that no step can use it.

    Edge cases:
        everything is checked before anything changes; frozen parameters may be in the optimiser and are not
        moved; an optimiser that knows about noise (`NoiseAware`) is told how much there is, for this step only.

    Raises:
        InvalidType: ``noisy`` is no `NoisyMean` (a `ClippedSum` has no noise yet), or an optimiser that
            calls a closure (LBFGS) or wants sparse gradients (SparseAdam).
        InvalidValue: names or shapes that are not those of the model's trainable parameters, or an optimiser
            that holds other parameters than the model's or misses some; an optimiser that must know the noise
            of a mean that does not say it.

    >>> import torch
    >>> from decrescendo.accounting.release import Release
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(1.0)
    >>> noisy = NoisyMean({"weight": torch.tensor([[0.5]])}, Release(0.01, 1.0))
    >>> apply(noisy, model, torch.optim.SGD(model.parameters(), lr=1.0))
    >>> model.weight.item(), model.weight.grad
    (0.5, None)
    """
    check_instance("noisy", noisy, NoisyMean, "privatise(clipped, ...) makes one from a ClippedSum")
    one: torch.optim.Optimizer = as_one(optimizer)
    fill_gradients(noisy, model, one)
    try:
        one.step()
    finally:
        clear_gradients(model, one)


def fill_gradients(noisy: NoisyMean, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Set every ``.grad`` to the noisy mean, for a loop that calls ``optimizer.step()`` and `clear_gradients` itself.

    Everything is checked before anything changes; see `apply` for the guarantee and the errors.

    >>> import torch
    >>> from decrescendo.accounting.release import Release
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> noisy = NoisyMean({"weight": torch.tensor([[0.5]])}, Release(0.01, 1.0))
    >>> fill_gradients(noisy, model, torch.optim.SGD(model.parameters(), lr=1.0))
    >>> model.weight.grad
    tensor([[0.5000]])
    """
    check_instance("noisy", noisy, NoisyMean, "privatise(clipped, ...) makes one from a ClippedSum")
    check_instance("model", model, nn.Module)
    held = Inventory.of(model)
    parameters = trainable_of(held)
    check_optimizer(optimizer, held, parameters)
    _check_names(noisy, parameters)
    told = as_noise_aware(optimizer)
    if told is not None and noisy.noise_std is None:
        raise InvalidValue(
            f"the noise of a mean must be known to {name_of(optimizer)}, got noise_std=None. "
            "Take means from privatise(clipped, ...), which says it"
        )
    try:
        for name, parameter in parameters.items():
            parameter.grad = noisy.gradients[name].to(parameter)
        if told is not None:
            told.expect_noise(noisy.noise_std)
    except BaseException:
        clear_gradients(model, optimizer)
        raise


def clear_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clear ``.grad`` of all trainable parameters, and the noise that the optimiser was told for one step."""
    told = as_noise_aware(optimizer)
    if told is not None:
        told.expect_noise(None)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = None


def _check_names(noisy: NoisyMean, parameters: dict[str, nn.Parameter]) -> None:
    missing = sorted(parameters.keys() - noisy.gradients.keys())
    unknown = sorted(noisy.gradients.keys() - parameters.keys())
    if missing or unknown:
        raise InvalidValue(
            "noisy.gradients must name the model's trainable parameters, each once, "
            f"got missing={missing} unknown={unknown}. Was it made from another model, or was a parameter "
            "frozen in between?"
        )
    for name, parameter in parameters.items():
        shape = noisy.gradients[name].shape
        if shape != parameter.shape:
            raise InvalidValue(
                f"a gradient must have its parameter's shape, got {name} of {tuple(shape)} "
                f"for {tuple(parameter.shape)}. Was it made from another model?"
            )


def check_optimizer(optimizer: torch.optim.Optimizer, model: Inventory, parameters: dict[str, nn.Parameter]) -> None:
    """Refuse an optimiser that could not step on a noisy mean of this model."""
    check_instance("optimizer", optimizer, torch.optim.Optimizer)
    for part in parts_of(optimizer):
        _check_kind(part)
    held = {id(tensor): tensor for group in optimizer.param_groups for tensor in group["params"]}
    everything = {id(parameter): name for name, parameter in model.parameters.items()}
    # (A frozen parameter that the model has replaced since then does not move.)
    strangers = sum(
        key not in everything and (tensor.requires_grad or tensor.grad is not None) for key, tensor in held.items()
    )
    if strangers:
        raise InvalidValue(
            f"optimizer must hold parameters of this model only, got {strangers} others. "
            "Build it from model.parameters()"
        )
    missing = sorted(name for name, parameter in parameters.items() if id(parameter) not in held)
    if missing:
        raise InvalidValue(
            f"optimizer must hold every trainable parameter, got missing={missing}. "
            "Noise would be paid for and not used: add them, give the other optimizer too (optimizer=[muon, adamw]), "
            "or freeze them with requires_grad_(False)"
        )
    stale = sorted(
        everything[key] for key, tensor in held.items() if not tensor.requires_grad and tensor.grad is not None
    )
    if stale:
        raise InvalidValue(
            f"frozen parameters must have .grad None, got a gradient on {stale}. "
            "The optimiser would step on it; call optimizer.zero_grad()"
        )


def _check_kind(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    if _needs_closure(type(optimizer).step):
        raise InvalidType(
            f"optimizer must step on a given gradient, got {kind}, which evaluates the loss again by a "
            "closure. "
            "Each evaluation would be another release; use a first-order optimiser"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise InvalidType(f"optimizer must take dense gradients, got {kind}: noise is dense. Use torch.optim.Adam")


@functools.lru_cache(maxsize=64)
def _needs_closure(step: Callable[..., object]) -> bool:
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
