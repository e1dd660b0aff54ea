"""Offsets and records of clients are whole numbers of rows, which nobody changes later."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from decrescendo.errors import DecrescendoError, InvalidType
from decrescendo.federated import Clients
from decrescendo.federated.clients import Records

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


class TestClients:
    @pytest.mark.parametrize("offsets", [[0, 60], torch.tensor([0, 60]), np.array([0.0, 60.0]), None])
    def test_offsets_are_whole_numbers(self, offsets: Any) -> None:
        with pytest.raises(DecrescendoError, match="offsets"):
            unchecked(Clients.ranges)(Clients, (X, Y), offsets)

    def test_offsets_written_to_later_move_no_record(self) -> None:
        offsets = np.array([0, 20, 60])
        clients = Clients.ranges((X, Y), offsets)
        offsets[1] = 40
        assert clients.take(np.array([0])).counts.tolist() == [20]

    def test_what_take_gives_is_said(self) -> None:
        with pytest.raises(InvalidType, match="Records"):
            unchecked(Clients.records)(Clients(2, lambda _: None), np.array([0]))  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="counts"):
            unchecked(Records.__init__)(object.__new__(Records), X, [60])


def unchecked(function: Any) -> Callable[..., Any]:
    """Without the type checker of the test run, as users call it; of a class's method the function."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__wrapped__", function)
