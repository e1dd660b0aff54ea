"""A federated run says what was proven of its clients being apart, and what was taken on trust."""

import pytest
import torch

from decrescendo.clipping import Engine
from decrescendo.federated import Clients, LocalSteps, Outcome, Placement, Server, simulate
from decrescendo.federated.cohort import LOCAL_STEPS
from decrescendo.federated.server import REPLIES

from .conftest import loss, make_model, make_plan, records


def simulated(local: LocalSteps | None = None) -> Outcome:
    model = make_model()
    return simulate(
        model, loss, Clients.equal(records(), records=1), make_plan(), torch.optim.SGD(model.parameters(), lr=0.5),
        seed=0, placement=Placement.CENTRAL, local=local,
    )  # fmt: skip


def test_clients_of_whole_cohorts_are_proven_apart_by_the_engine() -> None:
    run = simulated().to_run()
    assert run.proven
    assert "Clients were proven apart at every step." in run.statement().to_markdown()


def test_what_was_declared_to_the_engine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "assumptions", property(lambda _: ("b", "a")))
    outcome = simulated()
    assert outcome.assumptions == ("a", "b")
    assert outcome.to_run().assumptions == ("a", "b")


def test_local_steps_are_not_the_engines() -> None:
    assert simulated(LocalSteps(0.1)).to_run().assumptions == (LOCAL_STEPS,)


def test_a_server_cannot_prove_what_clients_compute() -> None:
    model = make_model()
    server = Server(
        model, make_plan(), torch.optim.SGD(model.parameters(), lr=0.5), seed=0, placement=Placement.CENTRAL
    )
    run = server.finish().to_run()
    assert run.assumptions == (REPLIES,)
    assert not run.proven
