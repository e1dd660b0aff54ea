"""What outlives a step: nothing that was made of its batch may come there but by the recorded loss."""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from decrescendo.base.torch_private import is_wrapped_by_transform
from decrescendo.errors import PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.outputs import tree_leaves
from decrescendo.integrations.opacus.recorded import check_functions
from decrescendo.training.processes.bits import fingerprint

BY_ITSELF = "The gradients of examples are taken by the clipping engine, of the loss alone"
BACKWARDS = (Tensor.backward, torch.autograd.backward)


class Watched:
    """Tensors of the loop's own among the arguments of a call, to see which of them it writes into.

    torch counts what is written into a tensor, but not running statistics (`native_batch_norm`): vectors without
    gradients, whose bits are compared.

    Args:
        tensors: by their ids.
        state: of the private model.
        inside: whether its pass makes the call, after which its buffers are restored.
    """

    def __init__(self, tensors: dict[int, Tensor], state: ModelState, *, inside: bool) -> None:
        self._state, self._inside = state, inside
        self._versions = [(one, one._version) for one in tensors.values()]
        self._codes = {
            place: fingerprint(one)
            for place, one in tensors.items()
            if one.dim() == 1 and not one.requires_grad and not (inside and place in state.tensors)
        }

    def written(self, name: str) -> Iterator[Tensor]:
        """Those that the function of this name has written into, if they may be.

        Raises:
            UnsupportedModel: one is the private model's, or keeps running statistics.
        """
        for one, version in self._versions:
            code, is_counted = self._codes.get(id(one)), one._version != version
            if not is_counted and (code is None or fingerprint(one) == code):
                continue
            own = self._state.owns(one)
            if own and self._inside:
                continue
            if own or not is_counted:
                _refused_write(name, own=own)
            yield one


def check_transforms(tree: Any) -> None:
    """Refuse tensors inside of a transform of ``torch.func``, whose gradients nobody records."""
    if any(isinstance(leaf, Tensor) and is_wrapped_by_transform(leaf) for leaf in tree_leaves(tree)):
        raise UnsupportedModel(
            "torch.func must be called inside of the model, got one of its transforms in the loop. The gradients of "
            "examples are taken by the clipping engine, of the loss alone"
        )


def loss_of(
    loss: Any, gradient: Any = None, retain_graph: bool | None = None,
    create_graph: bool = False, inputs: Any = None, grad_tensors: Any = None,
) -> Any:  # fmt: skip
    """The loss of a call of ``backward``, by the arguments of either of torch's two functions."""
    del retain_graph
    losses: list[Any] = [loss] if isinstance(loss, Tensor) else list(loss)
    others = (gradient, grad_tensors, inputs)
    if len(losses) > 1 or create_graph or any(one is not None for one in others):
        raise PlanViolation(
            f"loss.backward() must be called of one loss, without gradient, create_graph and inputs. {BY_ITSELF}"
        )
    check_functions(losses[0])
    return losses[0]


def refused_backward() -> NoReturn:
    """Refuse gradients of another loss than the step's."""
    raise UnsupportedModel(
        "values of a batch must go into the loss of its step alone, got a backward() of them after optimizer.step(). "
        "What it trains or weighs, in another model or in this one, would come from private data without clipping "
        "and noise: train it on public data first, or make it a part of the private model and its loss"
    )


def _refused_write(name: str, *, own: bool) -> NoReturn:
    """Refuse values of a batch in weights and buffers."""
    where = "a weight or buffer of the private model" if own else "running statistics of another model"
    raise UnsupportedModel(
        f"values of a batch must go into the loss of its step alone, got them written into {where} by {name}, where "
        "they would be kept, or published, without clipping and noise. Call eval() of BatchNorm and its like before "
        "the batch is given to it, and set buffers and statistics from public data before the training"
    )


def check_no_autocast(device: torch.device) -> None:
    """Refuse `torch.autocast` around what a loop computes.

    Raises:
        UnsupportedModel: it is on.
    """
    if torch.is_autocast_enabled(device.type):
        raise UnsupportedModel(
            "the loss must be computed without torch.autocast in the loop, got autocast round it. Put autocast into "
            "the model's forward"
        )
