"""The Flower adapter within one process: Flower's messages and serialisation are real, only the network is not."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from often import some

pytest.importorskip("flwr", reason='flwr is not installed: pip install "decrescendo[federated]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from decrescendo.base.rng import Streams
from decrescendo.clipping import Telemetry
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.federated import Placement, Policy, Server, Verdict
from decrescendo.federated.clients import Clients
from decrescendo.federated.flower import Delivery, Deployment, Keeper, Shard, client_app, drive, private_mod
from decrescendo.federated.flower.wire import Answer, Ask, Proposal
from decrescendo.federated.journal import LOCK
from decrescendo.federated.messages import Round, run_id
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.simulation import simulate
from decrescendo.plans.plan import Plan
from decrescendo.training.steering import ClipController

from .conftest import CLIENTS, loss, make_model, make_plan, momentum, records

SEED = 11
NODES = {101: range(16), 102: range(16, 30), 103: range(30, CLIENTS)}
GENEROUS = Policy(max_clip_norm=10.0, min_noise_multiplier=0.1, max_rounds=1000)
INPUTS, LABELS = records()


def keeper_at(folder: Path, node: int, policy: Policy = GENEROUS) -> Keeper:
    # The secret that `simulate` gives its clients.
    return Keeper(folder / str(node), list(NODES[node]), policy, seed=Streams(SEED).child(0).seed)


def shard_at(folder: Path, node: int, policy: Policy = GENEROUS) -> Shard:
    return Shard(
        keeper_at(folder, node, policy),
        make_model(),
        loss,
        lambda client: (INPUTS[client : client + 1], LABELS[client : client + 1]),
    )


def grid_of(
    folder: Path,
    policy: Policy = GENEROUS,
    spoil: Callable[[int, Ask, RecordDict], RecordDict] | None = None,
) -> LocalGrid:
    """Three nodes; ``spoil`` changes what a node sends after everything honest was done."""

    def app_of(node: int) -> ClientApp:
        honest = client_app(lambda context: shard_at(folder, node, policy))
        if spoil is None:
            return honest
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            asked = Ask.from_content(message.content)
            reply = honest(message, context)
            return Message(spoil(node, asked, reply.content), reply_to=message)

        @app.query("agree")
        def agree(message: Message, context: Context) -> Message:
            return honest(message, context)

        return app

    return LocalGrid({node: (app_of(node), {}) for node in NODES})


def deploy(
    grid: LocalGrid,
    plan: Plan | ClipController,
    placement: Placement = Placement.CENTRAL,
    *,
    journal: Path | None = None,
    round_timeout: float = 60.0,
    wait_for: int | None = None,
    telemetry: Telemetry | None = None,
) -> tuple[Outcome, list[Delivery]]:
    model = make_model()
    server = Server(model, plan, momentum(model), seed=SEED, placement=placement, journal=journal, telemetry=telemetry)
    deliveries: list[Delivery] = []
    deployment = Deployment(
        server,
        round_timeout=round_timeout,
        start_timeout=0.3,
        wait_for=wait_for,
        poll=0.001,
        after=deliveries.append,
    )
    try:
        return drive(grid, deployment), deliveries
    finally:
        server.stop()  # as the end of its process would


def simulated(
    plan: Plan | ClipController,
    placement: Placement = Placement.CENTRAL,
    dropouts: Callable[..., bool] | None = None,
) -> Outcome:
    model = make_model()
    clients = Clients.equal((INPUTS, LABELS), records=1)
    return simulate(model, loss, clients, plan, momentum(model), seed=SEED, placement=placement, dropouts=dropouts)


def assert_same(found: Outcome, expected: Outcome) -> None:
    assert found.ledger == expected.ledger
    for name, value in expected.weights.items():
        torch.testing.assert_close(found.weights[name], value, rtol=0, atol=1e-6)


def long_plan(rounds: int = 20, clip: float = 0.5) -> Plan:
    return make_plan([1.5] * rounds, [clip * 0.97**t for t in range(rounds)])


# --- the same weights as the simulator


@pytest.mark.parametrize(
    ("placement", "rounds"),
    some([(Placement.CENTRAL, 20), (Placement.DISTRIBUTED, 6), (Placement.LOCAL, 6)], 1),
)
def test_rounds_give_the_weights_of_the_simulator(tmp_path: Path, placement: Placement, rounds: int) -> None:
    plan = long_plan(rounds)
    outcome, deliveries = deploy(grid_of(tmp_path), plan, placement)
    assert_same(outcome, simulated(plan, placement))
    assert [d.report.number for d in deliveries] == list(range(1, rounds + 1))
    assert all(d.report.missing == 0 for d in deliveries)


@pytest.mark.parametrize("placement", some(Placement, 1))
def test_a_silent_node_is_its_members_missing_and_nothing_else(tmp_path: Path, placement: Placement) -> None:
    # Node 102 says nothing in round 2. It is met again and plays on.
    plan = long_plan(6)
    grid = grid_of(tmp_path)
    grid.silent = lambda node, message: node == 102 and message.metadata.group_id == "2"
    outcome, deliveries = deploy(grid, plan, placement, round_timeout=0.2)
    away: dict[int, set[int]] = {number: set() for number in range(1, 7)}

    def dropouts(number: int, client: int) -> bool:
        gone = number == 2 and client in NODES[102]
        away[number].update([client] * gone)
        return gone

    assert_same(outcome, simulated(plan, placement, dropouts))
    assert away[2]
    assert [d.silent for d in deliveries] == [0, 1, 0, 0, 0, 0]
    assert [d.report.missing for d in deliveries] == [len(away[n + 1]) for n in range(6)]


@pytest.mark.slow
def test_a_node_that_stays_silent_is_waited_for_once(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    gone = itertools.count()
    # From its first round on it answers nothing, neither rounds nor the plan shown again.
    grid.silent = lambda node, message: node == 103 and (message.metadata.group_id != "" or next(gone) > 0)
    _, deliveries = deploy(grid, long_plan(10), round_timeout=0.2)
    assert sum(d.silent for d in deliveries) == 1
    assert sum(d.unhosted for d in deliveries) > 0


@pytest.mark.slow
def test_empty_cohorts_and_cohorts_without_a_node_release_noise(tmp_path: Path) -> None:
    plan = make_plan([1.0] * 4, [0.5] * 4, cohort=0.02)
    outcome, deliveries = deploy(grid_of(tmp_path), plan)
    assert [d.report.cohort for d in deliveries] == [0, 0, 0, 0]
    assert_same(outcome, simulated(plan))
    assert any((outcome.weights[name] != value).any() for name, value in make_model().state_dict().items())
    # Nobody is there at all: every member is missing, every round is spent and released.
    nobody, rounds = deploy(LocalGrid({}), long_plan(3), wait_for=0)
    assert nobody.ledger.steps == 3
    assert all(d.report.released and d.unhosted == d.report.cohort for d in rounds)


def test_too_few_clients_at_the_start_spend_nothing(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    del grid.nodes[103]
    with pytest.raises(InvalidValue, match="wait_for=40 clients must be hosted"):
        deploy(grid, long_plan(3), journal=tmp_path / "journal")
    assert [file.name for file in (tmp_path / "journal").iterdir()] == [LOCK]


# --- what bad nodes send


def change(content: RecordDict, edit: Callable[[dict[str, torch.Tensor]], None]) -> RecordDict:
    arrays = {name: torch.from_numpy(array.numpy().copy()) for name, array in content.array_records["updates"].items()}
    edit(arrays)
    content["updates"] = ArrayRecord({name: Array(value.numpy()) for name, value in arrays.items()})
    return content


def huge(content: RecordDict) -> RecordDict:
    def edit(arrays: dict[str, torch.Tensor]) -> None:
        for value in arrays.values():
            value.mul_(1e6)

    return change(content, edit)


def with_nan(content: RecordDict) -> RecordDict:
    def edit(arrays: dict[str, torch.Tensor]) -> None:
        arrays["0.bias"].fill_(float("nan"))

    return change(content, edit)


def wrong_shapes(content: RecordDict) -> RecordDict:
    def edit(arrays: dict[str, torch.Tensor]) -> None:
        arrays["0.bias"] = torch.zeros(len(arrays["0.bias"]), 7)

    return change(content, edit)


def wrong_types(content: RecordDict) -> RecordDict:
    def edit(arrays: dict[str, torch.Tensor]) -> None:
        arrays["0.bias"] = arrays["0.bias"].to(torch.int64)

    return change(content, edit)


def wrong_names(content: RecordDict) -> RecordDict:
    return change(content, lambda arrays: arrays.update(extra=arrays.pop("0.bias")))


def old_round(content: RecordDict) -> RecordDict:
    content["answer"]["round"] = int(content["answer"]["round"]) - 1
    return content


def other_run(content: RecordDict) -> RecordDict:
    content["answer"]["run"] = "another"
    return content


def twice(content: RecordDict) -> RecordDict:
    content["answer"]["clients"] = [*content["answer"]["clients"], *content["answer"]["clients"]]
    return change(
        content,
        lambda arrays: arrays.update({name: torch.cat([value, value]) for name, value in arrays.items()}),
    )


def of_strangers(content: RecordDict) -> RecordDict:
    # In the name of clients of another node, who may well be in the cohort.
    content["answer"]["clients"] = [NODES[103][k] for k in range(len(content["answer"]["clients"]))]
    return content


def rows_missing(content: RecordDict) -> RecordDict:
    content["answer"]["clients"] = [*content["answer"]["clients"], 0]
    return content


def no_numbers(content: RecordDict) -> RecordDict:
    content["updates"] = ArrayRecord({"0.bias": Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY junk")})
    return content


def nothing(content: RecordDict) -> RecordDict:
    return RecordDict({"loss": MetricRecord({"value": 1.0})})


BAD: Mapping[Callable[[RecordDict], RecordDict], Verdict] = {
    with_nan: Verdict.NONFINITE,
    wrong_shapes: Verdict.SHAPES,
    wrong_types: Verdict.TYPES,
    wrong_names: Verdict.NAMES,
    old_round: Verdict.OTHER_ROUND,
    other_run: Verdict.OTHER_RUN,
    of_strangers: Verdict.NOT_ASKED,
    rows_missing: Verdict.UNREADABLE,
    no_numbers: Verdict.UNREADABLE,
    nothing: Verdict.UNREADABLE,
}


@pytest.mark.parametrize("bad", some(BAD, 2), ids=lambda bad: bad.__name__)
def test_what_a_bad_node_sends_is_counted_and_is_a_missing_reply(
    tmp_path: Path, bad: Callable[[RecordDict], RecordDict]
) -> None:
    plan = long_plan(4)
    spoil = lambda node, asked, content: (  # noqa: E731
        bad(content) if node == 101 and asked.round.number == 2 else content
    )
    outcome, deliveries = deploy(grid_of(tmp_path, spoil=spoil), plan)
    gone: set[int] = set()

    def dropouts(number: int, client: int) -> bool:
        away = number == 2 and client in NODES[101]
        gone.update([client] * away)
        return away

    assert_same(outcome, simulated(plan, dropouts=dropouts))
    assert gone
    report = deliveries[1].report
    whole = BAD[bad] is Verdict.UNREADABLE
    assert report.verdicts[BAD[bad]] == (1 if whole else len(gone))
    assert report.missing == len(gone)


def test_a_million_times_the_norm_enters_clipped(tmp_path: Path) -> None:
    # C is far below every gradient, so honest updates have norm C too, and the weights are the same.
    plan = long_plan(4, clip=1e-3)
    spoil = lambda node, asked, content: huge(content) if node == 101 else content  # noqa: E731
    outcome, deliveries = deploy(grid_of(tmp_path, spoil=spoil), plan)
    assert_same(outcome, simulated(plan))
    assert sum(d.report.verdicts.get(Verdict.RECLIPPED, 0) for d in deliveries) > 0


@pytest.mark.parametrize("placement", some([Placement.DISTRIBUTED, Placement.LOCAL], 1))
def test_a_million_times_the_norm_is_refused_where_replies_carry_noise(tmp_path: Path, placement: Placement) -> None:
    plan = long_plan(3)
    spoil = lambda node, asked, content: huge(content) if node == 101 else content  # noqa: E731
    outcome, deliveries = deploy(grid_of(tmp_path, spoil=spoil), plan, placement)
    dropouts = lambda number, client: client in NODES[101]  # noqa: E731
    assert_same(outcome, simulated(plan, placement, dropouts))
    assert sum(d.report.verdicts.get(Verdict.TOO_LONG, 0) for d in deliveries) > 0


def test_a_client_named_twice_enters_once(tmp_path: Path) -> None:
    plan = long_plan(4)
    spoil = lambda node, asked, content: twice(content) if node == 101 else content  # noqa: E731
    outcome, deliveries = deploy(grid_of(tmp_path, spoil=spoil), plan)
    assert_same(outcome, simulated(plan))
    assert sum(d.report.verdicts.get(Verdict.REPEATED, 0) for d in deliveries) > 0


def test_a_message_answered_twice_enters_once(tmp_path: Path) -> None:
    plan, grid = long_plan(4), grid_of(tmp_path)
    grid.twice = lambda node, message: node == 101 and message.metadata.group_id != ""
    outcome, deliveries = deploy(grid, plan)
    assert_same(outcome, simulated(plan))
    assert sum(d.report.verdicts.get(Verdict.REPEATED, 0) for d in deliveries) > 0


# --- what nodes refuse


def test_a_node_whose_policy_refuses_the_plan_takes_no_part(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, Policy(max_clip_norm=0.01, min_noise_multiplier=0.1, max_rounds=10))
    with pytest.raises(InvalidValue, match=r"got 0 on 0 nodes \(3 refused\)"):
        deploy(grid, long_plan(3))


def test_rounds_beyond_a_clients_limit_are_declined_and_counted(tmp_path: Path) -> None:
    plan = make_plan([1.5] * 6, [0.5] * 6, cohort=CLIENTS)  # everybody in every round
    grid = grid_of(tmp_path, Policy(max_clip_norm=1.0, min_noise_multiplier=1.0, max_rounds=2))
    outcome, deliveries = deploy(grid, plan)
    assert [d.report.verdicts.get(Verdict.DECLINED, 0) for d in deliveries] == [0, 0, 40, 40, 40, 40]
    everybody = lambda number, client: number > 2  # noqa: E731
    assert_same(outcome, simulated(plan, dropouts=everybody))


def test_a_server_that_leaves_its_own_plan_is_declined(tmp_path: Path) -> None:
    plan = long_plan(2)
    grid = grid_of(tmp_path)
    push = grid.push_messages

    def lying(messages):
        for message in messages:
            if message.metadata.group_id:
                message.content["round"]["clip_norm"] = float(message.content["round"]["clip_norm"]) * 2
        return push(messages)

    grid.push_messages = lying  # type: ignore[method-assign]
    _, deliveries = deploy(grid, plan)
    for delivery in deliveries:
        assert delivery.report.verdicts == {Verdict.DECLINED: delivery.report.cohort}


def test_nodes_answer_a_clip_norm_that_follows_up_to_their_own_limit(tmp_path: Path) -> None:
    plan = make_plan([1.5] * 8, [0.05] * 8, cohort=CLIENTS / 2)
    following = ClipController(plan, target=0.9, rate=1.0, max_clip_norm=0.12)
    outcome, deliveries = deploy(grid_of(tmp_path / "free"), following)
    assert_same(outcome, simulated(following))
    assert outcome.clip_norm[-1] == pytest.approx(0.12)
    assert sum(d.report.verdicts.get(Verdict.DECLINED, 0) for d in deliveries) == 0
    limited = Policy(max_clip_norm=0.1, min_noise_multiplier=0.1, max_rounds=1000)
    with pytest.raises(InvalidValue, match=r"got 0 on 0 nodes \(3 refused\)"):  # before anything is spent
        deploy(grid_of(tmp_path / "limited", limited), following)
    with pytest.raises(InvalidValue, match="must have a max_clip_norm"):
        deploy(grid_of(tmp_path / "boundless"), replace(following, max_clip_norm=math.inf))


def test_a_clip_norm_follows_only_where_that_was_agreed_and_the_server_adds_the_noise(tmp_path: Path) -> None:
    keeper, plan = keeper_at(tmp_path, 101), long_plan(2)
    for placement in (Placement.LOCAL, Placement.DISTRIBUTED):
        assert "must be the plan's" in keeper.agree(Proposal(plan, placement, "", 2.0)).refused
    z = float(plan.noise_multiplier[0])
    for name, largest in (("fixed", 0.0), ("moving", 2.0)):
        assert not keeper.agree(Proposal(plan, Placement.CENTRAL, name, largest)).refused
        assert "another max_clip_norm" in keeper.agree(Proposal(plan, Placement.CENTRAL, name, 3.0)).refused
    asked = Round(run_id(plan, Placement.CENTRAL, "fixed"), 1, 2, 1.0, z, Placement.CENTRAL, 0.0)
    assert "has clip_norm 0.5" in keeper.admit(asked, [0]).declined[0][1]
    asked = replace(asked, run=run_id(plan, Placement.CENTRAL, "moving"))
    assert keeper.admit(asked, [0]).clients == (0,)
    assert "clip_norm" in keeper.admit(replace(asked, number=2, clip_norm=2.1), [0]).declined[0][1]
    assert "noise_multiplier" in keeper.admit(replace(asked, number=2, noise_multiplier=0.9 * z), [0]).declined[0][1]


@pytest.mark.parametrize("placement", [Placement.LOCAL, Placement.DISTRIBUTED])
def test_a_plan_whose_clip_norm_falls_below_the_least_share_is_refused_before_its_first_round(
    tmp_path: Path, placement: Placement
) -> None:
    """The least noise z_t C_t may be in a round in which neither z_t is least nor C_t largest."""
    plan = make_plan([2.0, 2.5, 1.0, 2.0], [1.0, 0.1, 1.0, 1.0])
    policy = Policy(10.0, 0.1, max_rounds=9, placements=frozenset([placement]), min_share_std=0.5)
    agreement = keeper_at(tmp_path, 101, policy).agree(Proposal(plan, placement, ""))
    assert not agreement.spans
    assert "round 2 of the plan: share_std must be >= 0.5, got 0.25" in agreement.refused


def test_a_round_without_the_agreed_placement_is_declined(tmp_path: Path) -> None:
    """LOCAL was agreed to; asking for the same run's replies without noise would void it."""
    keeper = keeper_at(tmp_path, 101)
    plan = long_plan(2)
    run, c, z = run_id(plan, Placement.LOCAL), float(plan.clip_norm[0]), float(plan.noise_multiplier[0])
    assert not keeper.agree(Proposal(plan, Placement.LOCAL, "")).refused
    for placement, share in ((Placement.CENTRAL, 0.0), (Placement.DISTRIBUTED, 0.1 * z * c)):
        admitted = keeper.admit(Round(run, 1, 2, c, z, placement, share), [0])
        assert admitted.clients == ()
        assert f"the server asks for {placement}" in admitted.declined[0][1]
    assert keeper.admit(Round(run, 1, 2, c, z, Placement.LOCAL, z * c), [0]).clients == (0,)


