"""Facts: what is released of the updates' norms is within C_t with them, costs nothing, is right, can be followed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decrescendo.clipping import ClippedSum, Diagnostics, EngineSettings
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, PlanViolation
from decrescendo.federated import (
    Clients,
    LocalSteps,
    Outcome,
    Placement,
    Records,
    Reply,
    Server,
    Verdict,
    client_values,
    prepare,
    rounds,
    simulate,
)
from decrescendo.federated.cohort import CohortSum
from decrescendo.federated.journal import Journal
from decrescendo.federated.replies import extra_coordinates
from decrescendo.federated.update import client_update, clip_update
from decrescendo.optim.noise import privatise
from decrescendo.plans.plan import Plan
from decrescendo.training.loop.progress import Progress
from decrescendo.training.run import Run
from decrescendo.training.steering.controller import ClipController

from .conftest import CLIENTS, loss, make_model, make_plan, records, sgd
from .test_server import flat, honest

NORMS = Telemetry(norms=6)
LOCAL = LocalSteps(0.3, epochs=2)


class Killed(Exception):
    """Stands for SIGKILL."""


def run_of(plan: Plan | ClipController, *, lr: float = 0.5, **options: Any) -> tuple[Outcome, dict[str, Tensor]]:
    model = make_model()
    options = {"placement": Placement.CENTRAL, **options}
    clients = Clients.equal(records(), records=1)
    outcome = simulate(model, loss, clients, plan, sgd(model, lr), seed=3, **options)
    return outcome, dict(outcome.weights)


def served(plan: Plan | ClipController, local: LocalSteps | None = None, **options: Any) -> Server:
    model = make_model()
    server = Server(model, plan, sgd(model), seed=3, placement=Placement.CENTRAL, **options)
    while not server.done:
        opened = server.open()
        for client in opened.cohort:
            assert server.receive(honest(server, opened, client, local)).verdict.taken
        server.close()
    return server


def updates() -> Iterator[dict[str, Tensor]]:
    """Each client's, one by one."""
    inputs, targets = records()
    for i in range(CLIENTS):
        yield client_update(make_model(), loss, (inputs[i : i + 1], targets[i : i + 1]))


def length_of(update: dict[str, Tensor]) -> float:
    return float(torch.cat([part.double().flatten() for part in update.values()]).norm())


@pytest.mark.parametrize("local", [None, LOCAL], ids=["gradients", "local steps"])
def test_it_moves_no_bit_of_the_weights_and_costs_nothing(local: LocalSteps | None) -> None:
    plan = make_plan()
    (without, plain), (outcome, weights) = (run_of(plan, local=local, telemetry=of) for of in (None, NORMS))
    assert outcome.guarantee == without.guarantee
    assert outcome.ledger == without.ledger
    assert all(torch.equal(weights[name], value) for name, value in plain.items())
    assert without.telemetry == ()
    assert [reading.step for reading in outcome.telemetry] == [1, 2, 3]


@pytest.mark.parametrize("local", [None, LOCAL], ids=["gradients", "local steps"])
def test_a_simulation_reads_what_a_server_reads(local: LocalSteps | None) -> None:
    plan = make_plan()
    outcome, _ = run_of(plan, local=local, telemetry=NORMS)
    for here, there in zip(outcome.telemetry, served(plan, local, telemetry=NORMS).telemetry, strict=True):
        assert here.sums == pytest.approx(there.sums, abs=1e-5)
        assert (here.clip_norm, here.noise_multiplier) == (there.clip_norm, there.noise_multiplier)


def test_shares_are_those_of_the_updates_that_were_sent() -> None:
    """With hardly any noise; by the definition of the coordinates, on updates that are computed one by one."""
    plan = make_plan((1e-4,), (3.0,), cohort=CLIENTS)
    (reading,) = run_of(plan, telemetry=NORMS)[0].telemetry
    lengths = [length_of(clip_update(update, 3.0)) for update in updates()]
    for k, share in enumerate(reading.norms):
        steps = [min(max(6 * (1 - length / 3.0) - (5 - k), 0.0), 1.0) for length in lengths]
        assert share.value == pytest.approx(sum(steps) / CLIENTS, abs=1e-3)
    assert 0.1 < reading.norms[2].value < reading.norms[-1].value <= 1.001


