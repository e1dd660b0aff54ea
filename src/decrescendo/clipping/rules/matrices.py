"""An optional compiled kernel (matrices.c) for per-example products of two matrices.

It is built and switched off as `compiled` is. A library's batch of products takes 1.2 to 2.5 times as long as one
product of as many multiplications; this one hardly longer, squared norms included.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from decrescendo.base.native import BEST
from decrescendo.clipping.rules.compiled import call, check_room, loaded
from decrescendo.errors import InvalidValue

SOURCE = Path(__file__).with_name("matrices.c")
_BLOCK = 128  # OUTPUTS of matrices.c
# The cost of one multiplication.
COST = 1.1


class Sizes(ctypes.Structure):
    """The struct of sizes in matrices.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "batch", "places", "features", "outputs", "a_example", "a_place", "d_example", "d_place", "d_output",
        )
    ]  # fmt: skip


@functools.cache
def library() -> Callable[..., None] | None:
    """The function of matrices.c; ``None`` where it was not built from that source, or is switched off."""
    return loaded(SOURCE)


def covers(a: Tensor, d: Tensor) -> bool:
    """Whether `products` supports these: float32 on a CPU.

    >>> covers(torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, dtype=torch.float64))
    False
    """
    return (
        a.dtype == d.dtype == torch.float32
        and a.device.type == d.device.type == "cpu"
        and min(a.numel(), d.numel()) > 0
        and library() is not None
    )


def products(
    a: Float[Tensor, "batch places features"],
    d: Float[Tensor, "batch outputs places"],
    found: Float[Tensor, "batch outputs features"],
) -> Float[Tensor, " batch"]:
    """Write g_i = D_i A_i into ``found``; returns the |g_i|^2.

    The squares are rounded as in `rule.square_rows` (at most 64 added in float32), without its margin for it.

    Errors:
        InvalidValue: sizes that do not fit together: all are checked here, none in C.

    >>> a, d, found = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[1.0, 10.0]]]), torch.zeros(1, 1, 2)
    >>> if covers(a, d):
    ...     print(products(a, d, found), found)
    ... else:
    ...     print("tensor([2725.], dtype=torch.float64) tensor([[[31., 42.]]])")
    tensor([2725.], dtype=torch.float64) tensor([[[31., 42.]]])
    """
    function = library()
    if function is None or not covers(a, d) or a.dim() != 3 or d.dim() != 3:
        raise InvalidValue("there is no compiled form of these products here: ask covers() first")
    batch, places, features = a.shape
    outputs = d.shape[1]
    if tuple(d.shape) != (batch, outputs, places):
        raise InvalidValue(f"sides must fit together, got {tuple(d.shape)} and {tuple(a.shape)}")
    check_room(found, d, (batch, outputs, features))
    a, d = a.resolve_neg(), d.resolve_neg()
    if a.stride(2) != 1 and features > 1:
        a = a.contiguous()
    # (A dtype and a device of our own: a user may have set others as torch's defaults.)
    squares = torch.empty(batch, -(-outputs // _BLOCK), dtype=torch.float64, device="cpu")
    sizes = Sizes(batch, places, features, outputs, *a.stride()[:2], d.stride(0), d.stride(2), d.stride(1))
    call(function, (found, squares, a, d), sizes, BEST)
    return squares.sum(1)
