"""Averages of the weights over the steps of a run, by torch's own `AveragedModel`: post-processing, without cost."""

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from decrescendo.errors import check_instance, check_real


def averaged(model: nn.Module, *, decay: float | None = None) -> AveragedModel:
    """A second model that will hold an average of ``model``'s weights; its first update copies them.

    Args:
        model: copied, never changed.
        decay: d in (0, 1) for the exponential average a_t = d a_{t-1} + (1 - d) w_t; ``None`` for the uniform average
            of all updates.

    Returns:
        torch's ``AveragedModel``; the copy to evaluate and to save, with the model's own names, is its ``module``.

    Guarantee:
        post-processing of the released weights: it costs no privacy. Buffers are the model's latest.

    Raises:
        InvalidType: no module. InvalidValue: a decay outside (0, 1).

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = averaged(model, decay=0.9)
    >>> for weight in (1.0, 2.0):
    ...     _ = model.weight.data.fill_(weight)
    ...     average.update_parameters(model)
    >>> round(average.module.weight.item(), 6)
    1.1
    """
    check_instance("model", model, nn.Module)
    if decay is None:
        return AveragedModel(model)
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(check_real("decay", decay, above=0, below=1)))
