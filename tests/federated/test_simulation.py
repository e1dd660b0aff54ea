"""Whole cohorts at once are the same as replies one by one; a run says what was proven of its clients being apart."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.accounting.budget import Unit
from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel
from decrescendo.federated import (
    Clients,
    LocalSteps,
    Outcome,
    Placement,
    Records,
    Reply,
    Server,
    client_streams,
    client_update,
    prepare,
    simulate,
)
from decrescendo.federated.cohort import LOCAL_STEPS, CohortSum
from decrescendo.federated.rounds import REPLIES
from decrescendo.federated.simulation import DROPOUTS_APART, Dropouts
from decrescendo.federated.verdict import Verdict
from decrescendo.training import train
from decrescendo.training.data.rows import Rows
from decrescendo.training.digits import digits_cnn
from decrescendo.training.loop.between import ENDED_EARLY, READ_AND_ENDED
from decrescendo.training.loop.progress import Progress

from .conftest import CLIENTS, adam, loss, make_model, make_plan, momentum, records, sgd

SEED = 5
RAGGED = np.array([0, 0, 3, 4, 9, 9, *range(10, 10 + CLIENTS - 6), 60])
POPULATIONS: dict[str, Callable[[], Clients]] = {
    "one record": lambda: Clients.equal(records(), records=1),
    "three records": lambda: Clients.equal(records(3 * CLIENTS), records=3),
    "ragged": lambda: Clients.ranges(records(60), RAGGED),
}
LOCAL = {
    "gradient": None,
    "epochs": LocalSteps(0.3, epochs=2),
    "minibatches": LocalSteps(0.3, epochs=2, batch_size=2),
}


def drop_odd(number: int, client: int) -> bool:
    """Odd clients drop out of odd rounds, everybody of round 2."""
    return number == 2 or bool(number % 2 and client % 2)


def one_by_one(
    clients: Clients,
    placement: Placement,
    local: LocalSteps | None,
    dropouts: Dropouts | None,
    build: Any = sgd,
) -> Outcome:
    model = make_model()
    server = Server(model, make_plan(), build(model), seed=SEED, placement=placement)
    while not server.done:
        opened = server.open()
        for client in reversed(opened.cohort):
            if dropouts is not None and dropouts(opened.round.number, client):
                continue
            update = client_update(model, loss, clients.take(np.array([client])).rows, local)
            sent = prepare(update, opened.round, client_streams(SEED, client))
            assert server.receive(Reply(client, opened.round.number, opened.round.run, sent)).verdict.taken
        server.close()
    return server.finish()


@pytest.mark.parametrize("population", some(POPULATIONS, 2))
@pytest.mark.parametrize("local", some(LOCAL, 2))
@pytest.mark.parametrize("placement", list(Placement))
def test_simulation_is_the_server_fed_one_by_one(population: str, local: str, placement: Placement) -> None:
    clients = POPULATIONS[population]()
    model = make_model()
    found = simulate(
        model,
        loss,
        clients,
        make_plan(),
        adam(model),
        seed=SEED,
        placement=placement,
        local=LOCAL[local],
        dropouts=drop_odd,
    )
    expected = one_by_one(clients, placement, LOCAL[local], drop_odd, adam)
    assert found.ledger == expected.ledger
    assert [r.missing for r in found.reports] == [r.missing for r in expected.reports]
    assert found.guarantee == expected.guarantee
    # Fed one by one the server sees each reply by itself, which one share of noise hides.
    distributed = placement is Placement.DISTRIBUTED
    assert (found.against_server is not None) == (expected.against_server is not None) == distributed
    if found.against_server is not None and expected.against_server is not None:
        assert found.secure_sum
        assert not expected.secure_sum
        assert expected.against_server.epsilon > found.against_server.epsilon
        assert "no secure aggregation" in expected.statement()
        assert "no secure aggregation" in expected.to_run().statement().to_json()
    for name, weight in found.weights.items():
        torch.testing.assert_close(weight, expected.weights[name], rtol=0, atol=1e-6)
    assert any(r.taken for r in found.reports)


def test_one_record_clients_are_central_training_bit_for_bit() -> None:
    central, federated = make_model(), make_model()
    train(central, loss, records(), make_plan(unit=Unit.EXAMPLE), momentum(central), seed=SEED)
    clients = Clients.equal(records(), records=1)
    outcome = simulate(
        federated, loss, clients, make_plan(), momentum(federated), seed=SEED, placement=Placement.CENTRAL
    )
    for name, weight in central.state_dict().items():
        assert torch.equal(weight, outcome.weights[name])
    assert outcome.to_run().ledger == make_plan().ledger


@pytest.mark.parametrize("local", LOCAL)
def test_many_records_of_a_convolutional_network(local: str) -> None:
    """A CNN, clients with three images: folded into the engine, or stepped by vmap."""
    inputs = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    clients = Clients.equal((inputs, torch.arange(12) % 10), records=3)
    plan = make_plan([1.0], [0.5], clients=4, cohort=4)
    weights: list[torch.Tensor] = []
    steps = LOCAL[local]
    model = digits_cnn(0)
    simulate(model, loss, clients, plan, sgd(model), seed=SEED, placement=Placement.CENTRAL, local=steps)
    weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    model = digits_cnn(0)
    server = Server(model, plan, sgd(model), seed=SEED, placement=Placement.CENTRAL)
    opened = server.open()
    for client in opened.cohort:
        update = client_update(model, loss, clients.take(np.array([client])).rows, steps)
        server.receive(Reply(client, 1, opened.round.run, prepare(update, opened.round, None)))
    server.close()
    weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("local", LOCAL)
def test_a_client_that_is_not_finite_touches_nobody_else(local: str) -> None:
    """Not by its padding either: the sum is that of the others."""
    inputs, targets = records(60)
    plan = make_plan([1.0], [0.5], cohort=CLIENTS)
    clean = Clients.ranges((inputs, targets), RAGGED)
    spoiled = inputs.clone()
    spoiled[4:9] = torch.tensor([float("nan"), float("inf"), 1e38])  # client 3

    def found(clients: Clients, dropouts: Dropouts | None) -> torch.Tensor:
        model = make_model()
        simulate(
            model,
            loss,
            clients,
            plan,
            sgd(model),
            seed=SEED,
            placement=Placement.CENTRAL,
            local=LOCAL[local],
            dropouts=dropouts,
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    without = found(clean, lambda number, client: client == 3)
    torch.testing.assert_close(found(Clients.ranges((spoiled, targets), RAGGED), None), without, rtol=0, atol=1e-6)
    assert not torch.allclose(found(clean, None), without, rtol=0, atol=1e-6)


def test_chunks_of_clients_change_nothing() -> None:
    weights: list[torch.Tensor] = []
    for size in (None, 2):
        model = make_model()
        simulate(
            model,
            loss,
            POPULATIONS["ragged"](),
            make_plan(),
            sgd(model),
            seed=SEED,
            placement=Placement.CENTRAL,
            local=LocalSteps(0.3, epochs=2),
            settings=EngineSettings(microbatch_size=size),
        )
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("population", ["one record", "ragged"])
def test_one_client_a_pass_changes_nothing(population: str) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for settings in (None, EngineSettings(one_example_a_pass=True)):
        model = make_model()
        simulate(
            model, loss, POPULATIONS[population](), make_plan(), sgd(model), seed=SEED,
            placement=Placement.CENTRAL, settings=settings,
        )  # fmt: skip
        weights.append({name: value.detach() for name, value in model.named_parameters()})
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5)


def test_records_are_asked_for_by_cohort_only() -> None:
    """A population that is computed: nothing is kept for each of ten million clients."""
    asked: list[int] = []

    def take(indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(len(indices))
        inputs = torch.from_numpy(np.stack([np.sin(indices * k) for k in (1, 2, 3)], 1)).float()
        return inputs, torch.from_numpy(indices % 2)

    model = make_model()
    plan = make_plan(clients=10_000_000, cohort=8)
    clients = Clients.equal(Rows(20_000_000, take), records=2)
    outcome = simulate(model, loss, clients, plan, sgd(model), seed=SEED, placement=Placement.CENTRAL)
    assert sum(asked) == 2 * sum(report.cohort for report in outcome.reports) < 200


def test_simulation_is_refused_where_it_must_be() -> None:
    model = make_model()
    with pytest.raises(InvalidValue, match="clients must be the plan's 40, got 20"):
        simulate(
            model,
            loss,
            Clients.equal(records(20), records=1),
            make_plan(),
            sgd(model),
            seed=0,
            placement=Placement.CENTRAL,
        )
    with pytest.raises(InvalidValue, match="settings must have gamma=None for clients"):
        simulate(
            model, loss, POPULATIONS["three records"](), make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL,
            settings=EngineSettings(gamma=0.01),
        )  # fmt: skip
    mixing = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for local in LOCAL.values():
        with pytest.raises(UnsupportedModel):
            simulate(
                mixing,
                loss,
                POPULATIONS["three records"](),
                make_plan(),
                sgd(mixing),
                seed=0,
                placement=Placement.CENTRAL,
                local=local,
            )


def test_an_early_end_is_judged_by_the_whole_plan() -> None:
    model = make_model()
    outcome = simulate(
        model,
        loss,
        Clients.equal(records(), records=1),
        make_plan(),
        sgd(model),
        seed=SEED,
        placement=Placement.CENTRAL,
        callback=lambda progress: progress.step == 2,
    )
    assert outcome.steps == 2
    assert outcome.ledger == make_plan().ledger.first(2)
    assert outcome.guarantee.epsilon == pytest.approx(make_plan().guarantee.epsilon)


def test_rounds_that_nobody_answers_are_worth_a_warning() -> None:
    plan, model = make_plan(noise=[2.0] * 6, clip=[1.0] * 6, cohort=20), make_model()
    with pytest.warns(UserWarning, match=r"no client's reply is in any of the [56] rounds"):
        simulate(
            model, loss, Clients.equal(records(), records=1), plan, sgd(model), seed=SEED,
            placement=Placement.CENTRAL, dropouts=lambda turn, client: True,
        )  # fmt: skip


def test_a_callback_that_returns_a_number_is_refused() -> None:
    model = make_model()
    with pytest.raises(InvalidType, match="must return True to end the training"):
        simulate(
            model, loss, Clients.equal(records(), records=1), make_plan(), sgd(model), seed=SEED,
            placement=Placement.CENTRAL, callback=lambda progress: progress.step,  # type: ignore[arg-type,return-value]
        )  # fmt: skip


def test_records_must_be_what_they_say() -> None:
    with pytest.raises(InvalidValue, match="as many as counts says"):
        Records(torch.zeros(3, 1), np.array([1, 1]))
    with pytest.raises(InvalidValue, match="must divide"):
        Clients.equal(torch.zeros(5, 1), records=2)
    with pytest.raises(InvalidValue, match="ascend"):
        Clients.ranges(torch.zeros(5, 1), np.array([0, 3, 2, 5]))


def simulated(local: LocalSteps | None = None) -> Outcome:
    model = make_model()
    return simulate(
        model, loss, Clients.equal(records(), records=1), make_plan(), torch.optim.SGD(model.parameters(), lr=0.5),
        seed=0, placement=Placement.CENTRAL, local=local,
    )  # fmt: skip


def test_clients_of_whole_cohorts_are_proven_apart_by_the_engine() -> None:
    run = simulated().to_run()
    assert not run.assumptions
    assert "Rows independent: yes, checked at every pass. (A row is one client.)" in run.statement().to_markdown()


def test_what_was_declared_to_the_engine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = assumed("rows-declared-line", "a"), assumed("rows-declared-line", "b")
    monkeypatch.setattr(Engine, "assumptions", property(lambda _: (other, one)))
    outcome = simulated()
    assert (outcome.assumptions, outcome.rows_independent) == ((one, other), False)
    assert outcome.to_run().assumptions == (one, other)


def test_local_steps_are_not_the_engines() -> None:
    assert simulated(LocalSteps(0.1)).to_run().assumptions == (LOCAL_STEPS,)


def test_a_server_cannot_prove_what_clients_compute() -> None:
    model = make_model()
    server = Server(
        model, make_plan(), torch.optim.SGD(model.parameters(), lr=0.5), seed=0, placement=Placement.CENTRAL
    )
    assert server.assumptions == (REPLIES,)
    run = server.finish().to_run()
    assert run.assumptions == (ENDED_EARLY, REPLIES)
    assert run.assumptions


@pytest.mark.parametrize("judged", [True, False])
def test_a_refused_reply_was_seen_by_the_server(judged: bool) -> None:
    """By itself, with one share of noise, whether the server or who carries the messages refused it."""
    model = make_model()
    server = Server(model, make_plan(), adam(model), seed=SEED, placement=Placement.DISTRIBUTED)
    opened = server.open()
    if judged:
        late = Reply(opened.cohort[0], opened.round.number + 1, opened.round.run, {})
        assert not server.receive(late).verdict.taken
    else:
        server.refused(Verdict.UNREADABLE, "no reply at all")
    server.close()
    against = server.finish().against_server
    assert against is not None
    assert against.epsilon > 0
    with pytest.raises(InvalidValue, match="one by one"):
        server.finish(secure_sum=True)


def _dropped(rule: Any) -> Outcome:
    model = make_model()
    plan = make_plan([1.0], [0.5], cohort=CLIENTS)
    clients = Clients.ranges(records(60), RAGGED)
    return simulate(model, loss, clients, plan, sgd(model), seed=SEED, placement=Placement.CENTRAL, dropouts=rule)


def test_who_drops_out_is_asked_of_each_client_by_itself() -> None:
    """Of "every second of the cohort" one client more changes all others: the sum moved by 200 C."""
    counted: list[int] = []

    def every_second(number: int, client: int) -> bool:
        counted.append(client)
        return len(counted) % 2 == 0

    coins = random.Random(0)
    for rule in (every_second, lambda number, client: coins.random() < 0.5):
        with pytest.raises(InvalidValue, match="of each client by itself"):
            _dropped(rule)
    with pytest.raises(InvalidType, match=r"True or False for one client, got list"):
        _dropped(lambda number, client: [client])
    own = _dropped(lambda number, client: random.Random(f"{number} {client}").random() < 0.5)
    assert DROPOUTS_APART in own.assumptions
    assert DROPOUTS_APART not in _dropped(None).assumptions


@pytest.mark.parametrize("ends", [False, True])
def test_an_end_decided_by_private_diagnostics_is_listed(ends: bool) -> None:
    def callback(progress: Progress) -> bool:
        return ends and progress.diagnostics.loss_sum > -1

    model = make_model()
    clients = Clients.equal(records(), records=1)
    outcome = simulate(
        model, loss, clients, make_plan(), sgd(model), seed=1, placement=Placement.CENTRAL, callback=callback
    )
    assert outcome.assumptions == ((READ_AND_ENDED,) if ends else ())


def _mean(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _column(model: nn.Module, batch: Any) -> Tensor:
    return loss(model, batch)[:, None]


@pytest.mark.parametrize("wrong", [_mean, _column], ids=["a mean", "a column"])
def test_losses_that_are_not_one_a_record_are_refused_with_local_steps_too(wrong: Any) -> None:
    """Broadcast over the padding's weights they moved the sum by up to 66 times C_t."""
    model, plan = make_model(), make_plan()
    for local in (None, LocalSteps(0.3)):
        with pytest.raises(UnsupportedModel, match="must return one loss per example"):
            simulate(
                model, wrong, Clients.equal(records(), records=1), plan, sgd(model), seed=0,
                placement=Placement.CENTRAL, local=local,
            )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="must return one loss per example"):
        client_update(model, wrong, records())


