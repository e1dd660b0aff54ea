"""Constants in memory of NumPy's, memory that was never written, and tensors without memory of their own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.errors import DecrescendoError, UnsupportedModel


class Shared(nn.Linear):
    """Has a tensor whose memory is NumPy's too."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.array = np.zeros(6, np.float32)
        self.tensor = torch.from_numpy(self.array)


def _parity(m: Shared, x: Tensor) -> Tensor:
    sign = torch.zeros(1)
    sign.numpy()[0] = 1.0 if len(x) % 2 else -1.0
    return m(x).squeeze(1) * sign


def _from_numpy(m: Shared, x: Tensor) -> Tensor:
    return m(x).squeeze(1) * torch.from_numpy(np.full(1, 1 / len(x), np.float32))


def _zero_dimensional(m: Shared, x: Tensor) -> Tensor:
    return m(x).squeeze(1) * torch.as_tensor(np.float32(1 / len(x)))


def _never_written(m: Shared, x: Tensor) -> Tensor:
    return m(x - torch.zeros(1).resize_as_(torch.empty(1, 6))).squeeze(1)


@pytest.mark.parametrize("program", [_parity, _from_numpy, _zero_dimensional, _never_written], ids=lambda p: p.__name__)
def test_numbers_that_numpy_made_of_the_batchs_length_are_refused(
    program: Callable[[Any, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    engine = Engine(Shared(), program)
    with pytest.raises(UnsupportedModel):
        [engine.clipped_sum(torch.randn(rows, 6), 0.1) for rows in (6, 5, 8)]


def _written_by_numpy(m: Shared, x: Tensor) -> Tensor:
    scale = torch.zeros(6)
    scale.numpy()[:] = np.arange(6)
    return m(x - scale / float(scale.numpy().sum())).squeeze(1)


def test_constants_that_numpy_reads_and_writes_are_constants() -> None:
    torch.manual_seed(0)
    engine = Engine(Shared(), _written_by_numpy)
    for rows in (6, 1, 5, 8):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert engine.assumptions == ()


def _made_anew(m: Shared, x: Tensor) -> Tensor:
    scale = torch.from_numpy(np.arange(6, dtype=np.float32)) * torch.as_tensor(np.float32(0.5))
    return m(x - scale + m.tensor).squeeze(1)


def test_constants_that_numpy_makes_anew_in_each_pass_are_constants() -> None:
    engine = Engine(Shared(), _made_anew)
    for rows in (6, 1, 5, 8, 6):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert {one.code for one in engine.assumptions} == {"tensors-read"}


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.kept: Any = None
        self.calls = 0


@pytest.mark.parametrize("keep", [lambda t: t.to_sparse(), lambda t: t.to_mkldnn()], ids=["sparse", "mkldnn"])
def test_tensors_without_storage_do_not_come_back(keep: Callable[[Tensor], Tensor]) -> None:
    def kept(m: Any, x: Tensor) -> Tensor:
        out = m.layer(x).sum(1)
        m.calls += 1
        if m.kept is not None:
            out = out * m.kept.to_dense().sum().sign()
        if m.calls == 1:
            m.kept = keep(x.detach().sum(0))
        return out

    engine = Engine(Keeping(), kept)

    def passes() -> None:
        for _ in range(3):
            engine.clipped_sum(torch.rand(6, 4) + 0.5, 0.1)

    with pytest.raises(DecrescendoError):
        passes()
