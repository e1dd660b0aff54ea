"""The rounds of a federated run: opened, released or aborted one after another, recorded before anything is seen."""

from collections.abc import Mapping
from typing import Any, cast, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import REPLAYED, assumed
from decrescendo.base.rng import Secure
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.clipping.clipped import trainable
from decrescendo.errors import FileRefused, PlanViolation, check_integer
from decrescendo.federated.books import Books
from decrescendo.federated.contents import Contents
from decrescendo.federated.messages import Opened, Reply, Round
from decrescendo.federated.placement import Placement
from decrescendo.federated.readings import Readings
from decrescendo.federated.replies import Replies
from decrescendo.federated.resuming import check_of_run, resumed, state_of
from decrescendo.federated.turns import Turns
from decrescendo.federated.verdict import Received, RoundReport
from decrescendo.optim import apply
from decrescendo.optim.noise import NoisedSum, NoisyMean, complete, privatise
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.sampling_refusals import poisson
from decrescendo.training import FrozenStateGuard
from decrescendo.training.loop.between import ENDED_EARLY, BetweenSteps
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.loop.earlier_runs import BEGAN_WITHOUT_NOISE
from decrescendo.training.loop.schedulers import assumed_of_scheduler
from decrescendo.training.persistence.keeping import fitting
from decrescendo.training.run import cpu_weights

REPLIES = assumed("rows-client-replies")
SUMS = assumed("rows-client-sums")
OWN_NOISE = assumed("client-noise")