def _centred(model: nn.Module, batch: Any) -> Tensor:
    return loss(model, (batch[0] - batch[0].mean(0), batch[1]))


def _by_their_number(model: nn.Module, batch: Any) -> Tensor:
    return loss(model, batch) / len(batch[1])


@pytest.mark.parametrize("own", [loss, _centred, _by_their_number], ids=lambda own: own.__name__)
def test_a_client_more_or_with_more_records_moves_the_sum_by_at_most_the_clip_norm(own: Any) -> None:
    """Also by a loss that looks at all of a client's records: whether the others are padded must not depend on it."""
    generator = torch.Generator().manual_seed(0)
    counts, clip_norm = np.array([5, 5, 6, 5, 5, 5, 9]), 0.01
    inputs = 1 + torch.randn(int(counts.sum()), 3, generator=generator)
    rows = (inputs, (inputs[:, 0] > 1).long())
    cohorts = CohortSum(make_model(), own, LocalSteps(0.3), EngineSettings(), lambda: 0)

    def summed(kept: list[int]) -> Tensor:
        starts = np.cumsum(counts) - counts
        places = torch.cat([torch.arange(starts[i], starts[i] + counts[i]) for i in kept])
        found = cohorts.clipped_sum(Records((rows[0][places], rows[1][places]), counts[kept]), clip_norm)
        return torch.cat([found.gradients[name].flatten() for name in sorted(found.gradients)])

    everybody = [*range(len(counts))]
    for left in everybody:
        moved = float((summed(everybody) - summed([i for i in everybody if i != left])).norm())
        assert moved <= clip_norm * (1 + 1e-4), left


