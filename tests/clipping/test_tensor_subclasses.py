"""Classes of tensors whose operations are the user's code."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


class Wrapped(Tensor):
    """A tensor round another, whose operations are the program's."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type["Wrapped"], inner: Tensor) -> "Wrapped":
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda value: value.inner if isinstance(value, Wrapped) else value, args)
        return func(*bare, **(kwargs or {}))


def test_operations_of_a_users_tensor_class_are_refused_by_its_name() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        torch.add(Wrapped(x), 1.0)
        return model(x).sum(1)

    with pytest.raises(UnsupportedModel, match=r"Wrapped\.__torch_dispatch__ runs in its place"):
        Engine(nn.Linear(3, 1), loss).per_example_norms(data())


class Named(Tensor):
    """A tensor with a name, as torch's documentation extends it: functions are torch's own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_whose_functions_are_torchs_assumes_nothing() -> None:
    engine = Engine(nn.Linear(3, 1), lambda model, x: model(x.as_subclass(Named)).sum(1).as_subclass(Tensor))
    engine.per_example_norms(data())
    assert engine.assumptions == ()


def test_what_such_a_class_mixes_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        named = x.as_subclass(Named)
        return model(named - named.mean(0)).sum(1).as_subclass(Tensor)

    with pytest.raises(UnsupportedModel):
        Engine(nn.Linear(3, 1), loss).per_example_norms(data())
