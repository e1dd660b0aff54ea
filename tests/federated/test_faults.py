"""Hostile and broken replies: refused or shortened, counted, and never more than C_t in the sum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from decrescendo.errors import PlanViolation
from decrescendo.federated import Opened, Placement, Reply, Server, Verdict
from decrescendo.federated.server import Server as Whole
from decrescendo.federated.summing import ExactSum, norm_of

from .conftest import make_model, make_plan, sgd
from .test_server import flat, honest, make_server

# Without the run-time type checker of the test run, which would raise before the server can judge.
raw_receive: Callable[[Server, Reply], Any] = getattr(Whole.receive, "__wrapped__", Whole.receive)


def forged(client: Any, number: Any, run: Any, tensors: Any) -> Reply:
    """A reply with values of any kind, as a broken sender makes it."""
    reply = Reply(0, 1, "", {})
    for name, value in (("client", client), ("round", number), ("run", run), ("tensors", tensors)):
        object.__setattr__(reply, name, value)
    return reply


Change = Callable[[dict[str, Tensor]], Any]
BROKEN: dict[str, tuple[Change, Verdict]] = {
    "nothing": (lambda t: {}, Verdict.NAMES),
    "no mapping": (lambda t: None, Verdict.NAMES),
    "one missing": (lambda t: dict(list(t.items())[1:]), Verdict.NAMES),
    "one too many": (lambda t: t | {"more": torch.zeros(1)}, Verdict.NAMES),
    "another shape": (lambda t: {k: v.unsqueeze(0) for k, v in t.items()}, Verdict.SHAPES),
    "transposed": (lambda t: {k: v.t() for k, v in t.items()}, Verdict.SHAPES),
    "empty": (lambda t: {k: v[:0] for k, v in t.items()}, Verdict.SHAPES),
    "whole numbers": (lambda t: {k: v.long() for k, v in t.items()}, Verdict.TYPES),
    "half": (lambda t: {k: v.half() for k, v in t.items()}, Verdict.TYPES),
    "complex": (lambda t: {k: v.to(torch.complex64) for k, v in t.items()}, Verdict.TYPES),
    "lists": (lambda t: {k: v.tolist() for k, v in t.items()}, Verdict.TYPES),
    "sparse": (lambda t: {k: v.to_sparse() for k, v in t.items()}, Verdict.TYPES),
    "meta": (lambda t: {k: v.to("meta") for k, v in t.items()}, Verdict.TYPES),
    "nan": (lambda t: {k: v * float("nan") for k, v in t.items()}, Verdict.NONFINITE),
    "one inf": (
        lambda t: {k: torch.where(v == v.max(), torch.inf, v) for k, v in t.items()},
        Verdict.NONFINITE,
    ),
}


def opened_server(placement: Placement) -> tuple[Server, Opened]:
    """A server with a round of which somebody is a member."""
    server = make_server(placement)
    opened = server.open()
    assert len(opened.cohort) >= 3
    return server, opened


def sum_of(server: Server) -> Tensor:
    """What is in the sum so far: white box."""
    total: ExactSum = server._rounds.replies.total  # type: ignore[assignment]
    return flat(total.value())


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("kind", BROKEN)
def test_a_malformed_reply_is_refused_counted_and_may_be_mended(kind: str, placement: Placement) -> None:
    server, opened = opened_server(placement)
    client = opened.cohort[0]
    good = honest(server, opened, client)
    change, verdict = BROKEN[kind]
    tensors = change(dict(good.tensors))
    if kind == "transposed":  # a vector's transpose is itself
        assert tensors["0.weight"].shape != good.tensors["0.weight"].shape
    received = raw_receive(server, forged(client, good.round, good.run, tensors))
    assert (received.verdict, bool(received.reason)) == (verdict, True)
    assert not sum_of(server).any()
    assert server.receive(good).verdict is Verdict.ACCEPTED
    report = server.close()
    assert report.verdicts == {verdict: 1, Verdict.ACCEPTED: 1}
    assert report.missing == len(opened.cohort) - 1


def test_replies_that_do_not_belong_are_refused() -> None:
    server, opened = opened_server(Placement.CENTRAL)
    client, stranger = opened.cohort[0], next(c for c in range(40) if c not in opened.cohort)
    good = honest(server, opened, client)
    verdicts = [
        server.receive(good).verdict,
        server.receive(good).verdict,
        server.receive(Reply(stranger, good.round, good.run, good.tensors)).verdict,
        server.receive(Reply(-1, good.round, good.run, good.tensors)).verdict,
        server.receive(Reply(opened.cohort[1], good.round + 1, good.run, good.tensors)).verdict,
        server.receive(Reply(opened.cohort[1], good.round, "another", good.tensors)).verdict,
        raw_receive(server, forged("1", good.round, good.run, good.tensors)).verdict,
        raw_receive(server, forged([1], good.round, good.run, good.tensors)).verdict,
        raw_receive(server, forged(True, good.round, good.run, good.tensors)).verdict,
        server.declined(opened.cohort[2], "too loud").verdict,
    ]
    assert verdicts == [
        Verdict.ACCEPTED,
        Verdict.REPEATED,
        Verdict.NOT_ASKED,
        Verdict.NOT_ASKED,
        Verdict.OTHER_ROUND,
        Verdict.OTHER_RUN,
        Verdict.NOT_ASKED,
        Verdict.NOT_ASKED,
        Verdict.NOT_ASKED,
        Verdict.DECLINED,
    ]
    report = server.close()
    assert report.taken == 1
    # Late: after the close, and in the next round.
    late = honest(server, opened, opened.cohort[1])
    assert server.receive(late).verdict is Verdict.OTHER_ROUND
    server.open()
    assert server.receive(late).verdict is Verdict.OTHER_ROUND
    assert server.close().verdicts[Verdict.OTHER_ROUND] == 2


@pytest.mark.parametrize("factor", [1e6, 1e30, 1e200])
def test_a_long_update_is_shortened_to_the_clip_norm(factor: float) -> None:
    server, opened = opened_server(Placement.CENTRAL)
    good = honest(server, opened, opened.cohort[0])
    wide = {name: tensor.double() * factor for name, tensor in good.tensors.items()}
    received = server.receive(Reply(opened.cohort[0], 1, good.run, wide))
    assert received.verdict is Verdict.RECLIPPED
    c = opened.round.clip_norm
    found = sum_of(server)
    assert c * (1 - 1e-8) < float(found.norm()) <= c
    direction = flat(dict(good.tensors)) / flat(dict(good.tensors)).norm()
    torch.testing.assert_close(found, direction * c, rtol=0, atol=1e-8)


@pytest.mark.parametrize("placement", [Placement.DISTRIBUTED, Placement.LOCAL])
def test_what_no_honest_client_sends_is_refused_where_it_cannot_be_shortened(placement: Placement) -> None:
    server, opened = opened_server(placement)
    first, second, third = opened.cohort[:3]
    longest = opened.round.clip_norm + opened.round.share_std * (26**0.5 + 40)
    for client, norm, verdict in (
        (first, 1e6, Verdict.TOO_LONG),
        (second, longest * 1.001, Verdict.TOO_LONG),
        (third, longest * 0.999, Verdict.ACCEPTED),
    ):
        flat_part = {name: torch.ones(p.shape, dtype=torch.float64) for name, p in make_model().named_parameters()}
        scale = norm / norm_of(flat_part)
        reply = Reply(client, 1, opened.round.run, {name: part * scale for name, part in flat_part.items()})
        assert server.receive(reply).verdict is verdict
    spike = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in make_model().named_parameters()}
    spike["0.bias"][0] = opened.round.clip_norm + opened.round.share_std * 41
    assert server.receive(Reply(second, 1, opened.round.run, spike)).verdict is Verdict.TOO_LONG


EXTREME = st.sampled_from([0.0, 1e-300, 1e-40, 1e-8, 0.5, 1.0, 3.0, 1e6, 1e25, 1e150, 1e300])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_reply_moves_the_sum_by_more_than_the_clip_norm(data: st.DataObject) -> None:
    """Whatever was received before it, in float32 or float64, in whatever size: exactly, as stored."""
    server, opened = opened_server(Placement.CENTRAL)
    before = sum_of(server)
    for client in data.draw(st.permutations(opened.cohort)):
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
        size, kind = data.draw(EXTREME), data.draw(st.sampled_from([torch.float32, torch.float64]))
        tensors = {
            name: (torch.randn(p.shape, generator=generator, dtype=torch.float64) * size).to(kind)
            for name, p in make_model().named_parameters()
        }
        received = server.receive(Reply(client, 1, opened.round.run, tensors))
        after = sum_of(server)
        assert float((after - before).norm()) <= opened.round.clip_norm
        assert received.verdict.taken == (not any(torch.isinf(t).any() for t in tensors.values()))
        before = after


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_order_of_replies_changes_no_bit(data: st.DataObject) -> None:
    placement = data.draw(st.sampled_from(list(Placement)))
    weights: list[Tensor] = []
    keep = None
    for _ in range(2):
        server = make_server(placement)
        opened = server.open()
        keep = data.draw(st.sets(st.sampled_from(opened.cohort))) if keep is None else keep
        for client in data.draw(st.permutations(sorted(keep))):
            server.receive(honest(server, opened, client, scale=1 + client))
        server.close()
        weights.append(flat(server.weights()))
    assert torch.equal(*weights)


def test_rounds_are_taken_in_order_and_no_more_than_planned() -> None:
    server = make_server()
    for call in (server.close, server.abort):
        with pytest.raises(PlanViolation, match="a round must be open"):
            call()
    server.open()
    with pytest.raises(PlanViolation, match="closed or aborted before the next"):
        server.open()
    server.close()
    server.open()
    assert str(server.abort()).endswith("aborted")
    server.open()
    server.close()
    assert server.done
    with pytest.raises(PlanViolation, match="within the 3 rounds of its plan"):
        server.open()
    assert server.ledger == server.plan.ledger


@pytest.mark.parametrize("placement", list(Placement))
def test_empty_cohorts_and_silence_release_noise(placement: Placement) -> None:
    """A rate so small that cohorts are empty, and cohorts of which nobody answers, look alike."""
    for plan in (make_plan(cohort=1e-9), make_plan()):
        model = make_model()
        before = flat(dict(model.state_dict()))
        server = Server(model, plan, sgd(model, lr=1.0), seed=3, placement=placement)
        server.open()
        report = server.close()
        assert report.taken == 0
        moved = (flat(server.weights()) - before) * plan.sampling.expected_batch_size
        deviations = moved / (plan.noise_multiplier[0] * plan.clip_norm[0])
        # float32 weights cannot show a move of 1e9 exactly; the size of the noise is what counts.
        assert 0.5 < float(deviations.square().mean().sqrt()) < 2


class Twofold(dict[str, Tensor]):
    """A mapping whose values are not what it has at their names."""

    def values(self) -> Any:
        return {name: tensor * 1e-6 for name, tensor in self.items()}.values()


class Small(Tensor):
    """A tensor that says of itself that it is short."""

    def detach(self) -> Tensor:
        return torch.Tensor.detach(self.as_subclass(Tensor)) if self.asked() else torch.zeros(self.shape)

    def asked(self) -> bool:
        self.times = getattr(self, "times", 0) + 1
        return self.times > 1


@pytest.mark.parametrize("form", ["values", "class"])
def test_what_is_judged_is_what_is_added(form: str) -> None:
    """Both were in the sum with a thousand times the clip norm."""
    server, opened = opened_server(Placement.CENTRAL)
    client = opened.cohort[0]
    good = honest(server, opened, client)
    long = {name: torch.full_like(tensor, 1e3) for name, tensor in good.tensors.items()}
    tensors = Twofold(long) if form == "values" else {k: v.as_subclass(Small) for k, v in long.items()}
    before = sum_of(server)
    raw_receive(server, forged(client, good.round, good.run, tensors))
    assert float((sum_of(server) - before).norm()) <= opened.round.clip_norm


def test_a_reply_of_any_kind_is_answered_and_never_raises() -> None:
    """A tensor for a number was compared, and what compares or shows itself in its own way was asked to."""

    class Odd(int):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        def __repr__(self) -> str:
            raise RuntimeError("shown")

        __hash__ = int.__hash__

    server = make_server()
    opened = server.open()
    member, number, run = opened.cohort[0], opened.round.number, opened.round.run
    for odd in (torch.tensor([1, 2]), 10**5000, True, None, "1", Odd(1), float("nan")):
        for told in ((odd, number, run), (member, odd, run), (member, number, odd)):
            assert not raw_receive(server, forged(*told, {})).verdict.taken
    assert server.receive(honest(server, opened, member)).verdict.taken
