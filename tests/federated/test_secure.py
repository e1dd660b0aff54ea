"""Facts: with `Secure()` nobody chooses or repeats a federated run's noise, its amount is the planned one, and a
journal goes on with the same streams."""

import math
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from decrescendo.base.rng import Secure, SecureStream
from decrescendo.base.rng.rounded import grid
from decrescendo.errors import DecrescendoError, FileRefused, InvalidType
from decrescendo.federated import Clients, Placement, Reply, Round, Server, simulate
from decrescendo.federated.flower import Keeper
from decrescendo.federated.policy import Policy
from decrescendo.federated.update import prepare

from .conftest import loss, make_model, make_plan, records, sgd
from .test_shares import SIZE, Flat, p_value

C, Z, COHORT = 0.5, 1.7, 8.0
SECURE = Secure()


def server_of(folder: Path | None = None, *, seed: int | Secure = SECURE, steps: int = 3) -> Server:
    model, plan = make_model(), make_plan([Z] * steps, [C] * steps)
    return Server(model, plan, sgd(model), seed=seed, placement=Placement.CENTRAL, journal=folder)


def played(server: Server, rounds: int) -> list[tuple[int, ...]]:
    """The cohorts of some rounds in which nobody answers."""
    cohorts: list[tuple[int, ...]] = []
    for _ in range(rounds):
        cohorts.append(server.open().cohort)
        server.close()
    return cohorts


def noise_of(placement: Placement, answers: int) -> tuple[torch.Tensor, int]:
    """Over the planned deviation, of one round in which the first so many members answer with zero updates."""
    model, plan = Flat(), make_plan([Z], [C], cohort=COHORT)
    server = Server(model, plan, torch.optim.SGD(model.parameters(), lr=1.0), seed=Secure(), placement=placement)
    opened = server.open()
    for client in opened.cohort[:answers]:
        secret = None if placement is Placement.CENTRAL else SecureStream.fresh()
        part = prepare({"w": torch.zeros(SIZE)}, opened.round, secret)
        assert server.receive(Reply(client, 1, opened.round.run, part)).verdict.taken
    server.close()
    return -server.weights()["w"].double() * COHORT / (Z * C), len(opened.cohort)


@pytest.mark.parametrize("placement", [Placement.CENTRAL, Placement.DISTRIBUTED])
@pytest.mark.parametrize("answers", [0, 1, 99])
def test_the_noise_of_a_round_is_the_planned_one(placement: Placement, answers: int) -> None:
    noise, cohort = noise_of(placement, answers)
    assert p_value(noise) > 1e-6
    assert abs(float(noise.mean())) < 5.5 / math.sqrt(SIZE)
    # The power: noise with one share too many or too few would be seen.
    for wrong in (-1, 1):
        assert p_value(noise * math.sqrt(1 + wrong / max(cohort, 2))) < 1e-6


def test_two_runs_have_nothing_in_common_and_say_how_they_were_drawn() -> None:
    first, second = server_of(), server_of()
    assert played(first, 3) != played(second, 3)
    outcome = first.finish()
    assert not torch.equal(outcome.weights["0.weight"], second.finish().weights["0.weight"])
    provenance = outcome.to_run().provenance
    assert provenance is not None
    assert provenance.random == "secure"
    seeded = server_of(seed=1)
    played(seeded, 1)
    provenance = seeded.finish().to_run().provenance
    assert provenance is not None
    assert provenance.random == "seeded"


