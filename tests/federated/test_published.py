"""What a federated run publishes, and sends to its clients: parameters and persistent buffers, nothing beside."""

import pytest
import torch
from hiding_models import HIDING, hooked
from torch import nn

from decrescendo.errors import UnsupportedModel
from decrescendo.federated import Clients, Placement, Server, simulate

from .conftest import loss, make_model, make_plan, records


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@pytest.mark.parametrize("name", HIDING)
def test_a_model_that_hides_something_is_refused_before_the_first_round(name: str) -> None:
    model = HIDING[name]()
    with pytest.raises(UnsupportedModel):
        Server(model, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL)
    with pytest.raises(UnsupportedModel):
        simulate(
            model, loss, Clients.equal(records(), records=1), make_plan(), sgd(model), seed=0,
            placement=Placement.CENTRAL,
        )  # fmt: skip


def test_what_is_hidden_later_is_neither_sent_nor_published() -> None:
    model = make_model()
    server = Server(model, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL)
    server.open()
    hooked(model)
    for publish in (server.weights, server.finish):
        with pytest.raises(UnsupportedModel, match="'seen' as well"):
            publish()
