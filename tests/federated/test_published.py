"""What a federated run publishes, and sends to its clients: parameters and persistent buffers, nothing beside."""

from pathlib import Path

import pytest
import torch
from hiding_models import HIDING, hooked
from torch import nn

from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.federated import Clients, Placement, Server, simulate
from decrescendo.federated.rounds import REPLIES
from decrescendo.training.loop.assumptions import STATE_SET
from decrescendo.training.loop.between import ENDED_EARLY, WRITTEN

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
    assert "seen" in model.state_dict()
    assert "seen" not in server.weights()
    assert "seen" not in server.finish().weights


class TestBetweenRounds:
    """What a central training refuses or says between its steps, a server does between its rounds."""

    @pytest.mark.parametrize("publish", ["weights", "open", "close", "finish"])
    def test_statistics_of_an_evaluation_are_said_by_name(self, publish: str) -> None:
        """They were sent to every client of the next round, and stood in the outcome, without a word."""
        model = nn.Sequential(nn.BatchNorm1d(3), make_model())
        server = Server(model, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL)
        server.open()
        if publish != "close":
            server.close()
        loss(model, records())
        getattr(server, publish)()
        if publish == "open":
            server.close()
        said = STATE_SET.format("0.running_mean, 0.running_var, 0.num_batches_tracked")
        assert said in server.finish().assumptions

    @pytest.mark.parametrize("restart", [False, True])
    def test_who_writes_to_the_weights_is_said(self, restart: bool, tmp_path: Path) -> None:
        def begun() -> tuple[nn.Module, Server]:
            model = make_model()
            return model, Server(model, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL, journal=tmp_path)

        model, server = begun()
        server.open()
        server.close()
        next(model.parameters()).data[0] = records()[0][0]
        server.open()
        server.close()
        if restart:
            server.stop()
            server = begun()[1]
        assert server.finish().assumptions == (ENDED_EARLY, REPLIES, WRITTEN)
        server.stop()

    def test_rounds_and_restarts_alone_are_nothing_to_say(self, tmp_path: Path) -> None:
        for _ in range(3):
            model = make_model()
            with torch.no_grad():
                for parameter in model.parameters():  # what it begins with is the journal's
                    parameter.add_(1.0)
            server = Server(model, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL, journal=tmp_path)
            server.open()
            server.close()
            server.stop()
        assert server.finish().assumptions == (REPLIES,)

    def test_a_callback_of_a_simulation_that_writes_is_said(self) -> None:
        def write(_: object) -> None:
            if not written:
                written.append(next(model.parameters()).data.neg_())

        for callback, said in ((None, ()), (write, (WRITTEN,))):
            model, written = make_model(), []
            outcome = simulate(
                model, loss, Clients.equal(records(), records=1), make_plan(), sgd(model), seed=0,
                placement=Placement.CENTRAL, callback=callback,
            )  # fmt: skip
            assert outcome.assumptions == said

    def test_a_layer_frozen_on_the_way_is_named(self) -> None:
        model = make_model()
        weight = next(model.parameters())
        with pytest.raises(InvalidValue, match=r"got no '.*weight'.* must not change once the training has begun"):
            simulate(
                model, loss, Clients.equal(records(), records=1), make_plan(), sgd(model), seed=0,
                placement=Placement.CENTRAL, callback=lambda _: weight.requires_grad_(False).requires_grad,
            )  # fmt: skip
