"""A model without batch normalisation, which mixes examples: each becomes a group normalisation."""

from torch import nn

from decrescendo.base.torch_private import BatchNorm, LazyNorm
from decrescendo.errors import InvalidValue, UnsupportedModel, check_instance, check_integer

# A group has at least so many channels, where there are as many.
_CHANNELS = 4


def without_batch_norm(model: nn.Module, *, groups: int = 8) -> nn.Module:
    """The model with each BatchNorm replaced by a GroupNorm of few groups, in place.

    BatchNorm computes its statistics over the examples of a batch, so no example's gradient is its own. GroupNorm
    computes them within one example, over the channels of a group. Weight and bias of each layer are carried over:
    they are the same ``nn.Parameter`` objects, so an optimiser that has them stays right. Running statistics are
    dropped.

    A group has several channels always. GroupNorm with *one* channel a group erases the columns of a table: for inputs
    of shape (N, C) each group is then one number, which is its own mean, and every row comes out as the bias. With a
    few columns a group much of each row is lost in the same way; raw columns of a table are better scaled by public
    constants.

    Args:
        model: changed in place; may be a BatchNorm itself.
        groups: the most groups of one layer, >= 1. Their number divides the layer's channels, and each has at least 4
            channels where the layer has as many.

    Returns:
        the model; the new layer if the model is a BatchNorm itself.

    Raises:
        InvalidValue: ``groups`` below 1, or a lazy layer that has no shape yet.
        UnsupportedModel: a BatchNorm with code of its own (a fused activation), or one of (N, C) inputs with a single
            channel, of which nothing would be left.

    >>> model = without_batch_norm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()))
    >>> type(model[1]).__name__, model[1].num_groups
    ('GroupNorm', 8)
    >>> without_batch_norm(nn.BatchNorm1d(6)).num_groups
    1
    """
    check_instance("model", model, nn.Module)
    most = check_integer("groups", groups, at_least=1)
    found = {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm)}
    made = {
        id(module): _group_norm(name, module, most) for name, module in found.items()
    }  # before any is replaced
    if isinstance(model, BatchNorm):
        return made[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # a layer used twice is replaced twice, by one
            if child is not None and id(child) in made:
                parent._modules[name] = made[id(child)]
    return model


def _group_norm(name: str, layer: BatchNorm, most: int) -> nn.GroupNorm:
    where, kind = name or "the model", type(layer)
    if isinstance(layer, LazyNorm):
        raise InvalidValue(
            f"layers must have their shapes, got {where} ({kind.__name__}). Call the model once, on rows that are made "
            "up"
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
