"""Steps whose shapes do not depend on values: what a CUDA graph can record."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from decrescendo.errors import UnsupportedModel

_STATIC: ContextVar[bool] = ContextVar("static", default=False)


@contextmanager
def static_shapes() -> Generator[None]:
    """Inside, rules make no tensor whose shape depends on values, and never wait for the device."""
    token = _STATIC.set(True)
    try:
        yield
    finally:
        _STATIC.reset(token)


def is_static() -> bool:
    """Whether `static_shapes` is active.

    >>> with static_shapes():
    ...     is_static()
    True
    """
    return _STATIC.get()


def refuse_if_static(name: str) -> None:
    """Refuse an operation whose shapes depend on values.

    Raises:
        UnsupportedModel: where `static_shapes` is active.
    """
    if is_static():
        raise UnsupportedModel(
            f"a recorded step must have shapes that do not depend on the data, got {name}. Use Engine for this model"
        )


def sum_segments_static(
    ids: Int[Tensor, "batch positions"], d: Float[Tensor, "batch positions dim"], padding: int | None
) -> tuple[Float[Tensor, "pairs dim"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Sums of ``d`` over equal ids of an example, with one pair for each position: what is left over is zero.

    Returns:
        sums, the example and the id of each pair; unused pairs have sum zero, id 0 and their own example.

    >>> sums, example, identity = sum_segments_static(
    ...     torch.tensor([[5, 2, 5]]), torch.tensor([[[1.0], [2.0], [4.0]]]), None
    ... )
    >>> identity.tolist(), sums.flatten().tolist()
    ([2, 5, 0], [2.0, 5.0, 0.0])
    """
    batch, positions = ids.shape
    ordered, order = torch.sort(ids, dim=1, stable=True)
    first = torch.ones_like(ordered)
    first[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).to(first.dtype)
    base = torch.arange(batch, device=ids.device).unsqueeze(1) * positions
    slot = (first.cumsum(1) - 1 + base).flatten()
    gathered = d.reshape(batch * positions, -1).index_select(0, (order + base).flatten())
    if padding is not None:
        gathered = gathered.masked_fill((ordered == padding).reshape(-1, 1), 0)
    sums = torch.zeros_like(gathered).index_add_(0, slot, gathered)
    identity = torch.zeros(batch * positions, dtype=ids.dtype, device=ids.device)
    identity.scatter_(0, slot, ordered.flatten())
    example = (base.expand(batch, positions) // max(1, positions)).flatten()
    return sums, example, identity
