"""The server of a federated run: asks cohorts, judges replies, sums, releases. Engine-neutral.

Longer than most files: all that the privacy of a round depends on is to be read together.
"""

import functools
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast, final

import torch
from torch import Tensor, nn

from decrescendo.accounting import Ledger, Release, Unit
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed, read_assumption
from decrescendo.base.rng import Secure, SecureStream, sampling_and_noise
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import FileRefused, InvalidValue, PlanViolation, check_instance, check_integer
from decrescendo.federated.contents import Contents
from decrescendo.federated.journal import Journal, registered
from decrescendo.federated.messages import Opened, Reply, Round, run_id
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.summing import MARGIN, TAIL, ExactSum, norm_of
from decrescendo.federated.threats import local_guarantee, server_guarantee
from decrescendo.federated.verdict import Received, RoundReport, Verdict
from decrescendo.optim import apply
from decrescendo.optim.apply import check_optimizer
from decrescendo.optim.noise import NoisedSum, NoisyMean, complete, privatise
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling_refusals import poisson, uncut
from decrescendo.training import FrozenStateGuard, check_promise
from decrescendo.training.between import ENDED_EARLY, BetweenSteps
from decrescendo.training.bits import digest
from decrescendo.training.checkpoint.streams import stream_at, stream_state
from decrescendo.training.checkpoint.tree import pack
from decrescendo.training.earlier_runs import BEGAN_WITHOUT_NOISE
from decrescendo.training.run import certify, check_published, cpu_weights
from decrescendo.training.statement import SECURE, SEEDED
from decrescendo.training.store import Account, Store, new_id

REPLIES = assumed("rows-client-replies")
SUMS = assumed("rows-client-sums")
OWN_NOISE = assumed("client-noise")
_P = ParamSpec("_P")
_R = TypeVar("_R")
# A sum of parts of length C_t is no longer than so many times the number of parts, whatever rounds it.
_LONGER = 1.001


