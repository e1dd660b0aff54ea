"""Rows of different lengths: padding them to the longest of a batch would let one change another's gradient."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from decrescendo.training.data import rows


class Texts(Dataset[torch.Tensor]):
    """Token ids, one row longer than the other."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(3 + index)


def test_ragged_rows_are_refused_and_never_padded() -> None:
    table = rows(Texts())
    with pytest.raises(RuntimeError, match="equal size"):
        table.take(np.array([0, 1]))
    assert table.take(np.array([0])).shape == (1, 3)