@given(
    st.floats(0, 1),
    st.integers(0, 40),
    st.floats(1e-6, 1e6),
    st.sampled_from([(), ("loss",), ("accuracy",), ("loss", "accuracy")]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.booleans(),
    st.sampled_from([0.005, 0.5]),
)
def test_an_update_and_its_coordinates_are_at_most_c_long(
    part: float, bins: int, clip_norm: float, told: tuple[str, ...], value: float, finite: bool, share: float
) -> None:
    if not bins and not told:
        return
    asked = Telemetry(norms=bins, loss="loss" in told, accuracy="accuracy" in told, share=share)
    length = part * asked.gradient_limit(clip_norm) if finite else 0.0
    values = torch.full((1, len(told)), value, dtype=torch.float64) if told else None
    lengths, counted = torch.tensor([length], dtype=torch.float64), torch.tensor([finite])
    found = extra_coordinates(asked, lengths, values, clip_norm, counted)
    assert length**2 + float(found.square().sum()) <= clip_norm**2


def scored(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    outputs = model(batch[0])
    return loss(model, batch), outputs.argmax(1) == batch[1]


@pytest.mark.parametrize("local", [None, LOCAL], ids=["gradients", "local steps"])
@pytest.mark.parametrize("each", [1, 2], ids=["one record", "two records"])
def test_loss_and_accuracy_are_means_over_the_clients(each: int, local: LocalSteps | None) -> None:
    """With hardly any noise, against a mean over clients that is computed one by one; and what a server reads."""
    plan = make_plan((1e-4,), (3.0,), cohort=CLIENTS // each, clients=CLIENTS // each)
    inputs, targets = records()
    asked = Telemetry(norms=4, loss=True, accuracy=True, loss_range=(0, 2))
    parts = [(inputs[i : i + each], targets[i : i + each]) for i in range(0, CLIENTS, each)]
    start = make_model()
    expected = torch.tensor([client_values(start, scored, part, asked) for part in parts]).mean(0).tolist()
    model = make_model()
    clients, told = Clients.equal((inputs, targets), records=each), {"telemetry": asked, "seed": 3}
    central = {"placement": Placement.CENTRAL}
    outcome = simulate(model, scored, clients, plan, sgd(model), local=local, **told, **central)
    other = make_model()
    server = Server(other, plan, sgd(other), **told, **central)
    opened = server.open()
    assert server.values == ("loss", "accuracy")
    for client in opened.cohort:
        sent = prepare(client_update(start, scored, parts[client], local), opened.round, None)
        values = client_values(start, scored, parts[client], asked)
        reply = Reply(client, 1, opened.round.run, sent, values)
        assert server.receive(reply).verdict is Verdict.ACCEPTED
    server.close()
    for found in (*outcome.telemetry, *server.telemetry):
        assert found.loss is not None
        assert found.accuracy is not None
        assert found.loss.value == pytest.approx(expected[0], abs=2e-3)
        assert found.accuracy.value == pytest.approx(expected[1], abs=2e-3)
    assert outcome.telemetry[0].sums == pytest.approx(server.telemetry[0].sums, abs=1e-5)
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, other.state_dict()[name], atol=1e-6)
    assert "the mean loss within 0 and 2" in str(outcome.statement())


def test_an_update_leaves_room_for_what_is_told() -> None:
    """Broken if updates were clipped to C_t: with half of C_t for the loss, the sum of one client was 1.3 C_t long."""
    asked = Telemetry(norms=0, loss=True, share=0.5)
    plan = make_plan((1e-9,), (1e-2,), cohort=CLIENTS)
    model = make_model()
    server = Server(model, plan, sgd(model, 1.0), seed=3, placement=Placement.CENTRAL, telemetry=asked)
    opened = server.open()
    before = flat(server.weights())
    reply = honest(server, opened, opened.cohort[0])
    assert server.receive(replace(reply, values=(10.0,))).verdict is Verdict.ACCEPTED
    server.close()
    moved = float((flat(server.weights()) - before).norm()) * CLIENTS
    assert moved == pytest.approx(0.5e-2, rel=1e-3)
    assert math.hypot(moved, server.telemetry[0].sums[0] * CLIENTS) == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize(
    "values", [(1.0,), (1.0, 0.5, 0.5), [1.0, 0.5], (1, 0.5), (torch.tensor(1.0), 0.5), None, "12"], ids=repr
)
def test_other_values_than_were_asked_for_are_refused(values: Any) -> None:
    model, asked = make_model(), Telemetry(loss=True, accuracy=True)
    server = Server(model, make_plan(), sgd(model), seed=3, placement=Placement.CENTRAL, telemetry=asked)
    opened = server.open()
    reply = honest(server, opened, opened.cohort[0])
    received = server.receive(replace(reply, values=values))
    assert received.verdict is Verdict.TYPES
    assert "2 floats, or empty" in received.reason
    assert server.receive(replace(reply, values=(math.nan, math.inf))).verdict.taken
    server.close()
    assert math.isfinite(server.telemetry[0].loss.value)  # type: ignore[union-attr]


def test_a_reply_that_is_too_long_has_the_coordinates_of_what_is_added() -> None:
    plan = make_plan((1e-4,), (1e-3,), cohort=CLIENTS)
    model = make_model()
    server = Server(model, plan, sgd(model), seed=3, placement=Placement.CENTRAL, telemetry=NORMS)
    opened = server.open()
    for client in opened.cohort:
        reply = honest(server, opened, client)
        for tensor in reply.tensors.values():
            tensor.mul_(100)
        server.receive(reply)
    server.close()
    assert server.telemetry[0].norms[-1].value == pytest.approx(0, abs=1e-3)


@pytest.mark.filterwarnings("ignore:no client's reply")
def test_noise_of_rounds_that_nobody_answers_has_the_planned_deviation() -> None:
    plan = make_plan([1.5] * 150, [0.7] * 150)
    outcome, _ = run_of(plan, telemetry=NORMS, dropouts=lambda number, client: True)
    drawn = torch.tensor([reading.sums for reading in outcome.telemetry], dtype=torch.float64) * 8 / (1.5 * 0.7)
    assert drawn.numel() == 900
    assert float(drawn.std()) == pytest.approx(1, abs=0.1)  # 4 deviations
    assert abs(float(drawn.mean())) < 4 / 30


class TestController:
    def controller(self, clip: float, rounds: int = 60) -> ClipController:
        plan = make_plan([0.5] * rounds, [clip] * rounds, cohort=CLIENTS / 2)
        return ClipController(plan, "quantile", target=0.5, rate=0.5)

    def test_steps_of_unit_norm_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="rescale_to_unit_norm=False"):
            run_of(replace(self.controller(1.0), rescale_to_unit_norm=True))

    @pytest.mark.parametrize("off", [0.05, 20.0])
    def test_the_clip_norm_goes_to_the_quantile(self, off: float) -> None:
        outcome, _ = run_of(self.controller(off), lr=1e-9)  # weights stay: so do the norms
        lengths = torch.tensor([length_of(update) for update in updates()])
        assert torch.tensor(outcome.clip_norm[-15:]).mean() == pytest.approx(float(lengths.median()), rel=0.2)

    def test_a_server_follows_as_a_simulation_does_and_says_so(self, tmp_path: Path) -> None:
        follow = self.controller(2.0, rounds=6)
        outcome, weights = run_of(follow)
        server = served(follow)
        assert outcome.guarantee.epsilon == follow.plan.guarantee.epsilon
        assert server.finish().clip_norm == pytest.approx(outcome.clip_norm, rel=1e-5)
        assert len(set(outcome.clip_norm)) == 6
        for name, value in server.weights().items():
            torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5)
        run = outcome.to_run()
        run.save(tmp_path / "run")
        again = Run.load(tmp_path / "run")
        assert (again.clip_norm, again.telemetry) == (outcome.clip_norm, outcome.telemetry)
        assert "C_t followed the norms" in (tmp_path / "run/statement.md").read_text()

    def test_a_run_that_is_gone_on_with_follows_the_same_norms(self, tmp_path: Path) -> None:
        follow = self.controller(2.0, rounds=5)
        expected, weights = run_of(follow)

        def kill(at: int) -> Any:
            def called(progress: Progress) -> None:
                if progress.step == at:
                    raise Killed

            return called

        for at in (1, 2, 4):
            with pytest.raises(Killed):
                run_of(follow, journal=tmp_path / "journal", callback=kill(at))
        outcome, found = run_of(follow, journal=tmp_path / "journal")
        assert outcome.telemetry == expected.telemetry
        assert outcome.clip_norm == expected.clip_norm
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        with pytest.raises(PlanViolation, match="telemetry that it began with"):
            run_of(follow.plan, journal=tmp_path / "journal")

    def test_updates_are_cut_to_the_norm_that_noise_is_added_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The moved one, for both; together with their coordinates, and whatever was sent."""
        sums: list[ClippedSum] = []
        monkeypatch.setattr(
            rounds, "privatise", lambda clipped, *rest: sums.append(clipped) or privatise(clipped, *rest)
        )
        model, follow = make_model(), self.controller(2.0, rounds=3)
        server = Server(model, follow, sgd(model), seed=3, placement=Placement.CENTRAL)
        while not server.done:
            opened = server.open()
            reply = honest(server, opened, opened.cohort[0])
            for tensor in reply.tensors.values():
                tensor.mul_(1e3)
            server.receive(reply)
            server.close()
            (clipped, c) = sums[-1], opened.round.clip_norm
            assert clipped.sensitivity == c
            assert clipped.extra_coordinates is not None
            joint = length_of({**clipped.gradients, "": clipped.extra_coordinates})
            assert 0.99 * c < joint <= c
        assert len({one.sensitivity for one in sums}) == 3

    def test_an_aborted_round_moves_nothing(self) -> None:
        model, follow = make_model(), self.controller(2.0, rounds=3)
        server = Server(model, follow, sgd(model), seed=3, placement=Placement.CENTRAL)
        norms = [server.open().round.clip_norm]
        server.abort()
        norms.append(server.open().round.clip_norm)
        server.close()
        norms.append(server.open().round.clip_norm)
        server.close()
        assert norms[0] == norms[1] != norms[2]
        outcome = server.finish()
        assert outcome.clip_norm == tuple(norms)
        assert [reading.step for reading in outcome.telemetry] == [2, 3]
        assert outcome.to_run().telemetry == ()  # a run's readings are of all its steps
        assert outcome.to_run().clip_norm == tuple(norms)

    def test_after_an_aborted_round_the_clip_norm_is_within_its_limits(self) -> None:
        plan, model = make_plan((2.0,) * 4, (0.1, 0.1, 0.5, 0.5)), make_model()
        follow = ClipController(plan, "quantile", target=0.99, rate=1.0, max_clip_norm=0.6)
        server = Server(model, follow, sgd(model), seed=3, placement=Placement.CENTRAL)
        norms = [server.open().round.clip_norm]
        server.close()
        norms.append(server.open().round.clip_norm)
        server.abort()
        norms.append(server.open().round.clip_norm)
        assert norms[0] == 0.1 < norms[1]
        assert norms[2] <= 0.6 < norms[1] / 0.1 * 0.5


def test_what_a_round_cannot_release_is_refused() -> None:
    plan = make_plan()
    for options in (
        {"telemetry": NORMS, "placement": Placement.LOCAL},
        {"telemetry": NORMS, "placement": Placement.DISTRIBUTED},
    ):
        with pytest.raises(InvalidValue, match=r"must be in Placement\.CENTRAL"):
            run_of(plan, **options)
    with pytest.raises(InvalidValue, match=r"must be in Placement\.CENTRAL"):
        run_of(ClipController(plan), placement=Placement.LOCAL)
    model = make_model()
    server = Server(model, plan, sgd(model), seed=3, placement=Placement.CENTRAL, telemetry=NORMS)
    opened = server.open()
    nothing = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    present = len(opened.cohort)
    odd = (torch.zeros(6, 1), torch.zeros(6, dtype=torch.complex64), [0.0] * 6, torch.zeros(6).to_sparse())
    for extra in (None, torch.zeros(5), torch.full((6,), 1e3), torch.full((6,), torch.nan), *odd):
        with pytest.raises(InvalidValue, match="extra_coordinates must be the sum of the 6"):
            server.release(nothing, present, Diagnostics(present, 0, 0, 0.0), extra)
    server.release(nothing, present, Diagnostics(present, 0, 0, 0.0), torch.zeros(6))
    assert len(server.telemetry) == 1


def test_a_reading_is_seen_only_once_its_round_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the round is repeated with the same noise, and perhaps another reply less; two readings of it would
    tell that reply's norm."""
    model = make_model()
    server = Server(
        model, make_plan(), sgd(model), seed=3, placement=Placement.CENTRAL, telemetry=NORMS, journal=tmp_path
    )
    server.open()
    server.close()
    server.open()
    monkeypatch.setattr(Journal, "write", lambda self, state: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        server.close()
    assert [reading.step for reading in server.telemetry] == [1]
    assert [reading.step for reading in server.finish().telemetry] == [1]


def test_a_statement_says_what_was_released(tmp_path: Path) -> None:
    outcome, _ = run_of(ClipController(make_plan()), telemetry=NORMS)
    assert "beside the sum of the updates: the distribution of gradient norms in 6 bins" in outcome.statement()
    assert "C_t followed" in outcome.statement()
    outcome.to_run().save(tmp_path / "run")
    assert "the distribution of gradient norms in 6 bins" in (tmp_path / "run/statement.md").read_text()


def test_what_a_client_tells_follows_from_its_own_records_with_local_steps_too() -> None:
    """By a loss that looks at all records that it gets: in one pass over all clients one moved the sum by 40 C_t."""
    inputs, targets = records(2 * CLIENTS)
    asked = Telemetry(norms=0, loss=True, loss_range=(0, 1))

    def centred(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])[:, 0]
        return (out - out.mean()).square()

    cohorts = CohortSum(make_model(), centred, LOCAL, EngineSettings(), lambda: 0, asked)

    def told(rows: Tensor) -> Tensor:
        found = cohorts.clipped_sum(Records((rows, targets), np.full(CLIENTS, 2)), 1.0).extra_coordinates
        assert found is not None
        return found

    changed = inputs.clone()
    changed[:2] = torch.tensor([[50.0], [-50.0]]).expand(2, inputs.shape[1])
    _, unit = asked.units(1.0)
    assert float((told(changed) - told(inputs)).abs()) <= unit * (1 + 1e-6)
    expected = torch.tensor([
        client_values(make_model(), centred, (inputs[i : i + 2], targets[i : i + 2]), asked)[0]
        for i in range(0, 2 * CLIENTS, 2)
    ])  # fmt: skip
    assert float(told(inputs)) == pytest.approx(float((expected.clamp(0, 1) - 0.5).sum()) * unit, abs=1e-4)


