"""Numbers that torch reads out of lists by itself."""

from collections import UserList, deque, namedtuple
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

# Of torch's own, about storages, sparse layouts and arrays that cannot be written to.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]


ONE = namedtuple("ONE", "number")


FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda b: torch.tensor([b[0, 0]]),
    "tensor of a tuple": lambda b: torch.tensor((b[0, 0],)),
    "tensor of lists in lists": lambda b: torch.tensor([[b[0, 0], 1.0]]).sum(),
    "tensor by name": lambda b: torch.tensor(data=[b[0, 0]]),
    "a truth value": lambda b: torch.tensor([b[0, 0] > 1]),
    "tensor, then Python": lambda b: torch.ones(1) * float(torch.tensor([b[0, 0]])),
    "as_tensor": lambda b: torch.as_tensor([b[0, 0]]),
    "asarray": lambda b: torch.asarray([b[0, 0]]),
    "new_tensor": lambda b: b.new_tensor([b[0, 0]]),
    "new": lambda b: b.new([b[0, 0]]),
    "a row's numbers": lambda b: torch.tensor(list(b[0])).sum(),
    "a sparse tensor's values": lambda b: torch.sparse_coo_tensor([[0]], [b[0, 0]], (1,)).to_dense(),
    "a storage": lambda b: torch.ones(1) * torch.FloatStorage([b[0, 0]])[0],
    "an index of lists": lambda b: torch.arange(4.0)[[[_whole(b), _whole(b)]]].sum(),
    "a list in an index": lambda b: torch.arange(4.0)[[_whole(b), _whole(b)],].sum(),
    "truth values of old": lambda b: torch.BoolTensor([b[0, 0] > 1]).float(),
    "floats of old": lambda b: torch.FloatTensor([1.5, b[0, 0]]).sum(),
    "a tensor of old": lambda b: torch.Tensor([1.5, b[0, 0]]).sum(),
    "inside of a gradient": lambda b: torch.func.grad(lambda r: (r * torch.tensor([b[0, 0]])).sum())(b[:, :1]),
    "a queue": lambda b: torch.tensor(deque([b[0, 0]])),
    "a list of Python's": lambda b: torch.tensor(UserList([b[0, 0]])),
    "a tuple with names": lambda b: torch.tensor(ONE(b[0, 0])),
}


def _whole(b: Tensor) -> Tensor:
    return (b[0, 0] > 1).long() + 1


@pytest.mark.parametrize("name", FIRST)
def test_no_list_carries_numbers_of_the_data_past_the_dispatcher(name: str) -> None:
    def loss(model: nn.Module, b: Tensor) -> Tensor:
        return (model(b) * (1 + FIRST[name](b))).square().sum(1)

    for rows in (2, 5):
        with pytest.raises(UnsupportedModel):
            Engine(nn.Linear(3, 2), loss).per_example_norms(torch.rand(rows, 3))


def test_lists_of_constants_are_taken() -> None:
    def loss(model: nn.Module, b: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0]) + torch.tensor([[0.5, model.training]]).sum()
        return (model(b[:, [0, 2, 1]]) * scale).square()[:, [1, 0]].sum(1)

    model, batch = nn.Linear(3, 2), torch.rand(5, 3)
    norms = Engine(model, loss).per_example_norms(batch)
    assert torch.allclose(norms, Reference(model, loss).per_example_norms(batch), rtol=1e-4)