def test_a_cohort_larger_than_the_plan_has_clients_is_declined(tmp_path: Path) -> None:
    """A share of 1e-9 was added to an update of length 1, and the update left as it was."""
    keeper, plan = keeper_at(tmp_path, 101), long_plan(2)
    run, c, z = run_id(plan, Placement.DISTRIBUTED), float(plan.clip_norm[0]), float(plan.noise_multiplier[0])
    assert not keeper.agree(Proposal(plan, Placement.DISTRIBUTED, "")).refused
    for cohort in (CLIENTS + 1, 10**18):
        asked = Round(run, 1, 2, c, z, Placement.DISTRIBUTED, Placement.DISTRIBUTED.share_std(z * c, cohort))
        assert f"has at most {CLIENTS} members" in keeper.admit(asked, [0]).declined[0][1]
    assert keeper.admit(Round.of(plan, Placement.DISTRIBUTED, run, 0, CLIENTS), [0]).clients == (0,)


def test_nothing_but_updates_and_no_text_of_an_exception_leaves_a_node(tmp_path: Path) -> None:
    plan = make_plan([1.5] * 2, [0.5] * 2, cohort=CLIENTS)
    app = ClientApp()

    @app.train(mods=[private_mod(lambda context: keeper_at(tmp_path, context.node_id))])
    def train(message: Message, context: Context) -> Message:
        ask = Ask.from_content(message.content)
        if ask.round.number == 2:
            raise ValueError("record 7 says: 0123456789")
        raw = {name: torch.full_like(value, 1e9) for name, value in ask.weights.items()}
        content = Answer(ask.round.run, ask.round.number, tuple((c, raw) for c in ask.clients)).to_content()
        content["metrics"] = MetricRecord({"loss": 0.25, "num-examples": 3})
        content["more"] = ConfigRecord({"secret": "0123456789"})
        return Message(content, reply_to=message)

    @app.query("agree")
    def agree(message: Message, context: Context) -> Message:
        return client_app(lambda context: shard_at(tmp_path, context.node_id))(message, context)

    grid = LocalGrid({node: (app, {}) for node in NODES})
    replies: list[Message] = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: (lambda found: replies.extend(found) or found)(pull(ids))  # type: ignore[method-assign]
    _, deliveries = deploy(grid, plan)
    answers = [reply for reply in replies if reply.metadata.group_id == "1"]
    assert len(answers) == 3
    for reply in answers:
        assert set(reply.content) == {"updates", "answer"}
        for _, update in Answer.from_content(reply.content).updates:
            assert sum(float(value.double().square().sum()) for value in update.values()) <= 0.25
    failed = [reply.error.reason for reply in replies if reply.has_error()]
    assert failed == ["the app raised ValueError"] * 3
    assert [d.errors for d in deliveries] == [0, 3]


