"""The server of a federated run: asks cohorts, judges replies, sums, releases. Engine-neutral."""

import os
import time
from collections.abc import Mapping
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from decrescendo.accounting import Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.base.rng import Secure, SecureStream
from decrescendo.clipping import Diagnostics, Telemetry
from decrescendo.errors import InvalidValue, PlanViolation, check_instance
from decrescendo.federated.books import Books
from decrescendo.federated.messages import Opened, Reply, run_id
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.readings import readings_of
from decrescendo.federated.rounds import Rounds
from decrescendo.federated.server_checks import check_given
from decrescendo.federated.threats import local_guarantee, server_guarantee
from decrescendo.federated.turns import Turns, one_at_a_time
from decrescendo.federated.verdict import Received, RoundReport, Verdict
from decrescendo.plans.plan import Plan
from decrescendo.training import check_promise
from decrescendo.training.loop.schedulers import Scheduler, scheduler_of
from decrescendo.training.persistence.checkpoint.tree import pack
from decrescendo.training.run import certify
from decrescendo.training.statement import SECURE, SEEDED
from decrescendo.training.steering.controller import ClipController
from decrescendo.training.steering.reading import Reading
from decrescendo.training.store import Store


@final
class Server:
    """One run of a plan over clients that are numbered 0 .. ``plan.sampling.dataset_size - 1``.

    Replies and deadlines may come on any thread: calls wait for one another, and a reply that comes after `close` is
    too late. A signal handler, or a hook of the optimiser, must not call the server: it would be in the midst of
    another call. With a store, rounds are opened and ended by the thread that opened the store (SQLite's own rule).
    After a call that broke off in its midst (memory, Ctrl-C, a full disk) make a new server, which goes on from the
    journal; without one, the round can only be aborted.

    Args:
        model: moved in place.
        plan: of `Unit.CLIENT`; or a `ClipController` with one: then C_t follows the updates' norms (CENTRAL).
        optimizer: of ``torch.optim``, over the model's parameters: post-processing. LBFGS and SparseAdam are refused.
        seed: `Secure()` for weights that are published: cohorts and noise that nobody can predict. Or a whole number
            >= 0, as sensitive as the data; its streams "sampling" and "noise" are used. Where a journal is gone on
            with, it must be of the same kind and is not used: the journal has the streams' states.
        scheduler: of the learning rate, as in `train`: it is stepped after each release, and kept in the journal.
        placement: who adds the noise, and so who is protected against whom.
        name: public; tells apart runs of one plan.
        journal: a folder. A run that it holds goes on from there. One server at a time holds it (`stop` lets it go).
        store: the ledger of the clients' data, in which the whole plan is reserved before the first round and each
            round is written down before anything of it can be seen; with `Secure()` only, and not in LOCAL. Where a
            journal is gone on with, it must be the store that the run began with.
        telemetry: released in each round with the sum, in CENTRAL only. A client that does not answer is in no bin of
            norms, counts as clipped, and its loss as the middle of the range; of others `Reply.values` are averaged.

    Attributes:
        max_clip_norm, values: the largest C_t that a `ClipController` may choose, 0 without; what `Reply.values` are.

    Guarantee:
        the weights after n rounds are as private as `ledger` says, for neighbours that differ in one client, against
        whom `Placement` says. The ledger holds a round before the weights move by it and before `close` returns,
        also on disk; a kill at any moment may waste a round, never hide one.
        In CENTRAL a client, whatever it sends, moves the sum of a round by at most C_t: replies are clipped
        again here, in float64, and added in whole numbers, without rounding.

    After a kill, CENTRAL does a round again, or applies what was released; in DISTRIBUTED and LOCAL the round that was
    open is spent and lost (`rounds.Rounds` says what is written when). A round that is aborted is spent.

    Edge cases:
        an empty cohort, or one of which nobody answers, is released with all of its noise; a reply that is missing
        or refused is a zero update; the sum is divided by the plan's expected cohort, never by the realised one;
        in DISTRIBUTED and LOCAL replies carry noise and cannot be clipped again: an honest one is never longer than
        C_t + share_std (sqrt(d) + 40), and what is longer is refused.

    Raises:
        InvalidValue: a plan for another unit, or one that promises less than it spends; a store with a seed or LOCAL.
        ImpossibleBudget: the store has not enough left.
        InvalidType: an optimiser that cannot step on a given gradient.
        PlanViolation: a round too many, or opened before the last was closed; another store than before.
        FileRefused: a journal that is damaged or of another run.

    >>> import decrescendo as dc
    >>> from decrescendo.federated import client_update, prepare
    >>> budget, sampling = dc.Budget(2.0, 1e-3, dc.Unit.CLIENT), dc.PoissonSampling(50, 10)
    >>> plan = dc.calibrate(budget, sampling, steps=2, privacy=[1.0, 1.0], clip=[1.0, 1.0])
    >>> model = nn.Linear(1, 1)
    >>> server = Server(model, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0,
    ...     placement=Placement.CENTRAL)
    >>> loss = lambda model, batch: (model(batch) - 1).square().sum(dim=1)
    >>> while not server.done:
    ...     opened = server.open()  # send opened.round and server.weights() to opened.cohort
    ...     for client in opened.cohort:  # replies come in any order
    ...         update = prepare(client_update(model, loss, torch.ones(1, 1)), opened.round, None)
    ...         received = server.receive(Reply(client, opened.round.number, opened.round.run, update))
    ...     report = server.close()  # also if nobody answered
    >>> server.ledger == plan.ledger, report.missing
    (True, 0)
    """

    def __init__(
        self, model: nn.Module, plan: Plan | ClipController, optimizer: torch.optim.Optimizer, *, seed: int | Secure,
        placement: Placement, scheduler: Scheduler | None = None, name: str = "",
        journal: str | os.PathLike[str] | None = None, store: Store | None = None, telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        plan, readings = readings_of(plan, telemetry)
        check_given(model, plan, optimizer, seed, placement, store, readings.telemetry)
        self.plan, self.placement, self.name = plan, Placement(placement), name
        self.run = run_id(plan, self.placement, name)
        self.max_clip_norm, self.values = readings.max_clip_norm, readings.values
        self._start = time.monotonic()
        # Before any client is asked: a plan that cannot be accounted for must not be found out at the end.
        self._planned = certify(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        pack(optimizer.state_dict(), {})  # what cannot be written must be found out before the first round
        self._turns = Turns()
        self._books = Books(self.run, name, plan, self.placement, journal, store)
        try:
            own = self._books, self._turns, scheduler_of(scheduler, optimizer, plan.steps), readings
            self._rounds = Rounds(self.run, model, plan, optimizer, seed, self.placement, *own)
            self._rounds.begin(self._books.read())
        except BaseException:
            self.stop()
            raise

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PlanViolation(
            "a server must not be copied, got a request for a copy. Both would release their sums with the same noise"
        )

    @property
    def opened(self) -> Opened | None:
        """The open round, if there is one."""
        return self._rounds.opened

    @property
    def spent(self) -> int:
        """Rounds in the ledger; after a restart, how far the run is."""
        return self._books.spent

    @property
    def ledger(self) -> Ledger:
        """What has been spent so far."""
        return Ledger(self._books.releases)

    @property
    def done(self) -> bool:
        """Whether all rounds of the plan are spent."""
        return self._rounds.opened is None and self.spent >= self.plan.steps

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """Of the rounds that this process has closed or aborted; private."""
        return tuple(self._rounds.replies.reports)

    @property
    @one_at_a_time
    def telemetry(self) -> tuple[Reading, ...]:
        """The readings of the rounds released so far; public."""
        return tuple(self._rounds.readings.found)

    @one_at_a_time
    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's parameters and persistent buffers on the CPU: what this round's members start from. As
        public as `ledger` says, but for buffers and frozen parameters, which are among the `assumptions`.
        """
        return self._rounds.weights()

    @property
    @one_at_a_time
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed so far, of the replies and of what was done between rounds, sorted by code."""
        return self._rounds.assumptions()

    @one_at_a_time
    def open(self) -> Opened:
        """Draw the next cohort: each client independently with the plan's sample rate. It may be empty.

        Send ``opened.round`` and `weights` to the members; tell nobody else who they are.
        """
        return self._rounds.open()

    def receive(self, reply: Reply) -> Received:
        """Check one reply and add it if it is accepted. Never raises because of a reply; every reply is counted.

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
        telling other values than the telemetry has     refused
        ==============================================  =====================================================
        """
        check_instance("reply", reply, Reply)
        return self._rounds.receive(reply)

    @one_at_a_time
    def declined(self, client: int, reason: str) -> Received:
        """Note that a client refuses the round by its policy: a zero update, counted."""
        self._rounds.replies.counts[Verdict.DECLINED] += 1
        return Received(Verdict.DECLINED, f"client {client}: {reason}")

    @one_at_a_time
    def refused(self, verdict: Verdict, reason: str) -> Received:
        """Note that whoever carries the messages refused something before it could be a `Reply`: counted, not added.

        Raises:
            InvalidValue: a verdict that would mean it was taken.
        """
        if verdict.taken:
            raise InvalidValue(f"what is refused must have a verdict that says so, got {verdict}")
        replies = self._rounds.replies
        replies.counts[verdict] += 1
        replies.one_by_one = replies.odd = True
        return Received(verdict, reason)

    @one_at_a_time
    def close(self) -> RoundReport:
        """Sum, noise, ledger, journal, step: the end of a round. When it returns, `weights` may be shown."""
        return self._rounds.close()

    def release(
        self, total: Mapping[str, Tensor], present: int, diagnostics: Diagnostics,
        extra_coordinates: Tensor | None = None,
    ) -> RoundReport:  # fmt: skip
        """`close`, for who has the sum of a round from elsewhere: a secure sum, or a simulation. That its parts are no
        longer than C_t is among the `assumptions`.

        Args:
            total: the sum of what the ``present`` members sent: clipped (with loss or accuracy to
                `Telemetry.gradient_limit`), with their noise where the placement has it; finite, no longer than such.
            present: members whose part is in it.
            diagnostics: what the clipping saw; private.
            extra_coordinates: the sum of the telemetry coordinates of the parts, with ``telemetry``.

        Raises:
            InvalidValue: another number of members than a part of the cohort, another sum than of so many; the round
                stays open.
        """
        return self._rounds.release(total, present, diagnostics, extra_coordinates)

    @one_at_a_time
    def abort(self) -> RoundReport:
        """End the round without output. It counts as spent: that it was aborted may depend on who took part."""
        return self._rounds.abort()

    @one_at_a_time
    def read(self) -> None:
        """Private diagnostics of a round were read; see `Progress.diagnostics`."""
        self._rounds.read()

    @one_at_a_time
    def stop(self) -> None:
        """Let go of the journal, as the end of the process would: another server may go on, this one may not."""
        self._books.close()

    @one_at_a_time
    def finish(self, *, secure_sum: bool | None = None) -> Outcome:
        """The run so far: may be called at any time between rounds. One that ends early is accounted by the whole
        plan, as in `Trainer.finish`.

        Args:
            secure_sum: whether the server saw only the sum of the replies of a round (secure aggregation); by default
                whether none came through `receive`. In DISTRIBUTED `Outcome.against_server` depends on it: without,
                each reply was hidden by its own share alone.

        Raises:
            InvalidValue: ``secure_sum``, though replies came through `receive`.
        """
        if secure_sum and self._rounds.replies.one_by_one:
            raise InvalidValue(
                "secure_sum must be False where replies came one by one, got True. A secure sum goes to release()"
            )
        secure_sum = not self._rounds.replies.one_by_one if secure_sum is None else secure_sum
        against = None
        if self.placement is Placement.DISTRIBUTED:
            against = server_guarantee(self.plan, self._books.seen(secure_sum=secure_sum))
        return Outcome(
            plan=self.plan, placement=self.placement, ledger=self.ledger, weights=self.weights(),
            guarantee=local_guarantee(self.plan) if self.placement is Placement.LOCAL else self._planned,
            against_server=against, secure_sum=secure_sum, resumed=self._rounds.resumed,
            reports=self.reports, telemetry=self.telemetry, account=self._books.listed_as,
            clip_norm=self._rounds.readings.clip_norms(self.plan, self.spent),
            assumptions=tuple(sorted({*self.assumptions, *self._rounds.ended()})),
            random=SECURE if isinstance(self._rounds.streams.sampling, SecureStream) else SEEDED,
            seconds=max(0.0, time.monotonic() - self._start),  # a broken clock must not lose a run
        )  # fmt: skip
