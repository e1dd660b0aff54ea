"""The tensors that clients and aggregators send: of the right names, types and shapes, copied before they are checked.

A tensor may lie in memory that another process writes to: what is checked must be what is added.
"""

from collections.abc import Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from decrescendo.clipping.clipped import accumulator
from decrescendo.errors import InvalidValue
from decrescendo.federated.verdict import Received, Verdict


@final
class Contents:
    """The tensors that a message must have: one for each of ``parameters``, in its shape.

    Args:
        parameters: the model's, by name; those that are trained.
        wide: whether replies have their own noise, and so are float64; else what sums of the parameter's type are
            held in will do.

    >>> contents = Contents({"weight": nn.Parameter(torch.ones(2))}, wide=False)
    >>> contents.of_reply({"weight": torch.ones(2)})
    {'weight': tensor([1., 1.])}
    >>> contents.of_reply({"weight": torch.ones(3)}).verdict
    <Verdict.SHAPES: 'wrong shapes'>
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, wide: bool) -> None:
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._kinds = {
            name: {torch.float64 if wide else accumulator(parameter.dtype), torch.float64}
            for name, parameter in parameters.items()
        }

    def of_reply(self, tensors: Any) -> dict[str, Tensor] | Received:
        """Copies of what a client sent, or why it is refused whatever round is open."""
        return self._malformed(tensors) or _own(tensors)

    def of_sum(self, total: object) -> dict[str, Tensor]:
        """Copies of a sum: dense real numbers, by the names of the parameters.

        Raises:
            InvalidValue: it is anything else.
        """
        found = cast("Mapping[Any, Any]", total) if isinstance(total, Mapping) else {}
        if set(found) != set(self.shapes) or not all(
            isinstance(value, Tensor)
            and value.layout == torch.strided
            and not (value.is_meta or value.is_nested)
            and value.is_floating_point()
            and torch.finfo(value.dtype).bits >= 16
            and value.shape == self.shapes[name]
            for name, value in found.items()
        ):
            raise InvalidValue(
                "total must have the model's trainable parameters, each once, in their shapes, as dense real tensors"
                f"{_unlike(found, self.shapes)}"
            )
        return _own(found)

    def _malformed(self, tensors: object) -> Received | None:
        if not isinstance(tensors, Mapping) or set(tensors) != set(self.shapes):
            return Received(Verdict.NAMES, "a reply must name the model's trainable parameters, each once")
        for name, shape in self.shapes.items():
            tensor = tensors[name]
            if (
                type(tensor) not in (Tensor, nn.Parameter)  # of another class any number may come out
                or tensor.layout != torch.strided
                or tensor.is_meta
                or tensor.is_nested
                or tensor.dtype not in self._kinds[name]
            ):
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                allowed = " or ".join(sorted(map(str, self._kinds[name])))
                return Received(Verdict.TYPES, f"{name} must be a dense tensor of {allowed}, got {kind}")
            if tensor.shape != shape:
                return Received(Verdict.SHAPES, f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
        return None


def _unlike(found: Mapping[Any, Any], shapes: Mapping[str, torch.Size]) -> str:
    """Which name there is too many or too few, and that no layer may be frozen on the way."""
    names = sorted(map(str, set(found) ^ set(shapes)))
    why = "Which parameters are trained must not change once the training has begun"
    return f", got {'no ' if names[0] in shapes else ''}{names[0]!r}. {why}" if names else ""


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that nobody else can write to."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
