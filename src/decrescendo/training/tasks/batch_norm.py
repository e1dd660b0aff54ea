"""Replaces BatchNorm, which mixes examples, by GroupNorm, which is independent per example."""

from torch import nn

from decrescendo.base.torch_private import BatchNorm, LazyNorm
from decrescendo.errors import InvalidValue, UnsupportedModel, check_instance, check_integer

# Minimum number of channels per group, if the layer has that many.
_CHANNELS = 4


def without_batch_norm(model: nn.Module, *, groups: int = 8) -> nn.Module:
    """Replace each BatchNorm of a model by a GroupNorm with few groups, in place.

    BatchNorm computes its statistics over the examples of a batch, so each example's gradient depends on the
    other examples. GroupNorm computes them within one example, over the channels of a group. Weight and bias
    of each layer are carried over: they are the same ``nn.Parameter`` objects, so an optimiser that has them
    remains valid. Running statistics and hooks of the replaced layers are dropped.

    A group has more than one channel, unless a 2d or 3d layer has only one. GroupNorm with *one* channel per
    group erases the columns of a table: for inputs of shape (N, C) each group is then one number, which is its
    own mean, and every row comes out as the bias. With few columns per group much of each row is lost in the
    same way; raw columns of a table are better scaled by public constants.

    Args:
        model: changed in place; may be a BatchNorm itself.
        groups: the largest number of groups of a layer, >= 1. The number used divides the layer's channels,
            and each group has at least 4 channels if the layer has that many.

    Returns:
        the model; the new layer if the model is a BatchNorm itself.

    Raises:
        InvalidValue: ``groups`` below 1, or a lazy layer that has no shape yet.
        UnsupportedModel: a BatchNorm with code of its own (a fused activation), or one of (N, C) inputs with a single
            channel, whose output would be constant.

    >>> model = without_batch_norm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()))
    >>> type(model[1]).__name__, model[1].num_groups
    ('GroupNorm', 8)
    >>> without_batch_norm(nn.BatchNorm1d(6)).num_groups
    1
    """
    check_instance("model", model, nn.Module)
    most = check_integer("groups", groups, at_least=1)
    found = {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm)}
    made = {id(module): _group_norm(name, module, most) for name, module in found.items()}  # before any is replaced
    if isinstance(model, BatchNorm):
        return made[id(model)]
    for parent in list(model.modules()):
        # A shared layer is replaced at each use by the same GroupNorm.
        for name, child in parent._modules.items():
            if child is not None and id(child) in made:
                parent._modules[name] = made[id(child)]
    return model


def _group_norm(name: str, layer: BatchNorm, most: int) -> nn.GroupNorm:
    where, kind = name or "the model", type(layer)
    if isinstance(layer, LazyNorm):
        raise InvalidValue(
            f"layers must have their shapes, got {where} ({kind.__name__}). Call the model once, on dummy rows"
        )
    if kind.forward not in (BatchNorm.forward, nn.SyncBatchNorm.forward):
        raise UnsupportedModel(
            f"a BatchNorm to be replaced must be torch's own, got {where} ({kind.__name__}), whose forward does "
            "something else as well. Replace it by a class of your own that normalises with nn.GroupNorm"
        )
    channels = layer.num_features
    if channels == 1 and isinstance(layer, nn.BatchNorm1d):
        raise UnsupportedModel(
            f"a group must have several channels, got {where} with num_features=1: each row would come out as the "
            "bias. Take the layer out, and scale that column by public constants"
        )
    count = max(
        number
        for number in range(1, min(most, channels) + 1)
        if channels % number == 0 and (number == 1 or channels // number >= _CHANNELS)
    )
    made = nn.GroupNorm(count, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)
