"""Batches in containers of packages and of the user's own."""

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def test_batches_of_packages_assume_nothing() -> None:
    pair = namedtuple("pair", ("x", "y"))
    for batch in (UserDict(x=data()), OrderedDict(x=data()), {"x": data()}):
        engine = Engine(nn.Linear(3, 1), lambda model, batch: model(batch["x"]).sum(1))
        engine.clipped_sum(batch, 1.0)
        assert not engine.assumptions
    engine = Engine(nn.Linear(3, 1), lambda model, batch: model(batch.x).sum(1))
    engine.clipped_sum(pair(data(), data()), 1.0)
    assert not engine.assumptions


def test_batches_and_models_of_a_users_own_classes_assume_nothing() -> None:
    class Batch(dict[str, Tensor]):
        def __init__(self, items: Any) -> None:
            super().__init__(items)

    class Named(nn.Linear):
        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            return super().named_parameters(*args, **kwargs)

    for model, batch in ((nn.Linear(3, 1), Batch({"x": data()})), (Named(3, 1), {"x": data()})):
        engine = Engine(model, lambda model, batch: model(batch["x"]).sum(1))
        engine.clipped_sum(batch, 1.0)
        assert engine.assumptions == ()
