"""The server against a slow obvious loop, against hostile replies, and against the central trainer."""

import math
from collections.abc import Callable

import pytest
import torch
from drawn import normals
from torch import Tensor, nn

from decrescendo.accounting.budget import Unit
from decrescendo.base.rng import Streams
from decrescendo.clipping import Diagnostics
from decrescendo.errors import InvalidValue
from decrescendo.federated import (
    Clients,
    LocalSteps,
    Opened,
    Placement,
    Reply,
    Server,
    client_update,
    prepare,
    simulate,
)
from decrescendo.federated.rounds import SUMS
from decrescendo.training import Trainer, train

from .conftest import CLIP, NOISE, adam, loss, make_model, make_plan, momentum, records, sgd

Build = Callable[[nn.Module], torch.optim.Optimizer]
NOTHING = Diagnostics(examples=0, nonfinite=0, clipped=0, loss_sum=0.0)


def make_server(placement: Placement = Placement.CENTRAL, build: Build = sgd, seed: int = 3, **plan: object) -> Server:
    model = make_model()
    return Server(model, make_plan(**plan), build(model), seed=seed, placement=placement)  # type: ignore[arg-type]


def model_of(server: Server) -> nn.Module:
    model = make_model()
    model.load_state_dict(server.weights())
    return model


def honest(server: Server, opened: Opened, client: int, local: LocalSteps | None = None, scale: float = 1.0) -> Reply:
    """What client number ``client``, who has one record, replies."""
    inputs, targets = records()
    rows = (scale * inputs[client : client + 1], targets[client : client + 1])
    update = client_update(model_of(server), loss, rows, local)
    secret = None if server.placement is Placement.CENTRAL else Streams(7).child(client)
    return Reply(client, opened.round.number, opened.round.run, prepare(update, opened.round, secret))


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors.values()])


@pytest.mark.parametrize("build", [sgd, momentum, adam])
def test_rounds_equal_a_slow_loop_by_hand(build: Build) -> None:
    """Gradient of one record, clip, sum, noise, divide by the *expected* cohort, step: Algorithm 5, spelled out."""
    server = make_server(build=build, seed=11)
    hand = make_model()
    optimizer = build(hand)
    streams = Streams(11)
    sampling, noise = streams.numpy("sampling"), streams.keyed("noise")
    inputs, targets = records()
    for index in range(3):
        opened = server.open()
        cohort = next(make_plan().sampling.batches(1, sampling))
        assert opened.cohort == tuple(cohort)
        total = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in hand.named_parameters()}
        for client in cohort:
            server.receive(honest(server, opened, int(client)))
            value = loss(hand, (inputs[client : client + 1], targets[client : client + 1])).sum()
            found = torch.autograd.grad(value, list(hand.parameters()))
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in found))
            for gradient, name in zip(found, total, strict=True):
                total[name] += gradient.double() * min(1.0, CLIP[index] / norm)
        server.close()
        optimizer.zero_grad()
        drawn = normals(noise, {name: sums.shape for name, sums in total.items()})
        for name, parameter in hand.named_parameters():
            parameter.grad = ((total[name] + NOISE[index] * CLIP[index] * drawn[name]) / 8).float()
        optimizer.step()
        torch.testing.assert_close(
            flat(server.weights()), flat(dict(hand.named_parameters())).detach(), rtol=0, atol=2e-6
        )
    assert server.done
    assert server.ledger == server.plan.ledger


def test_one_record_clients_and_one_gradient_are_central_training() -> None:
    """Same streams, same plan but for the unit: the same weights."""
    central = make_model()
    train(central, loss, records(), make_plan(unit=Unit.EXAMPLE), sgd(central), seed=3)
    server = make_server(seed=3)
    while not server.done:
        opened = server.open()
        for client in reversed(opened.cohort):
            server.receive(honest(server, opened, client))
        server.close()
    torch.testing.assert_close(flat(server.weights()), flat(dict(central.state_dict())), rtol=0, atol=1e-6)


def test_central_training_refuses_a_plan_for_clients_and_the_server_one_for_examples() -> None:
    model = make_model()
    with pytest.raises(InvalidValue, match="must protect examples or people, got unit=client"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0)
    with pytest.raises(InvalidValue, match="must protect clients, got unit=example"):
        Server(model, make_plan(unit=Unit.EXAMPLE), sgd(model), seed=0, placement=Placement.CENTRAL)
    few, central = Clients.equal(records(4), records=2), Placement.CENTRAL  # told of the unit, not of the number
    with pytest.raises(InvalidValue, match="must protect clients, got unit=example"):
        simulate(model, loss, few, make_plan(unit=Unit.EXAMPLE), sgd(model), seed=0, placement=central)


@pytest.mark.parametrize(
    ("value", "present", "words"),
    [
        (1e9, 1, "is no longer than 1.001, got"),
        (math.nan, 1, "got nan"),
        (math.inf, 1, "got nan"),
        (0.0, -1, "present must be >= 0"),
        (0.0, 99, "present must be at most the cohort's"),
        (0.5, 0, "the sum of 0 parts"),
    ],
)
def test_what_cannot_be_the_sum_of_a_round_is_not_released(value: float, present: int, words: str) -> None:
    """It was, and recorded before it was looked at: one part a billion times as long as C under the same guarantee."""
    server = make_server()
    opened, before = server.open(), flat(server.weights())
    total = {name: torch.full(p.shape, value, dtype=torch.float64) for name, p in server.weights().items()}
    with pytest.raises(InvalidValue, match=words):
        server.release(total, present, NOTHING)
    with pytest.raises(InvalidValue, match="the model's trainable parameters"):
        server.release({"other": torch.zeros(1)}, 0, NOTHING)
    assert server.spent == 0
    assert torch.equal(flat(server.weights()), before)
    part = {name: torch.zeros_like(tensor) for name, tensor in total.items()}
    part["0.bias"][0] = 0.999 * len(opened.cohort)
    server.release(part, len(opened.cohort), NOTHING)
    assert server.spent == 1
    assert SUMS in server.assumptions
