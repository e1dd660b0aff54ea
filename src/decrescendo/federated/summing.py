"""The sum of a round's updates, exact: the order of the replies does not matter, nor does memory grow with them."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from decrescendo.errors import InvalidValue

# Below C by this part: more than float64 can lose in a norm, a product, or the final rounding of the sum.
MARGIN = 2.0**-30
# Honest noise never leaves 8.57 deviations a coordinate, nor sqrt(d) + 40 deviations in norm: exp(-40^2 / 2).
TAIL = 40.0


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """Joint Euclidean norm in float64, without overflow; infinite or not a number if a value is.

    >>> f"{norm_of({'a': torch.tensor([3e200, 4e200], dtype=torch.float64)}):.6g}"
    '5e+200'
    """
    largest = max((float(tensor.detach().abs().max()) for tensor in tensors.values() if tensor.numel()), default=0.0)
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    if not finite:
        return math.nan
    if largest == 0:
        return 0.0
    parts = [(tensor.detach().double() / largest).square().sum() for tensor in tensors.values()]
    return largest * math.sqrt(sum(float(part) for part in parts))


class ExactSum:
    """A sum of bounded tensors as whole multiples of a small power of two, in 64-bit integers.

    Additions of whole numbers are exact, so the sum does not depend on the order of the replies, one reply moves it
    by what it holds and not by the rounding of others, and nothing but the sum is kept.

    Args:
        shapes: of the parameters, by name.
        limit: > 0, of the size of one coordinate of one part.
        parts: the most that will be added, a public number.

    >>> total = ExactSum({"w": torch.Size([2])}, limit=1.0, parts=10)
    >>> total.add({"w": torch.tensor([0.5, -0.25])}); total.add({"w": torch.tensor([0.5, 1.0])})
    >>> total.value()["w"]
    tensor([1.0000, 0.7500], dtype=torch.float64)
    """

    def __init__(self, shapes: Mapping[str, torch.Size], limit: float, parts: int) -> None:
        bits = min(46, 61 - parts.bit_length())
        if bits < 24:
            raise InvalidValue(f"a sum must have fewer than 2^37 parts, got {parts}. Are these clients?")
        self._unit = 2.0 ** (math.frexp(limit)[1] - bits)
        self._total = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}

    def add(self, part: Mapping[str, Tensor], factor: float = 1.0) -> None:
        """Add ``factor`` times ``part``, each coordinate rounded towards zero: no norm grows. All of it, or nothing
        where memory runs out."""
        whole = {
            name: part[name].detach().to("cpu", torch.float64).mul(factor).div_(self._unit).trunc_().to(torch.int64)
            for name in self._total
        }
        for name, total in self._total.items():
            total.add_(whole[name])

    def value(self) -> dict[str, Tensor]:
        """The sum in float64."""
        return {name: total.double().mul_(self._unit) for name, total in self._total.items()}