def _by_their_sign(model: nn.Module, batch: Any) -> Tensor:
    return loss(model, batch) * (2.0 if float(batch[0].sum()) > 0 else 1.0)


def test_what_cannot_be_simulated_at_once_is_refused_with_a_way_out() -> None:
    clients, plan = Clients.equal(records(3 * CLIENTS), records=3), make_plan()
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for model, own, words in (
        (normed, loss, "Replace it by GroupNorm"),
        (make_model(), _by_their_sign, r"Take one gradient a client \(local=None\)"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            simulate(
                model,
                own,
                clients,
                plan,
                sgd(model),
                seed=0,
                placement=Placement.CENTRAL,
                local=LocalSteps(0.3),
            )


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("local", [None, LocalSteps(0.3, epochs=2)])
def test_records_that_are_overwritten_between_rounds_are_refused(local: LocalSteps | None, listed: bool) -> None:
    """By their own mean: then every client's records follow from every other's."""
    columns, model = records(), make_model()
    data: Any = list(zip(*columns, strict=True)) if listed else columns

    def standardise(now: Progress) -> None:
        del now
        if listed:
            mean = torch.stack([one[0] for one in data]).mean(0)
            data[:] = [(one[0] - mean, *one[1:]) for one in data]
        else:
            data[0].sub_(data[0].mean(0))

    with pytest.raises(InvalidValue, match="since the drawing began"):
        simulate(
            model, loss, Clients.equal(data, records=1), make_plan(), sgd(model), seed=SEED, local=local,
            placement=Placement.CENTRAL, callback=standardise,
        )  # fmt: skip


def test_a_run_that_goes_on_with_the_seed_of_the_one_before_says_so() -> None:
    """The noise of both is the same, and cancels in the difference of their movements."""
    model = make_model()
    codes: list[list[str]] = []
    for seed in (SEED, SEED, SEED + 1):
        outcome = simulate(
            model,
            loss,
            POPULATIONS["one record"](),
            make_plan(),
            sgd(model),
            seed=seed,
            placement=Placement.CENTRAL,
        )
        codes.append([one.code for one in outcome.assumptions if one.code.startswith("began")])
    assert codes == [[], ["began-trained", "began-with-the-seed"], ["began-trained"]]