@final
class Rounds:
    """The state of a run between its calls; `Server` has them one at a time.

    What is written when, if there is a journal:

    - CENTRAL: a round is written when it is released, *before* the optimiser moves: ledger, noisy mean and streams
      together. Killed before that, the server has shown nobody anything of the round, and it is repeated with the
      same cohort and the same noise. Killed after it, the written noisy mean is applied on the next start.
    - DISTRIBUTED, LOCAL: a round is written as spent when it is *opened*, because replies that were sent may have been
      seen. Killed after that, the round is lost: the next start goes on with the next round of the plan, so the run has
      one effective round less and the ledger the same length.
    - An abort counts the round as spent in every placement: that it happened may depend on who took part.

    Args:
        run: its name, from `run_id`.
        books: where rounds are written down.
        model .. scheduler: of the server.
    """

    def __init__(
        self, run: str, model: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer, seed: int | Secure,
        placement: Placement, books: Books, turns: Turns, scheduler: LRScheduler | None, readings: Readings,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._run, self._model, self._plan, self._optimizer, self._seed = run, model, plan, optimizer, seed
        self._placement, self._books, self._turns = placement, books, turns
        self._coins = plan.sampling if plan.correlation else poisson(plan.sampling, "a federated run")
        self.streams = RunStreams.of(seed, plan.sampling, plan.correlation)
        self._contents = Contents(trainable(model), wide=placement.shows_replies)
        self.replies = Replies(run, self._contents.shapes, plan.sampling.dataset_size, turns, readings.telemetry)
        self.readings = readings
        self.resumed = tuple[int, ...]()  # the rounds after which the run went on from its journal
        self.opened: Opened | None = None
        told = (REPLIES, OWN_NOISE) if placement is Placement.DISTRIBUTED else (REPLIES,)
        self._assumptions = (*told, *assumed_of_scheduler(scheduler), *readings.assumptions)

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Be where the journal was, if it was anywhere; else reserve the plan in the store."""
        if state is not None:
            self._go_on(state)
        # What else is published than what noise moves, and by whom that is moved.
        self._frozen = FrozenStateGuard(self._model)
        self._between = BetweenSteps(self._model, self._optimizer, seed=self._seed)
        if self._books.spent:
            noisy = self._plan.private and BEGAN_WITHOUT_NOISE not in self._assumptions
            self._between.resumed(noisy=noisy)
        if self._books.store is not None and self._books.account is None:
            self._write(None)
            self._books.begin()

    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's, on the CPU."""
        return cpu_weights(self._model, begun=True)

    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed so far, sorted by code."""
        self._between.look()
        ended = {*self.ended()} - {ENDED_EARLY}  # it goes on, as far as is known
        found = self._frozen.assumptions()
        return tuple(sorted({*self._assumptions, *self._between.assumptions, *found, *ended} - {REPLAYED}))

    def ended(self) -> tuple[Assumption, ...]:
        """What is assumed if the run is over."""
        return self._between.ended(early=self._books.spent < self._plan.steps, drawn=False)

    def read(self) -> None:
        """Private diagnostics were looked at."""
        self._between.read()

    def open(self) -> Opened:
        """Draw the next cohort."""
        self._books.check_here()
        self._turns.check_whole(opened=self.opened is not None)
        if self.opened is not None:
            raise PlanViolation(
                f"a round must be closed or aborted before the next, got round {self.opened.round.number} open. "
                "A round of which nobody answers is released too: its noise hides that"
            )
        if self._books.spent >= self._plan.steps:
            raise PlanViolation(
                f"a run must stay within the {self._plan.steps} rounds of its plan, got one more. "
                "Another round would spend more than was promised: make a longer plan before the start"
            )
        self._frozen.begin()
        self._frozen.follow()
        self._between.begin()
        self._between.look()
        index = self._books.spent
        if index == 0 and not self._placement.shows_replies:
            self._write(None)  # the streams: the first round, too, is repeated as it was
        cohort = self._cohort(index)
        asked = Round.of(self._plan, self._placement, self._run, index, len(cohort), self.readings.factor)
        if self._placement.shows_replies:
            self._spend(index, len(cohort))
        opened = Opened(asked, tuple(int(client) for client in cohort))
        self.replies.begin(opened)
        self.opened = opened
        return opened

    def _cohort(self, index: int) -> Int[np.ndarray, " cohort"]:
        coins, streams = self._coins.at(index), self.streams
        if isinstance(coins, CyclicPoissonSampling):
            return next(coins.batches(1, streams.sampling, streams.groups(coins, None)))
        return next(cast("PoissonSampling", coins).batches(1, streams.sampling))

    def _spend(self, index: int, members: int) -> None:
        """Record a round when it is opened: replies that were sent may have been seen."""
        with self._turns.whole():
            self._books.releases.append(self._books.release_of(index))
            # Until it is closed nobody knows how many replies were seen: the fewest give the least noise.
            self._books.attendance.append((members, min(members, 1)))
            self.replies.odd = False
            self._write(None)
            if not self._books.list(None):
                raise PlanViolation(
                    "a round must be opened once, got one that the store lists already: another server goes on "
                    "from a copy of this journal. End this one"
                )

    def receive(self, reply: Reply) -> Received:
        """Judge a reply, and add it if it is fit."""
        self.replies.one_by_one = True
        try:
            tensors = self._contents.of_reply(reply.tensors)  # copied before anybody waits for it
            with self._turns.taken():
                return self.replies.take(self.opened, reply, tensors)
        except BaseException:
            self.replies.odd = True  # whatever broke off, it was seen
            raise

    def close(self) -> RoundReport:
        """Release the sum of the replies."""
        self._books.check_here()
        opened, total = self.replies.required(self.opened)
        extra, present = self.replies.extra_coordinates(), len(self.replies.answered)
        clipped = ClippedSum(total.value(), opened.round.clip_norm, self.replies.seen(), extra)
        return self._release(opened, clipped, present)

    def release(
        self, total: Mapping[str, Tensor], present: int, diagnostics: Diagnostics, extra: Tensor | None
    ) -> RoundReport:
        """Release a sum that was made elsewhere."""
        copied = self._contents.of_sum(total)
        with self._turns.taken():
            self._books.check_here()
            opened, _ = self.replies.required(self.opened)
            self.replies.check_sum(opened, copied, present)
            extra = self.replies.check_extra(extra, present, opened.round.clip_norm)
            self._assumptions = tuple(sorted({*self._assumptions, SUMS}))
            clipped = ClippedSum(copied, opened.round.clip_norm, diagnostics, extra)
            return self._release(opened, clipped, present)

    def abort(self) -> RoundReport:
        """End the round without output."""
        self._books.check_here()
        opened = self.opened
        if opened is None:
            raise PlanViolation("a round must be open, got none. Call open() first")
        with self._turns.whole():
            self.opened = None
            if self.streams.correlated is not None:
                self.streams.correlated.skip(self._books.spent, self.streams.noise)
            if self._placement is Placement.CENTRAL:
                self._books.releases.append(self._books.release_of(self._books.spent))
            self.readings.end(None, opened.round, self._plan.sampling)
            self._write(None)
            if self._placement is Placement.CENTRAL:
                self._books.list(None)
            self.readings.shown()
            self._books.end()
        return self.replies.report(opened, released=False)

    def _release(self, opened: Opened, clipped: ClippedSum, present: int) -> RoundReport:
        self._frozen.follow()
        self._between.look()
        noisy = self._noised(opened, clipped, present)
        with self._turns.whole():
            self.opened = None
            if self._placement is Placement.CENTRAL:
                self._books.releases.append(noisy.release)
            else:  # a reply that was refused, or broke off, was seen all the same, by itself
                shown = min(len(opened.cohort), 1) if self.replies.odd else present
                self._books.attendance[-1] = (len(opened.cohort), shown)
            self.replies.summed(present)
            self.readings.end(noisy, opened.round, self._coins.at(opened.round.number - 1))
            # Recorded in memory and on disk before anything of it can be seen.
            self._write(noisy)
            if self._placement is Placement.CENTRAL:
                self._books.list(noisy)
            self.readings.shown()
            self._books.end()
        self._between.released(noisy=noisy.release.noise_multiplier > 0)
        report = self.replies.report(opened, released=True)
        self._move(noisy)
        self._frozen.trained(noisy.gradients)
        self._between.stepped()
        return report

    def _noised(self, opened: Opened, clipped: ClippedSum, present: int) -> NoisyMean:
        """The sum with the round's noise, divided by the plan's expected cohort."""
        asked, sampling, streams = opened.round, self._coins.at(opened.round.number - 1), self.streams
        if self._placement is Placement.CENTRAL:
            return privatise(clipped, asked.noise_multiplier, sampling, streams.noise, streams.correlated)
        shares = None if self._placement is Placement.LOCAL else max(len(opened.cohort), 1)
        noised = NoisedSum(clipped.gradients, asked.clip_norm, asked.noise_multiplier, present, shares)
        noisy = complete(noised, cast("PoissonSampling", sampling), streams.noise)
        if noisy.release != self._books.releases[-1]:
            raise PlanViolation(
                f"what is released must be what was recorded, got {noisy.release} for {self._books.releases[-1]}"
            )
        return noisy

    def _write(self, noisy: NoisyMean | None) -> None:
        self._books.write(lambda: self._state(noisy))

    def _state(self, noisy: NoisyMean | None) -> dict[str, Any]:
        moved = (self._model, self._optimizer, self._scheduler, self.streams)
        books, assumptions = self._books, self.assumptions()
        state = state_of(self._run, books, self.replies, *moved, assumptions, noisy, self.readings)
        return {**state, "resumed": self.resumed}

    def _go_on(self, state: Mapping[str, Any]) -> None:
        """Be where the journal was, with its last round in the store, and the weights moved by it."""
        books = self._books
        books.id = check_of_run(state, self._run, stored=books.store is not None)
        with fitting("the journal", FileRefused):
            moved = (self._model, self._optimizer, self._scheduler, self.streams)
            shows = self._placement.shows_replies
            found = resumed(state, *moved, books.release_of, self.readings, shows_replies=shows)
            here = (len(found.releases),) if 0 < len(found.releases) < self._plan.steps else ()
            before = (check_integer("resumed", number, at_least=0) for number in state.get("resumed", ()))
            self.resumed = tuple(dict.fromkeys((*before, *here)))
        books.releases, books.attendance = found.releases, found.attendance
        self.replies.one_by_one = found.one_by_one
        self._assumptions = found.assumptions
        books.go_on(found.noisy)
        if found.noisy is not None:
            with fitting("the journal", FileRefused):
                self._move(found.noisy)

    def _move(self, noisy: NoisyMean) -> None:
        """The weights, and then the rates."""
        apply(noisy, self._model, self._optimizer)
        if self._scheduler is not None:
            self._scheduler.step()