def _alone(method: "Callable[Concatenate[Server, _P], _R]") -> "Callable[Concatenate[Server, _P], _R]":
    """One call after another: replies and deadlines may come on any thread, in the process that began the run."""

    @functools.wraps(method)
    def called(self: "Server", *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if os.getpid() != self._owner:
            raise PlanViolation(
                "a federated run must go on in the process that began it, got a call in a forked one. Both would "
                "release their sums with the same noise: begin runs after the fork"
            )
        with self._lock:
            return method(self, *args, **kwargs)

    return called


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

    Replies and deadlines may come on any thread: calls wait for one another, and a reply that comes after `close` is
    too late. A signal handler, or a hook of the optimiser, must not call the server: it would be in the midst of
    another call. With a store, rounds are opened and ended by the thread that opened the store (SQLite's own rule).
    After a call that broke off in its midst (memory, Ctrl-C, a full disk) the round can only be aborted, or the run
    gone on with from its journal.

    Args:
        model: moved in place.
        plan: of `Unit.CLIENT`.
        optimizer: of ``torch.optim``, over the model's parameters: post-processing. LBFGS and SparseAdam are refused.
        seed: `Secure()` for weights that are published: cohorts and noise that nobody can predict. Or a whole number
            >= 0, as sensitive as the data; its streams "sampling" and "noise" are used. Where a journal is gone on
            with, it must be of the same kind and is not used: the journal has the streams' states.
        placement: who adds the noise, and so who is protected against whom.
        name: public; tells apart runs of one plan.
        journal: a folder. If it holds this run, the run goes on from there; else it is begun. One server at a time
            holds it (`stop` lets it go). A learning-rate schedule of one's own is not in it: set it again from
            `spent`.
        store: the ledger of the clients' data, in which the whole plan is reserved before the first round and each
            round is written down before anything of it can be seen; with `Secure()` only, and not in LOCAL. Where a
            journal is gone on with, it must be the store that the run began with.

    Guarantee:
        the weights after n rounds are as private as `ledger` says, for neighbours that differ in one client, against
        whom `Placement` says. The ledger holds a round before the weights move by it and before `close` returns,
        also on disk; a kill at any moment may waste a round, never hide one.
        In CENTRAL a client, whatever it sends, moves the sum of a round by at most C_t: replies are clipped
        again here, in float64, and added in whole numbers, without rounding.

    What is written when, if there is a journal:

    - CENTRAL: a round is written when it is released, *before* the optimiser moves: ledger, noisy mean and streams
      together. Killed before that, the server has shown nobody anything of the round, and it is repeated with the
      same cohort and the same noise. Killed after it, the written noisy mean is applied on the next start.
    - DISTRIBUTED, LOCAL: a round is written as spent when it is *opened*, because replies that were sent may have been
      seen. Killed after that, the round is lost: the next start goes on with the next round of the plan, so the run has
      one effective round less and the ledger the same length.
    - An abort counts the round as spent in every placement: that it happened may depend on who took part.

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
        store: Store | None = None,
    ) -> None:
        check_instance("plan", plan, Plan)
        check_instance("optimizer", optimizer, torch.optim.Optimizer)
        if plan.budget.unit is not Unit.CLIENT:
            raise InvalidValue(
                f"a federated plan must protect clients, got unit={plan.budget.unit}. "
                "Calibrate with Budget(epsilon, delta, Unit.CLIENT) and the number of clients as dataset_size"
            )
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        self._coins = poisson(plan.sampling, "a federated run")
        if Placement(placement) is not Placement.CENTRAL:
            uncut(plan.sampling, f"a run with {placement} noise")
        if store is not None:
            _check_store(store, seed, Placement(placement))
        parameters = trainable(model)
        check_optimizer(optimizer, Inventory.of(model), parameters)  # before a round is spent on finding out
        check_published(model)
        self.plan, self.placement, self.name = plan, Placement(placement), name
        self.run = run_id(plan, self.placement, name)
        self._model, self._optimizer = model, optimizer
        self._sampling, self._noise = sampling_and_noise(seed)
        self._contents = Contents(parameters, wide=self.placement.shows_replies)
        self._size = sum(shape.numel() for shape in self._contents.shapes.values())
        self._releases: list[Release] = []
        self._attendance: list[tuple[int, int]] = []
        # Whether replies came one by one, at all; and whether one of this round was refused.
        self._one_by_one, self._odd = False, False
        self._opened: Opened | None = None
        self._counts: Counter[Verdict] = Counter()
        self._answered: set[int] = set()
        self._total: ExactSum | None = None
        self._reports: list[RoundReport] = []
        # Reentrant: `close` asks what `weights` and `assumptions` give. Whether a call broke off in its midst.
        self._lock, self._owner, self._broken = threading.RLock(), os.getpid(), False
        self._start = time.monotonic()
        self._supposed: tuple[Assumption, ...] = (
            (REPLIES, OWN_NOISE) if self.placement is Placement.DISTRIBUTED else (REPLIES,)
        )
        # Before any client is asked: a plan that cannot be judged must not be found out at the end.
        self._planned = certify(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        pack(optimizer.state_dict(), {})  # what cannot be written must be found out before the first round
        self._journal = None if journal is None else Journal(journal)
        # Of the run in the store; a journal has it before the store: a crash between the two reserves once.
        self._id = "" if store is None else new_id()
        self._account: Account | None = None
        try:
            if (state := None if self._journal is None else self._journal.read()) is not None:
                self._go_on(state, store)
            # What else is published than what noise moves, and by whom that is moved.
            self._frozen, self._between = FrozenStateGuard(model), BetweenSteps(model, optimizer)
            if self.spent:
                self._between.resumed(noisy=plan.private and BEGAN_WITHOUT_NOISE not in self._supposed)
            if store is not None and self._account is None:
                self._write(None)
                self._account, _ = registered(store, plan, self._id, 0, name)
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
        return self._opened

    @property
    def spent(self) -> int:
        """Rounds in the ledger; after a restart, how far the run is."""
        return len(self._releases)

    @property
    def ledger(self) -> Ledger:
        """What has been spent so far."""
        return Ledger(self._releases)

    @property
    def done(self) -> bool:
        """Whether all rounds of the plan are spent."""
        return self._opened is None and self.spent >= self.plan.steps

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """Of the rounds that this process has closed or aborted; private."""
        return tuple(self._reports)

    @_alone
    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's parameters and persistent buffers on the CPU: what this round's members start from. As
        public as `ledger` says, but for buffers and frozen parameters, which are among the `assumptions`.
        """
        return cpu_weights(self._model, begun=True)

    @property
    @_alone
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed so far, of the replies and of what was done between rounds, sorted by code."""
        self._between.look()
        ended = {*self._ended()} - {ENDED_EARLY}  # it goes on, as far as is known
        found = self._frozen.assumptions()
        return tuple(sorted({*self._supposed, *self._between.supposed, *found, *ended}))

    def _ended(self) -> tuple[Assumption, ...]:
        return self._between.ended(early=self.spent < self.plan.steps, drawn=False)

    @_alone
    def open(self) -> Opened:
        """Draw the next cohort: each client independently with the plan's sample rate. It may be empty.

        Send ``opened.round`` and `weights` to the members; tell nobody else who they are.
        """
        self._check_store_here()
        self._check_whole()
        if self._opened is not None:
            raise PlanViolation(
                f"a round must be closed or aborted before the next, got round {self._opened.round.number} open. "
                "A round of which nobody answers is released too: its noise hides that"
            )
        if self.spent >= self.plan.steps:
            raise PlanViolation(
                f"a run must stay within the {self.plan.steps} rounds of its plan, got one more. "
                "Another round would spend more than was promised: make a longer plan before the start"
            )
        self._frozen.begin()
        self._frozen.follow()
        self._between.begin()
        self._between.look()
        index = self.spent
        if index == 0 and not self.placement.shows_replies:
            self._write(None)  # the streams: the first round, too, is repeated as it was
        cohort = next(self._coins.at(index).batches(1, self._sampling))
        asked = Round.of(self.plan, self.placement, self.run, index, len(cohort))
        if self.placement.shows_replies:
            with self._whole():
                self._releases.append(self._release_of(index))
                # Until it is closed nobody knows how many replies were seen: the fewest give the least noise.
                self._attendance.append((len(cohort), min(len(cohort), 1)))
                self._odd = False
                self._write(None)
                if not self._list(None):
                    raise PlanViolation(
                        "a round must be opened once, got one that the store lists already: another server goes on "
                        "from a copy of this journal. End this one"
                    )
        self._answered.clear()
        limit = asked.clip_norm + TAIL * asked.share_std
        self._total = ExactSum(self._contents.shapes, limit, self.plan.sampling.dataset_size)
        self._opened = Opened(asked, tuple(int(client) for client in cohort))
        return self._opened

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
        ==============================================  =====================================================
        """
        check_instance("reply", reply, Reply)
        self._one_by_one = True
        try:
            return self._received(reply, self._contents.of_reply(reply.tensors))
        except BaseException:
            self._odd = True  # whatever broke off, it was seen
            raise

    @_alone
    def _received(self, reply: Reply, tensors: dict[str, Tensor] | Received) -> Received:
        received = self._judge(reply, tensors)
        self._counts[received.verdict] += 1
        self._odd = self._odd or not received.verdict.taken
        return received

    @_alone
    def declined(self, client: int, reason: str) -> Received:
        """Note that a client refuses the round by its policy: a zero update, counted."""
        self._counts[Verdict.DECLINED] += 1
        return Received(Verdict.DECLINED, f"client {client}: {reason}")

    @_alone
    def refused(self, verdict: Verdict, reason: str) -> Received:
        """Note that whoever carries the messages refused something before it could be a `Reply`: counted, not added.

        Raises:
            InvalidValue: a verdict that would mean it was taken.
        """
        if verdict.taken:
            raise InvalidValue(f"what is refused must have a verdict that says so, got {verdict}")
        self._counts[verdict] += 1
        self._one_by_one = self._odd = True
        return Received(verdict, reason)

    @_alone
    def close(self) -> RoundReport:
        """Sum, noise, ledger, journal, step: the end of a round. When it returns, `weights` may be shown."""
        _, total = self._require_open()
        seen = Diagnostics(
            examples=len(self._answered),
            nonfinite=self._counts[Verdict.NONFINITE],
            clipped=self._counts[Verdict.RECLIPPED],
            loss_sum=0.0,
        )
        # The sum is on the CPU; `apply` brings the noisy mean to the parameters' device.
        return self._release(total.value(), len(self._answered), seen)

    def release(self, total: Mapping[str, Tensor], present: int, diagnostics: Diagnostics) -> RoundReport:
        """`close`, for who has the sum of a round from elsewhere: a secure sum, or a simulation. That its parts are no
        longer than C_t is among the `assumptions`.

        Args:
            total: the sum of what the ``present`` members sent: clipped, with their noise where the placement has it;
                finite, and no longer than so many parts can be.
            present: members whose part is in it.
            diagnostics: what the clipping saw; private.

        Raises:
            InvalidValue: another number of members than a part of the cohort, another sum than of so many; the round
                stays open.
        """
        return self._summed(self._contents.of_sum(total), present, diagnostics)

    @_alone
    def _summed(self, total: dict[str, Tensor], present: int, diagnostics: Diagnostics) -> RoundReport:
        opened, _ = self._require_open()
        self._check_sum(opened, total, present)
        self._supposed = tuple(sorted({*self._supposed, SUMS}))
        return self._release(total, present, diagnostics)

    def _check_sum(self, opened: Opened, total: Mapping[str, Tensor], present: int) -> None:
        members, asked = len(opened.cohort), opened.round
        check_integer("present", present, at_least=len(self._answered))
        if present > members:
            raise InvalidValue(f"present must be at most the cohort's {members} members, got {present}")
        # Of noise there is no more than that, but with probability e^(-TAIL^2 / 2).
        noise = asked.share_std * present**0.5 * (self._size**0.5 + TAIL)
        longest, norm = (present * asked.clip_norm + noise) * _LONGER, norm_of(total)
        if not norm <= longest:
            raise InvalidValue(
                f"total must be the sum of {present} parts of length {asked.clip_norm:g} at most, which is no longer "
                f"than {longest:.4g}, got {norm:.4g}. Nothing was released: sum what clients have clipped"
            )

    def _release(self, total: Mapping[str, Tensor], present: int, diagnostics: Diagnostics) -> RoundReport:
        opened, _ = self._require_open()
        self._frozen.follow()
        self._between.look()
        asked, sampling = opened.round, self._coins.at(opened.round.number - 1)
        if self.placement is Placement.CENTRAL:
            clipped = ClippedSum(total, asked.clip_norm, diagnostics)
            noisy = privatise(clipped, asked.noise_multiplier, sampling, self._noise)
        else:
            shares = None if self.placement is Placement.LOCAL else max(len(opened.cohort), 1)
            noised = NoisedSum(total, asked.clip_norm, asked.noise_multiplier, present, shares)
            noisy = complete(noised, sampling, self._noise)
            if noisy.release != self._releases[-1]:
                raise PlanViolation(
                    f"what is released must be what was recorded, got {noisy.release} for {self._releases[-1]}"
                )
        with self._whole():
            self._opened = None
            if self.placement is Placement.CENTRAL:
                self._releases.append(noisy.release)
            else:  # a reply that was refused, or broke off, was seen all the same, by itself
                seen = min(len(opened.cohort), 1) if self._odd else present
                self._attendance[-1] = (len(opened.cohort), seen)
            if summed := present - len(self._answered):  # in the sum, and never seen one by one
                self._counts[Verdict.ACCEPTED] += summed
            # Recorded in memory and on disk before anything of it can be seen.
            self._write(noisy)
            if self.placement is Placement.CENTRAL:
                self._list(noisy)
            self._end()
        self._between.released(noisy=noisy.release.noise_multiplier > 0)
        report = self._report(opened, released=True)
        apply(noisy, self._model, self._optimizer)
        self._frozen.trained(noisy.gradients)
        self._between.stepped()
        return report

    @_alone
    def abort(self) -> RoundReport:
        """End the round without output. It counts as spent: that it was aborted may depend on who took part."""
        self._check_store_here()
        opened = self._opened
        if opened is None:
            raise PlanViolation("a round must be open, got none. Call open() first")
        with self._whole():
            self._opened = None
            if self.placement is Placement.CENTRAL:
                self._releases.append(self._release_of(self.spent))
            self._write(None)
            if self.placement is Placement.CENTRAL:
                self._list(None)
            self._end()
        return self._report(opened, released=False)

    @_alone
    def read(self) -> None:
        """Private diagnostics of a round were read; see `Progress.diagnostics`."""
        self._between.read()

    @_alone
    def stop(self) -> None:
        """Let go of the journal, as the end of the process would: another server may go on, this one may not."""
        if self._journal is not None:
            self._journal.close()

    @_alone
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
        if secure_sum and self._one_by_one:
            raise InvalidValue(
                "secure_sum must be False where replies came one by one, got True. A secure sum goes to release()"
            )
        secure_sum = not self._one_by_one if secure_sum is None else secure_sum
        against = None
        if self.placement is Placement.DISTRIBUTED:
            # A reply that is seen by itself has one share of noise, as a sum of which one member is left.
            seen = [
                (members, replies if secure_sum else min(replies, 1)) for members, replies in self._attendance
            ]
            against = server_guarantee(self.plan, seen)
        local = self.placement is Placement.LOCAL
        return Outcome(
            plan=self.plan,
            placement=self.placement,
            ledger=self.ledger,
            guarantee=local_guarantee(self.plan) if local else self._planned,
            against_server=against,
            secure_sum=secure_sum,
            weights=self.weights(),
            reports=self.reports,
            assumptions=tuple(sorted({*self.assumptions, *self._ended()})),
            random=SECURE if isinstance(self._sampling, SecureStream) else SEEDED,
            account="" if self._account is None else f"{self._account.store.dataset}, run {self._account.id}",
            seconds=max(0.0, time.monotonic() - self._start),  # a broken clock must not lose a run
        )

    @contextmanager
    def _whole(self) -> Generator[None]:
        """What must be done whole: where it breaks off, no call goes on from there."""
        self._broken = True
        yield
        self._broken = False

    def _check_whole(self) -> None:
        if self._broken:
            raise PlanViolation(
                "a call must have ended before the next, got one that broke off in its midst. "
                + (
                    "Abort the round: what is in its sum cannot be told"
                    if self._opened is not None
                    else "Stop the server, and start it again from its journal"
                )
            )

    def _check_store_here(self) -> None:
        """Before anything is released: what cannot be written down must be found out first."""
        if self._account is not None:
            self._account.check_here()

    def _require_open(self) -> tuple[Opened, ExactSum]:
        self._check_store_here()
        self._check_whole()
        if self._opened is None or self._total is None:  # the sum is made with the round
            raise PlanViolation("a round must be open, got none. Call open() first")
        return self._opened, self._total

    def _report(self, opened: Opened, *, released: bool) -> RoundReport:
        report = RoundReport(opened.round.number, len(opened.cohort), self._counts, released)
        self._reports.append(report)
        self._counts = Counter()
        self._total = None
        return report

    def _release_of(self, index: int) -> Release:
        noise = float(self.plan.noise_multiplier[index])
        local = self.placement is Placement.LOCAL
        return Release(1.0, noise) if local else self.plan.sampling.at(index).release(noise)

    def _write(self, noisy: NoisyMean | None) -> None:
        if self._journal is None:
            return
        state: dict[str, Any] = {
            "run": self.run,
            "spent": self.spent,
            "account": self._id,
            "attendance": self._attendance,
            "one_by_one": self._one_by_one,
            "optimizer": type(self._optimizer).__name__,
            "optimizer_state": self._optimizer.state_dict(),
            "sampling": stream_state(self._sampling),
            "noise": stream_state(self._noise),
            "assumptions": [assumption.written() for assumption in self.assumptions],
            "weights": self.weights(),
            "noisy": None if noisy is None else dict(noisy.gradients),
            "noise_std": None if noisy is None else noisy.noise_std,
        }
        self._journal.write(state)

    def _list(self, noisy: NoisyMean | None) -> bool:
        """Write the last round down in the store; whether it was not there."""
        if self._account is None:
            return True
        last = self.spent - 1
        told = hashlib.sha256(f"{self.run} {last}".encode()).digest() if noisy is None else digest(noisy)
        return self._account.record(last, self._releases[last], told)

    def _end(self) -> None:
        if self._account is not None and self.done:
            self._account.finish()

    def _go_on(self, state: Mapping[str, Any], store: Store | None) -> None:
        """Be where the journal was, with its last round in the store, and the weights moved by it."""
        last = self._resume(state, store)
        if store is not None:
            self._account, listed = registered(store, self.plan, self._id, self.spent, self.name)
            # Of a round that is listed too, that it is this one: another server may have gone on from a copy.
            seen = None if self.placement.shows_replies else last
            if listed < self.spent or seen is not None:
                self._list(seen)
            self._end()
        if last is not None:
            with _fitting():
                apply(last, self._model, self._optimizer)

    def _resume(self, state: Mapping[str, Any], store: Store | None) -> NoisyMean | None:
        """Be where the journal was; what it has released last, which has not moved the model yet."""
        if state.get("run") != self.run:
            raise FileRefused(
                "the journal must be of this run (plan, placement and name), got another's. "
                "Give each run a folder of its own"
            )
        kind, self._id = type(self._optimizer).__name__, str(state.get("account", ""))
        if bool(self._id) != (store is not None):
            raise PlanViolation(
                "a run must go on with the store that it began with, or without one as it began, got "
                f"{'none' if self._id else 'one'}"
            )
        with _fitting():
            if state["optimizer"] != kind:
                raise FileRefused(
                    f"the journal was written with the optimiser {state['optimizer']}, got {kind}"
                )
            self._releases = [
                self._release_of(index) for index in range(check_integer("spent", state["spent"]))
            ]
            self._attendance = [(int(members), int(replies)) for members, replies in state["attendance"]]
            _check_attendance(self._attendance, self.spent if self.placement.shows_replies else 0)
            self._one_by_one = bool(state.get("one_by_one", True))
            self._sampling = stream_at(self._sampling, state["sampling"])
            self._noise = stream_at(self._noise, state["noise"])
            if "assumptions" in state:
                self._supposed = tuple(map(read_assumption, _list_of(state["assumptions"])))
            self._model.load_state_dict(state["weights"])
            self._optimizer.load_state_dict(state["optimizer_state"])
            if state["noisy"] is None:
                return None
            return NoisyMean(state["noisy"], self._releases[-1], state["noise_std"])

    def _judge(self, reply: Reply, tensors: dict[str, Tensor] | Received) -> Received:
        self._check_whole()
        opened, total = self._opened, self._total
        client: Any = reply.client
        # What comes by wire may be of any type.
        if type(reply.run) is not str or reply.run != self.run:
            return Received(Verdict.OTHER_RUN, "a reply must name this run")
        number: Any = reply.round
        if opened is None or total is None or type(number) is not int or number != opened.round.number:
            now = "no round" if opened is None else f"round {opened.round.number}"
            return Received(Verdict.OTHER_ROUND, f"{now} is open, got a reply to round {_shown(number)}")
        if type(client) is not int or client not in opened.cohort:
            return Received(Verdict.NOT_ASKED, f"client {_shown(client)} is not in the cohort")
        if client in self._answered:
            return Received(Verdict.REPEATED, f"client {client} has answered")
        if isinstance(tensors, Received):
            return tensors
        norm, c, share = norm_of(tensors), opened.round.clip_norm, opened.round.share_std
        if not norm < float("inf"):
            return Received(Verdict.NONFINITE, "every value must be finite, and the norm too")
        verdict, factor, reason = Verdict.ACCEPTED, 1.0, ""
        if share > 0:
            longest = c + share * (self._size**0.5 + TAIL)
            largest = max(float(tensor.abs().max()) for tensor in tensors.values() if tensor.numel())
            if norm > longest or largest > c + TAIL * share:
                return Received(Verdict.TOO_LONG, f"the norm must be at most {longest:.4g}, got {norm:.4g}")
        elif norm > (target := c * (1 - MARGIN)):
            factor = target / norm
            if norm > c:
                verdict, reason = Verdict.RECLIPPED, f"norm {norm:.4g} shortened to {c:.4g}"
        with self._whole():
            total.add(tensors, factor)
            self._answered.add(client)
        return Received(verdict, reason)


@contextmanager
def _fitting() -> Generator[None]:
    try:
        yield
    except FileRefused:
        raise
    except (
        KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, OverflowError,
    ) as error:  # fmt: skip
        raise FileRefused(f"the journal must fit this model and optimiser, got {error}") from error


def _shown(value: object) -> str:
    """A number that a client sent, or the type of what it sent instead."""
    return repr(value) if type(value) is int and abs(value) < 2**63 else f"<{type(value).__name__}>"


def _check_store(store: Store, seed: int | Secure, placement: Placement) -> None:
    check_instance("store", store, Store, "Store(path) opens one, Store.create(path, budget, ..) makes it")
    if placement is Placement.LOCAL:
        raise InvalidValue(
            "a run in a store must keep its plan's promise, got the placement local, which promises something else: "
            "each client's own epsilon"
        )
    if not isinstance(seed, Secure):
        raise InvalidValue(
            "seed must be Secure() with a store, got a number: runs with one seed have the same cohorts and noise, and "
            "what a store adds up is drawn independently"
        )


def _check_attendance(attendance: list[tuple[int, int]], rounds: int) -> None:
    """Of each round spent where replies are seen; what is left out would count as never seen."""
    if len(attendance) != rounds:
        raise FileRefused(f"the journal must have the attendance of {rounds} rounds, got {len(attendance)}")
    for members, replies in attendance:
        if not 0 <= replies <= members:
            raise FileRefused(
                f"a round must have 0 <= replies <= members, got {replies} of {members} in the journal"
            )


def _list_of(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list must be")
    return cast("list[object]", value)
