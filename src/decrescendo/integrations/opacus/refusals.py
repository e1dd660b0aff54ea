"""Arguments of Opacus that mean something else here, each refused in a sentence."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from decrescendo.clipping.clipped import trainable
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel, check_instance

_REASONS = {
    "batch_first": (True, "dimension 0 of every tensor counts the examples: transpose in the model"),
    "loss_reduction": (
        "mean",
        "the noisy sum is divided by the expected batch size: take 'mean', and so many times the learning rate",
    ),
    "poisson_sampling": (True, "no accountant here has a theorem for shuffled batches: leave it out"),
    "clipping": ("flat", "each example is clipped by the norm of all its gradients together: leave it out"),
    "noise_generator": (None, "noise has a stream of its own: leave it out, or take secure_mode=True"),
    "wrap_model": (True, "the loop must call the model that is returned: leave it out"),
    "rand_on_empty": (False, "a batch of no rows has none: leave it out"),
}
_MODES = ("hooks", "ghost")


def check_arguments(grad_sample_mode: object, *others: object) -> None:
    """Refuse what means something else here; ``others``: those of `_REASONS`, in its order.

    Raises:
        InvalidValue: the argument, and what to do.
    """
    for (name, (wanted, reason)), got in zip(_REASONS.items(), others, strict=True):
        if got is not wanted and got != wanted:
            raise InvalidValue(f"{name} must be {wanted!r}, got {name}={got!r}: {reason}")
    if grad_sample_mode not in _MODES:
        raise InvalidValue(
            f"grad_sample_mode must be one of {_MODES}, got grad_sample_mode={grad_sample_mode!r}: the engine "
            "chooses the method for each operation. Leave it out"
        )


def check_module(module: object, optimizer: object) -> None:
    """A model that is trained in one process, and its optimiser."""
    check_instance("module", module, nn.Module)
    check_instance("optimizer", optimizer, torch.optim.Optimizer)
    if isinstance(module, (DataParallel, DistributedDataParallel)):
        raise UnsupportedModel(
            f"module must be the model itself, got it in {type(module).__name__}. For several processes take "
            "decrescendo.train with decrescendo.distributed.join"
        )
    if isinstance(module, nn.Module):
        trainable(module)


def check_loader(loader: Any) -> None:
    """A loader whose data can be drawn from by number, and of which nothing is left aside without a word."""
    check_instance("data_loader", loader, DataLoader)
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidType(
            "data_loader must have data by number, got an IterableDataset. Poisson batches draw any of them at any "
            "time: make a map-style data set"
        )
    if type(loader.batch_sampler) is not BatchSampler or type(loader.sampler) not in (
        RandomSampler,
        SequentialSampler,
    ):
        own = loader.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler
        raise InvalidValue(
            f"data_loader must have torch's own sampler, got {type(own).__name__}, whose choice would be dropped for "
            "Poisson batches at one rate. Leave it out; for rates by class: decrescendo.plans.StratifiedPoissonSampling"
        )
    if isinstance(loader.sampler, RandomSampler) and (
        loader.sampler.replacement or loader.sampler._num_samples is not None
    ):
        raise InvalidValue(
            "data_loader must draw each example once a pass, got a RandomSampler with replacement or num_samples, "
            "which would be dropped for Poisson batches. Leave it out"
        )
    if len(loader) < 1:
        raise InvalidValue("data_loader must have at least one batch, got none. Is drop_last left on small data?")