def test_a_journal_goes_on_with_its_own_streams(tmp_path: Path) -> None:
    """Two copies of one journal, each with a fresh `Secure()`: the same cohorts and the same noise, to the last bit."""
    server = server_of(tmp_path / "run", steps=6)
    played(server, 2)
    server.stop()
    ends: list[tuple[list[tuple[int, ...]], torch.Tensor]] = []
    for copy in ("one", "two"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
        again = server_of(tmp_path / copy, steps=6)
        assert again.spent == 2
        ends.append((played(again, 4), torch.cat([value.flatten() for value in again.weights().values()])))
        assert again.done
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize(("begun", "given"), [(Secure(), 0), (0, Secure())])
def test_a_journal_of_the_other_kind_is_refused(tmp_path: Path, begun: int | Secure, given: int | Secure) -> None:
    server = server_of(tmp_path / "run", seed=begun)
    played(server, 1)
    server.stop()
    with pytest.raises(FileRefused, match="of the kind that is asked for"):
        server_of(tmp_path / "run", seed=given)
    server_of(tmp_path / "run", seed=begun).stop()


def test_a_clients_noise_is_its_own_its_rounds_and_on_a_grid() -> None:
    secret, other = SecureStream.fresh(), SecureStream.fresh()
    update = {"w": torch.tensor([1.0, math.pi, -3.0]).mul_(0.01)}

    def sent(number: int, stream: SecureStream) -> torch.Tensor:
        return prepare(update, Round("run", number, 9, C, Z, Placement.LOCAL, Z * C), stream)["w"]

    assert torch.equal(sent(1, secret), sent(1, SecureStream(secret.key)))  # asked twice, the same reply
    assert not torch.equal(sent(1, secret), sent(2, secret))
    assert not torch.equal(sent(1, secret), sent(1, other))
    # What leaves has no more digits than the noise: it tells nothing about the last bits of the update.
    step = grid(Z * C)
    assert torch.equal(sent(1, secret) / step, (sent(1, secret) / step).round())


def test_a_memory_put_back_does_not_let_two_updates_have_one_noise(tmp_path: Path) -> None:
    """A node's folder of before the round, asked the round again from other weights, or as one of another cohort: the
    difference of both replies was the difference of both updates."""
    policy, asked = Policy(9.0, 0.1, max_rounds=9), Round("ab", 1, 9, C, Z, Placement.DISTRIBUTED, Z * C / 2)
    share = Round("ab", 1, 9, C, Z, Placement.DISTRIBUTED, Z * C / 3)
    Keeper(tmp_path / "node", range(3), policy)
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    one, two = torch.full((4,), 0.1), torch.full((4,), -0.1)

    def noise(folder: str, update: torch.Tensor, told: Round = asked) -> torch.Tensor:
        sent = Keeper(tmp_path / folder, range(3), policy).prepare(0, {"w": update}, told)["w"]
        return (sent - update) / told.share_std

    assert float((noise("node", one) - noise("copy", two)).abs().max()) > 1e-3
    assert float((noise("node", one) - noise("copy", one, share)).abs().max()) > 1e-3
    assert torch.equal(noise("node", one), noise("copy", one))  # the same update is the same reply: nothing to average


@pytest.mark.parametrize("placement", list(Placement))
def test_a_simulation_may_be_secure_too(placement: Placement) -> None:
    plan, clients = make_plan(), Clients.equal(records(40), 1)
    ends: list[torch.Tensor] = []
    for _ in range(2):
        model = make_model()
        outcome = simulate(model, loss, clients, plan, sgd(model), seed=Secure(), placement=placement)
        assert outcome.random == "secure"
        ends.append(outcome.weights["0.weight"])
    assert not torch.equal(*ends)


def test_a_node_draws_a_key_once_and_keeps_it(tmp_path: Path) -> None:
    policy, asked = Policy(9.0, 0.1, max_rounds=9), Round("ab", 1, 9, C, Z, Placement.LOCAL, Z * C)

    def sent(folder: str, client: int) -> torch.Tensor:
        return Keeper(tmp_path / folder, range(3), policy).prepare(client, {"w": torch.zeros(4)}, asked)["w"]

    assert torch.equal(sent("a", 1), sent("a", 1))  # in a process of its own each time, under Flower
    assert not torch.equal(sent("a", 1), sent("a", 2))
    assert not torch.equal(sent("a", 1), sent("b", 1))
    step = grid(Z * C)
    assert torch.equal(sent("a", 1) / step, (sent("a", 1) / step).round())


def test_the_clients_of_a_node_are_any_numbers_and_nothing_else(tmp_path: Path) -> None:
    policy = Policy(9.0, 0.1, max_rounds=9)
    asked = Round("ab", 1, 9, C, Z, Placement.CENTRAL, 0.0)
    for clients in (np.arange(3), {0, 1, 2}, iter([2, 0, 1])):
        keeper = Keeper(tmp_path / "node", clients, policy)
        assert len(keeper.admit(asked, [0, 1, 2]).declined) == 3  # of a plan that it never saw
    for wrong in ([0, -5, 3], [0.5], [], "ab"):
        with pytest.raises(DecrescendoError, match="client"):
            Keeper(tmp_path / "node", cast("Any", wrong), policy)
    with pytest.raises(InvalidType, match="policy"):
        Keeper(tmp_path / "node", range(3), cast("Any", None))