def test_a_sum_from_elsewhere_must_leave_room_for_what_is_told() -> None:
    asked, model = Telemetry(norms=0, loss=True, share=0.5), make_model()
    plan = make_plan((1.0,), (1.0,), cohort=CLIENTS)
    server = Server(model, plan, sgd(model), seed=3, placement=Placement.CENTRAL, telemetry=asked)
    members = len(server.open().cohort)
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    next(iter(total.values())).flatten()[0] = float(members)
    seen, extra = Diagnostics(members, 0, 0, 0.0), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(InvalidValue, match=r"parts of length 0\.5 at most"):
        server.release(total, members, seen, extra)


def test_a_model_that_diverged_has_the_worst_score() -> None:
    model, asked = make_model(), Telemetry(norms=0, loss=True, accuracy=True)
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    inputs, _ = records()
    values = client_values(model, scored, (inputs[:4], torch.zeros(4, dtype=torch.int64)), asked)
    assert all(map(math.isnan, values))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_recurrent_model_is_told_of_with_local_steps_too() -> None:
    """Under no_grad torch has no rule for it in vmap."""

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.top = torch.nn.LSTM(1, 4, batch_first=True), torch.nn.Linear(4, 2)

        def forward(self, rows: Tensor) -> Tensor:
            return self.top(self.inner(rows[..., None])[0][:, -1])

    model, asked = Recurrent(), Telemetry(norms=0, loss=True, loss_range=(0, 2))
    rows = records()
    cohorts = CohortSum(model, loss, LOCAL, EngineSettings(), lambda: 0, asked)
    found = cohorts.clipped_sum(Records(rows, np.full(CLIENTS, 1)), 1.0).extra_coordinates
    losses = loss(model, rows).detach().clamp(0, 2) / 2 - 0.5
    assert found is not None
    assert float(found) == pytest.approx(float(losses.sum()) * asked.units(1.0)[1], abs=1e-4)
