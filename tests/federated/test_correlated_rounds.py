"""Correlated noise added by the server: rounds restarted and aborted are those of one server without a break."""

from pathlib import Path

import numpy as np
import pytest
import torch

import decrescendo as dc
from decrescendo.accounting import Unit
from decrescendo.errors import InvalidValue
from decrescendo.federated import Placement, Reply, Server
from decrescendo.federated.resuming import SAME_ORDER

PLAN = dc.calibrate(
    dc.Budget(4.0, 1e-5, Unit.CLIENT),
    dc.PoissonSampling(30, 5),
    steps=5,
    clip=np.linspace(1, 0.5, 5),
    bands=3,
)


def server_of(journal: Path) -> tuple[Server, torch.nn.Module]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Server(model, PLAN, optimizer, seed=5, placement=Placement.CENTRAL, journal=journal), model


def rounds(journal: Path, *, restarted: bool) -> tuple[list[list[int]], torch.Tensor]:
    server, model = server_of(journal)
    seen: list[list[int]] = []
    for step in range(PLAN.steps):
        if restarted:
            del server
            server, model = server_of(journal)
        opened = server.open()
        seen.append([int(client) for client in opened.cohort])
        if step == 3:
            server.abort()
            continue
        for client in opened.cohort:
            update = {"weight": torch.full((1, 3), 0.1)}
            server.receive(Reply(client, opened.round.number, opened.round.run, update))
        server.close()
    return seen, next(model.parameters()).detach().clone()


def test_a_server_that_is_restarted_before_every_round_gives_the_same_weights(tmp_path: Path) -> None:
    whole, again = (rounds(tmp_path / name, restarted=name == "again") for name in ("whole", "again"))
    assert whole[0] == again[0]
    gone_on, _ = server_of(tmp_path / "again")
    begun, _ = server_of(tmp_path / "new")
    # Clients must be who they were: each takes part in the turns of one group.
    assert [SAME_ORDER in server.assumptions for server in (gone_on, begun)] == [True, False]
    assert torch.equal(whole[1], again[1])
    turn: dict[int, int] = {}
    assert all(turn.setdefault(one, step % 3) == step % 3 for step, cohort in enumerate(whole[0]) for one in cohort)


@pytest.mark.parametrize("placement", [Placement.DISTRIBUTED, Placement.LOCAL])
def test_noise_that_clients_add_is_not_correlated(placement: Placement) -> None:
    model = torch.nn.Linear(3, 1)
    with pytest.raises(InvalidValue, match="bands"):
        Server(model, PLAN, torch.optim.SGD(model.parameters(), lr=1.0), seed=0, placement=placement)
