"""The server of a federated run: asks cohorts, judges replies, sums, releases."""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from decrescendo.accounting.ledger import Ledger
from decrescendo.base.rng import Secure
from decrescendo.clipping import Diagnostics
from decrescendo.clipping.clipped import accumulator
from decrescendo.errors import InvalidValue, PlanViolation, check_instance
from decrescendo.federated.messages import Reply
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.rounds import Opened, Rounds
from decrescendo.federated.summing import MARGIN, TAIL, ExactSum, norm_of
from decrescendo.federated.verdict import Received, RoundReport, Verdict
from decrescendo.plans.plan import Plan
from decrescendo.training.run import cpu_weights

REPLIES = "each reply is computed from the records of its own client alone, where it is computed"


@final
class Server:
    """One run of a plan over clients that are numbered 0 .. ``plan.sampling.dataset_size - 1``.

    ::

        server = Server(model, plan, optimizer, seed=seed, placement=Placement.CENTRAL, journal="run")
        while not server.done:
            opened = server.open()                 # send opened.round and server.weights() to opened.cohort
            for reply in ...:                      # whatever comes, in any order
                server.receive(reply)
            report = server.close()                # also if nobody answered

    Args:
        model: moved in place.
        plan: of `Unit.CLIENT`.
        optimizer: any ``torch.optim`` optimiser over the model's parameters: post-processing.
        seed: `Secure()` for weights that leave the house: cohorts and noise that nobody can predict. Or a whole number
            >= 0, as sensitive as the data; its streams "sampling" and "noise" are used. Where a journal is gone on
            with, it must be of the same kind and is not used: the journal has the streams' states.
        placement: who adds the noise, and so who is protected against whom.
        name: public; tells apart runs of one plan.
        journal: a folder. If it holds this run, the run goes on from there; else it is begun. One server at a time
            holds it (`stop` lets it go). A learning-rate schedule of one's own is not in it: set it again from
            `spent`.

    Guarantee:
        the weights after n rounds are as private as `ledger` says, for neighbours that differ in one client, against
        whom `Placement` says. The ledger holds a round before the weights move by it and before `close` returns,
        also on disk; a kill at any moment may waste a round, never hide one (`Rounds` says which is done again).
        In CENTRAL a client, whatever it sends, moves the sum of a round by at most C_t: replies are clipped
        again here, in float64, and added in whole numbers, without rounding.

    Edge cases:
        an empty cohort, or one of which nobody answers, is released with all of its noise; a reply that is missing
        or refused is a zero update; the sum is divided by the plan's expected cohort, never by the realised one;
        in DISTRIBUTED and LOCAL replies carry noise and cannot be clipped again: an honest one is never longer than
        C_t + share_std (sqrt(d) + 40), and what is longer is refused.

    Raises:
        InvalidValue: a plan for another unit, or one that promises less than it spends.
        PlanViolation: a round too many, or opened before the last was closed.
        FileRefused: a journal that is damaged or of another run.

    >>> from decrescendo.accounting.budget import Budget, Unit
    >>> from decrescendo.plans.calibration import calibrate
    >>> from decrescendo.plans.curves import constant
    >>> from decrescendo.plans.sampling import PoissonSampling
    >>> from decrescendo.federated.update import client_update, prepare
    >>> plan = calibrate(Budget(2.0, 1e-3, Unit.CLIENT), PoissonSampling(50, 10), steps=2,
    ...     privacy=constant(1.0), clip=constant(1.0))
    >>> model = nn.Linear(1, 1)
    >>> server = Server(model, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0,
    ...     placement=Placement.CENTRAL)
    >>> loss = lambda model, batch: (model(batch) - 1).square().sum(dim=1)
    >>> while not server.done:
    ...     opened = server.open()
    ...     for client in opened.cohort:
    ...         update = prepare(client_update(model, loss, torch.ones(1, 1)), opened.round, None)
    ...         received = server.receive(Reply(client, opened.round.number, opened.round.run, update))
    ...     report = server.close()
    >>> server.ledger == plan.ledger, report.missing
    (True, 0)
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int | Secure,
        placement: Placement,
        name: str = "",
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self._rounds = Rounds(
            model, plan, optimizer, seed=seed, placement=placement, name=name, journal=journal
        )
        self._shapes = {key: parameter.shape for key, parameter in self._rounds.parameters.items()}
        self._size = sum(shape.numel() for shape in self._shapes.values())
        self._counts: Counter[Verdict] = Counter()
        self._answered: set[int] = set()
        self._total: ExactSum | None = None
        self._reports: list[RoundReport] = []
        self._name = name

    @property
    def run(self) -> str:
        """The run's name, which every `Round` carries and every `Reply` must."""
        return self._rounds.run

    @property
    def name(self) -> str:
        """The public name that tells runs of this plan apart."""
        return self._name

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self._rounds.plan

    @property
    def placement(self) -> Placement:
        """Who adds the noise."""
        return self._rounds.placement

    @property
    def opened(self) -> Opened | None:
        """The open round, if there is one."""
        return self._rounds.opened

    @property
    def spent(self) -> int:
        """Rounds in the ledger; after a restart, how far the run is."""
        return self._rounds.spent

    @property
    def ledger(self) -> Ledger:
        """What has been spent so far."""
        return self._rounds.ledger

    @property
    def done(self) -> bool:
        """Whether all rounds of the plan are spent."""
        return self._rounds.done

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """Of the rounds that this process has closed or aborted; private."""
        return tuple(self._reports)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's parameters and persistent buffers on the CPU: what this round's members start from. As
        public as `ledger` says."""
        return cpu_weights(self._rounds.model)

    def open(self) -> Opened:
        """Draw the next cohort: each client independently with the plan's sample rate. It may be empty.

        Send ``opened.round`` and `weights` to the members; tell nobody else who they are.
        """
        opened = self._rounds.open()
        self._answered.clear()
        asked = opened.round
        limit = asked.clip_norm + TAIL * asked.share_std
        self._total = ExactSum(self._shapes, limit, self.plan.sampling.dataset_size)
        return opened

    def receive(self, reply: Reply) -> Received:
        """Judge one reply and, if it is fit, add it. Never raises for what a client sends; every reply is counted.

        ==============================================  =====================================================
        reply                                           verdict
        ==============================================  =====================================================
        of another run, or another round (late or old)  refused
        of a client that was not drawn                  refused
        a second one of a client                        refused; one that was refused may be mended and sent again
        names, shapes or types of tensors that differ   refused
        infinite or not a number anywhere               refused
        longer than C_t (CENTRAL)                       shortened to C_t and added
        longer than any honest one (others)             refused
        ==============================================  =====================================================
        """
        check_instance("reply", reply, Reply)
        received = self._judge(reply)
        self._counts[received.verdict] += 1
        return received

    def declined(self, client: int, reason: str) -> Received:
        """Note that a client refuses the round by its policy: a zero update, counted."""
        self._counts[Verdict.DECLINED] += 1
        return Received(Verdict.DECLINED, f"client {client}: {reason}")

    def refused(self, verdict: Verdict, reason: str) -> Received:
        """Note that whoever carries the messages refused something before it could be a `Reply`: counted, not added.

        Raises:
            InvalidValue: a verdict that would mean it was taken.
        """
        if verdict.taken:
            raise InvalidValue(f"what is refused must have a verdict that says so, got {verdict}")
        self._counts[verdict] += 1
        return Received(verdict, reason)

    def close(self) -> RoundReport:
        """Sum, noise, ledger, journal, step: the end of a round. When it returns, `weights` may be shown."""
        opened, total = self._rounds.require_open(), self._total
        if total is None:  # the sum is made with the round
            raise PlanViolation("a round must be open, got none. Call open() first")
        seen = Diagnostics(
            examples=len(self._answered),
            nonfinite=self._counts[Verdict.NONFINITE],
            clipped=self._counts[Verdict.RECLIPPED],
            loss_sum=0.0,
        )
        # The sum is on the CPU; `apply` brings the noisy mean to the parameters' device.
        self._rounds.release(total.value(), len(self._answered), seen)
        return self._report(opened, released=True)

    def abort(self) -> RoundReport:
        """End the round without output. It counts as spent: that it was aborted may depend on who took part."""
        opened = self._rounds.require_open()
        self._rounds.abort()
        return self._report(opened, released=False)

    def stop(self) -> None:
        """Let go of the journal, as the end of the process would: another server may go on, this one may not."""
        self._rounds.stop()

    def finish(self, *, secure_sum: bool = True) -> Outcome:
        """What the run is so far: may be asked at any time between rounds.

        Args:
            secure_sum: whether the server saw only the sum of the replies of a round (secure aggregation). In
                DISTRIBUTED `Outcome.against_server` depends on it: without, each reply was hidden by its own share
                alone.
        """
        return self._rounds.finish(self.reports, assumptions=(REPLIES,), secure_sum=secure_sum)

    def _report(self, opened: Opened, *, released: bool) -> RoundReport:
        report = RoundReport(opened.round.number, len(opened.cohort), self._counts, released)
        self._reports.append(report)
        self._counts = Counter()
        self._total = None
        return report

    def _judge(self, reply: Reply) -> Received:
        opened, total = self._rounds.opened, self._total
        client: Any = reply.client
        if reply.run != self.run:
            return Received(Verdict.OTHER_RUN, "a reply must name this run")
        if opened is None or total is None or reply.round != opened.round.number:
            now = "no round" if opened is None else f"round {opened.round.number}"
            return Received(Verdict.OTHER_ROUND, f"{now} is open, got a reply to round {reply.round!r}")
        if not isinstance(client, int) or isinstance(client, bool) or client not in opened.cohort:
            return Received(Verdict.NOT_ASKED, f"client {client!r} is not in the cohort")
        if client in self._answered:
            return Received(Verdict.REPEATED, f"client {client} has answered")
        refused = self._malformed(reply.tensors)
        if refused is not None:
            return refused
        norm, c, share = norm_of(reply.tensors), opened.round.clip_norm, opened.round.share_std
        if not norm < float("inf"):
            return Received(Verdict.NONFINITE, "every value must be finite, and the norm too")
        verdict, factor, reason = Verdict.ACCEPTED, 1.0, ""
        if share > 0:
            longest = c + share * (self._size**0.5 + TAIL)
            largest = max(
                float(tensor.detach().abs().max()) for tensor in reply.tensors.values() if tensor.numel()
            )
            if norm > longest or largest > c + TAIL * share:
                return Received(Verdict.TOO_LONG, f"the norm must be at most {longest:.4g}, got {norm:.4g}")
        elif norm > (target := c * (1 - MARGIN)):
            factor = target / norm
            if norm > c:
                verdict, reason = Verdict.RECLIPPED, f"norm {norm:.4g} shortened to {c:.4g}"
        self._answered.add(client)
        total.add(reply.tensors, factor)
        return Received(verdict, reason)

    def _malformed(self, tensors: object) -> Received | None:
        if not isinstance(tensors, Mapping) or set(tensors) != set(self._shapes):
            return Received(Verdict.NAMES, "a reply must name the model's trainable parameters, each once")
        for name, parameter in self._rounds.parameters.items():
            tensor = tensors[name]
            wide = torch.float64 if self.placement.shows_replies else accumulator(parameter.dtype)
            if (
                not isinstance(tensor, Tensor)
                or tensor.layout != torch.strided
                or tensor.is_meta
                or tensor.dtype not in (wide, torch.float64)
            ):
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                return Received(Verdict.TYPES, f"{name} must be a dense tensor of {wide}, got {kind}")
            if tensor.shape != self._shapes[name]:
                return Received(
                    Verdict.SHAPES, f"{name} must be {tuple(self._shapes[name])}, got {tuple(tensor.shape)}"
                )
        return None