def test_a_client_whose_records_fail_takes_no_neighbour_along(tmp_path: Path) -> None:
    plan = make_plan([1.5] * 3, [0.5] * 3, cohort=CLIENTS)

    def build(context: Context) -> Shard:
        shard = shard_at(tmp_path, context.node_id)
        good = shard.records

        def some(client: int) -> object:
            if client == 3:
                raise RuntimeError("a record that cannot be read")
            return good(client)

        return Shard(shard.keeper, shard.model, shard.loss, some)

    grid = LocalGrid({node: (client_app(build), {}) for node in NODES})
    outcome, deliveries = deploy(grid, plan)
    assert_same(outcome, simulated(plan, dropouts=lambda number, client: client == 3))
    assert [d.report.missing for d in deliveries] == [1, 1, 1]


# --- what clients tell beside their updates


ASKED = Telemetry(norms=4, loss=True, accuracy=True)
TELLING = replace(GENEROUS, tell_values=True)


def scored(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> object:
    return loss(model, batch), model(batch[0]).argmax(1) == batch[1]


def telling(folder: Path, policy: Policy = TELLING) -> LocalGrid:
    def build(context: Context) -> Shard:
        return replace(shard_at(folder, context.node_id, policy), loss=scored)

    return LocalGrid({node: (client_app(build), {}) for node in NODES})


def test_the_server_reads_loss_and_accuracy_as_a_simulation_does(tmp_path: Path) -> None:
    plan = long_plan(4)
    outcome, deliveries = deploy(telling(tmp_path), plan, telemetry=ASKED)
    model = make_model()
    expected = simulate(
        model, scored, Clients.equal((INPUTS, LABELS), records=1), plan, momentum(model), seed=SEED,
        placement=Placement.CENTRAL, telemetry=ASKED,
    )  # fmt: skip
    assert_same(outcome, expected)
    for here, there in zip(outcome.telemetry, expected.telemetry, strict=True):
        assert here.sums == pytest.approx(there.sums, abs=1e-5)
    assert sum(d.report.verdicts.get(Verdict.TYPES, 0) for d in deliveries) == 0


def test_a_node_tells_no_loss_unless_its_policy_says_so_and_the_server_adds_the_noise(tmp_path: Path) -> None:
    plan = long_plan(2)
    with pytest.raises(InvalidValue, match=r"got 0 on 0 nodes \(3 refused\)"):  # before anything is spent
        deploy(telling(tmp_path / "silent", GENEROUS), plan, telemetry=ASKED)
    for policy, placement in ((GENEROUS, Placement.CENTRAL), (TELLING, Placement.LOCAL)):
        keeper = keeper_at(tmp_path / placement, 101, policy)
        proposal = Proposal(plan, placement, "", 0.0, ("loss",))
        assert "tell_values=True" in keeper.agree(proposal).refused
        # A server that proposes nothing, and asks all the same.
        assert not keeper.agree(Proposal(plan, placement, "")).refused
        app = client_app(lambda context, policy=policy, place=placement: replace(  # type: ignore[misc]
            shard_at(tmp_path / place, 101, policy), loss=scored))  # fmt: skip
        asked = Round.of(plan, placement, run_id(plan, placement), 0, 1)
        ask = Ask(asked, (0,), dict(make_model().state_dict()), ("loss",))
        grid = LocalGrid({101: (app, {})})
        (number,) = grid.push_messages([Message(ask.to_content(), 101, "train")])
        (reply,) = grid.pull_messages([number])
        answer = Answer.from_content(reply.content)
        assert [client for client, _ in answer.updates] == [0]
        assert not answer.values


def test_values_of_other_lengths_are_refused(tmp_path: Path) -> None:
    content = Answer("ab", 1, ((0, {"w": torch.zeros(1)}),), (), {0: (1.0, 0.5), 1: (2.0, 0.25)}).to_content()
    assert Answer.from_content(content).values == {0: (1.0, 0.5), 1: (2.0, 0.25)}
    content["answer"]["values"] = [1.0, 0.5, 2.0]
    with pytest.raises(FileRefused, match="as many values"):
        Answer.from_content(content)


def test_a_client_without_records_tells_nothing_and_takes_no_neighbour_along(tmp_path: Path) -> None:
    content = Answer("ab", 1, ((0, {"w": torch.zeros(1)}),), (), {0: (1.0, 0.5), 1: ()}).to_content()
    assert Answer.from_content(content).values == {0: (1.0, 0.5)}


def test_values_of_clients_that_were_not_admitted_stay_on_the_node(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train(mods=[private_mod(lambda context: keeper_at(tmp_path, 101, TELLING))])
    def train(message: Message, context: Context) -> Message:
        ask = Ask.from_content(message.content)
        updates = tuple((client, dict(ask.weights)) for client in range(5))
        values = {0: (1.0,), 1: (2.0,), 2: (1.0,), 3: (1.0,)}
        return Message(Answer(ask.round.run, 1, updates, (), values).to_content(), reply_to=message)

    plan = long_plan(2)
    keeper_at(tmp_path, 101, TELLING).agree(Proposal(plan, Placement.CENTRAL, "", 0.0, ("loss",)))
    asked = Round.of(plan, Placement.CENTRAL, run_id(plan, Placement.CENTRAL), 0, 1)
    ask = Ask(asked, (0, 1, 29), dict(make_model().state_dict()), ("loss",))
    grid = LocalGrid({101: (app, {})})
    (number,) = grid.push_messages([Message(ask.to_content(), 101, "train")])
    (reply,) = grid.pull_messages([number])
    answer = Answer.from_content(reply.content)
    assert [client for client, _ in answer.updates] == [0, 1]
    assert answer.values == {0: (1.0,), 1: (2.0,)}
    with pytest.raises(InvalidValue, match="as many of each client"):
        Answer("ab", 1, (), (), {0: (1.0,), 1: (1.0, 2.0)}).to_content()


def test_messages_of_before_there_were_values_are_read(tmp_path: Path) -> None:
    plan = long_plan(2)
    proposal = Proposal(plan, Placement.CENTRAL, "").to_content()
    del proposal["plan"]["values"], proposal["plan"]["max_clip_norm"]
    assert Proposal.from_content(proposal) == Proposal(plan, Placement.CENTRAL, "")


# --- restarts


class Killed(BaseException):
    """Nothing in the package catches it."""


@pytest.mark.parametrize("placement", some(Placement, 1))
def test_a_killed_server_goes_on_and_never_under_reports(tmp_path: Path, placement: Placement) -> None:
    plan = long_plan(6)
    grid = grid_of(tmp_path)
    push, asked = grid.push_messages, itertools.count()

    def dying(messages):
        numbers = push(messages)
        if any(message.metadata.group_id == "3" for message in grid.sent) and next(asked) == 0:
            raise Killed  # the members have been asked, and have answered
        return numbers

    grid.push_messages = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        deploy(grid, plan, placement, journal=tmp_path / "journal")
    model = make_model()
    again = Server(model, plan, momentum(model), seed=SEED, placement=placement, journal=tmp_path / "journal")
    # With noise of their own the members' replies may have been seen: the round is spent.
    assert again.spent == (2 if placement is Placement.CENTRAL else 3)
    again.stop()
    outcome, deliveries = deploy(grid, plan, placement, journal=tmp_path / "journal")
    assert outcome.ledger.steps == plan.steps
    if placement is Placement.CENTRAL:
        assert_same(outcome, simulated(plan))  # done again with the same cohort and noise
    assert all(d.report.missing == 0 for d in deliveries)


def test_a_finished_run_asks_nobody(tmp_path: Path) -> None:
    plan = long_plan(2)
    first, _ = deploy(grid_of(tmp_path), plan, journal=tmp_path / "journal")
    again, deliveries = deploy(LocalGrid({}), plan, journal=tmp_path / "journal")
    assert deliveries == []
    assert_same(again, first)
