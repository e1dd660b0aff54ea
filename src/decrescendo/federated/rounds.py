"""The rounds of a federated run: who is asked, what is recorded when, what is written down. Engine-neutral.

`Server` (replies one by one) and `simulate` (whole cohorts at once) are two ways to make the sum of a round; everything
that privacy depends on is here.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.accounting.budget import Guarantee, Unit
from decrescendo.accounting.ledger import Ledger, Release
from decrescendo.base.rng import Secure, SecureStream, sampling_and_noise
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.errors import FileRefused, InvalidValue, PlanViolation, check_instance, check_integer
from decrescendo.federated.frozen_optimizer import freeze, thaw
from decrescendo.federated.journal import Entry, Journal
from decrescendo.federated.messages import Round, run_id
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.threats import local_guarantee, server_guarantee
from decrescendo.federated.verdict import RoundReport
from decrescendo.optim import apply
from decrescendo.optim.noise import NoisedSum, NoisyMean, complete, privatise
from decrescendo.plans.plan import Plan
from decrescendo.training import check_promise
from decrescendo.training.run import certify, check_published, cpu_weights
from decrescendo.training.statement import SECURE, SEEDED


@dataclass(frozen=True, slots=True)
class Opened:
    """An open round: what its members are told, and who they are.

    Args:
        round: for the members.
        cohort: client numbers, ascending; may be empty. Private to the server: amplification by sampling holds
            against those who do not know it.

    >>> asked = Round("ab", 1, 9, clip_norm=1.0, noise_multiplier=2.0, placement=Placement.CENTRAL, share_std=0.0)
    >>> Opened(asked, (3, 17)).cohort
    (3, 17)
    """

    round: Round
    cohort: tuple[int, ...]


class Rounds:
    """The state machine: ``open``, then ``release`` or ``abort``, as often as the plan has rounds.

    What is written when, if there is a journal:

    - CENTRAL: a round is written when it is released, *before* the optimiser moves: ledger, noisy mean and streams
      together. Killed before that, the server has shown nobody anything of the round, and it is done again with the
      same cohort and the same noise. Killed after it, the written noisy mean is applied on the next start.
    - DISTRIBUTED, LOCAL: a round is written as spent when it is *opened*, because replies that were sent may have been
      seen. Killed after that, the round is lost: the next start goes on with the next round of the plan, so the run has
      one effective round less and the ledger the same length.
    - An abort counts the round as spent in every placement: that it happened may depend on who took part.
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
        check_instance("plan", plan, Plan)
        check_instance("optimizer", optimizer, torch.optim.Optimizer)
        if plan.budget.unit is not Unit.CLIENT:
            raise InvalidValue(
                f"a federated plan must protect clients, got unit={plan.budget.unit}. "
                "Calibrate with Budget(epsilon, delta, Unit.CLIENT) and the number of clients as dataset_size"
            )
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        self.parameters = trainable(model)
        check_published(model)
        self.model, self.plan, self.placement = model, plan, Placement(placement)
        self.run = run_id(plan, self.placement, name)
        self._optimizer = optimizer
        self._sampling, self._noise = sampling_and_noise(seed)
        self._releases: list[Release] = []
        self._attendance: list[tuple[int, int]] = []
        self._opened: Opened | None = None
        self._start = time.monotonic()
        # Before any client is asked: a plan that cannot be judged must not be found out at the end.
        self._planned = certify(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        freeze(optimizer)  # an optimiser that cannot be written must be found out before the first round
        self._journal = None if journal is None else Journal(journal)
        if self._journal is not None:
            try:
                entry = self._journal.read()
                if entry is not None:
                    self._resume(entry)
            except BaseException:
                self._journal.close()
                raise

    @property
    def opened(self) -> Opened | None:
        """The open round."""
        return self._opened

    @property
    def spent(self) -> int:
        """Rounds in the ledger."""
        return len(self._releases)

    @property
    def ledger(self) -> Ledger:
        """What has been spent so far."""
        return Ledger(self._releases)

    @property
    def done(self) -> bool:
        """Whether the plan has no further round."""
        return self._opened is None and self.spent >= self.plan.steps

    def require_open(self) -> Opened:
        """The open round, or `PlanViolation`."""
        if self._opened is None:
            raise PlanViolation("a round must be open, got none. Call open() first")
        return self._opened

    def open(self) -> Opened:
        """Draw the next cohort; see `Server.open`."""
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
        index = self.spent
        cohort = next(self.plan.sampling.batches(1, self._sampling))
        c, z = float(self.plan.clip_norm[index]), float(self.plan.noise_multiplier[index])
        asked = Round(
            run=self.run,
            number=index + 1,
            rounds=self.plan.steps,
            clip_norm=c,
            noise_multiplier=z,
            placement=self.placement,
            share_std=self.placement.share_std(z * c, len(cohort)),
        )
        if self.placement.shows_replies:
            self._releases.append(self._release_of(index))
            # Until it is closed nobody knows how many replies were seen: the fewest give the least noise.
            self._attendance.append((len(cohort), min(len(cohort), 1)))
            self._write(None)
        self._opened = Opened(asked, tuple(int(client) for client in cohort))
        return self._opened

    def release(self, total: Mapping[str, Tensor], present: int, diagnostics: Diagnostics) -> None:
        """Release the open round: ``total`` is the sum of the ``present`` members' parts as the placement has them."""
        opened = self.require_open()
        asked, sampling = opened.round, self.plan.sampling
        if self.placement is Placement.CENTRAL:
            clipped = ClippedSum(total, asked.clip_norm, diagnostics)
            noisy = privatise(clipped, asked.noise_multiplier, sampling, self._noise)
            self._releases.append(noisy.release)
        else:
            shares = None if self.placement is Placement.LOCAL else max(len(opened.cohort), 1)
            noised = NoisedSum(total, asked.clip_norm, asked.noise_multiplier, present, shares)
            noisy = complete(noised, sampling, self._noise)
            self._attendance[-1] = (len(opened.cohort), present)
            if noisy.release != self._releases[-1]:
                raise PlanViolation(
                    f"what is released must be what was recorded, got {noisy.release} for {self._releases[-1]}"
                )
        self._opened = None
        # Recorded in memory and on disk before anything of it can be seen.
        self._write(noisy)
        apply(noisy, self.model, self._optimizer)

    def abort(self) -> None:
        """End the open round without output, and count it."""
        self.require_open()
        if self.placement is Placement.CENTRAL:
            self._releases.append(self._release_of(self.spent))
        self._opened = None
        self._write(None)

    def stop(self) -> None:
        """Let go of the journal; see `Server.stop`."""
        if self._journal is not None:
            self._journal.close()

    def finish(
        self, reports: tuple[RoundReport, ...], *, assumptions: tuple[str, ...], secure_sum: bool = True
    ) -> Outcome:
        """The run so far; one that ended early is judged by the whole plan, as in `Trainer.finish`.

        Args:
            reports: of the rounds.
            assumptions: what was not proven of clients being apart; see `Outcome`.
            secure_sum: see `Server.finish`.
        """
        against = None
        if self.placement is Placement.DISTRIBUTED:
            # A reply that is seen by itself has one share of noise, as a sum of which one member is left.
            seen = [
                (members, replies if secure_sum else min(replies, 1)) for members, replies in self._attendance
            ]
            against = server_guarantee(self.plan, seen)
        return Outcome(
            plan=self.plan,
            placement=self.placement,
            ledger=self.ledger,
            guarantee=self._guarantee(),
            against_server=against,
            secure_sum=secure_sum,
            weights=cpu_weights(self.model),
            reports=reports,
            assumptions=assumptions,
            random=SECURE if isinstance(self._sampling, SecureStream) else SEEDED,
            seconds=max(0.0, time.monotonic() - self._start),  # a broken clock must not lose a run
        )

    def _guarantee(self) -> Guarantee:
        return local_guarantee(self.plan) if self.placement is Placement.LOCAL else self._planned

    def _release_of(self, index: int) -> Release:
        rate = 1.0 if self.placement is Placement.LOCAL else self.plan.sampling.sample_rate
        return Release(rate, float(self.plan.noise_multiplier[index]))

    def _write(self, noisy: NoisyMean | None) -> None:
        if self._journal is None:
            return
        settings, state = freeze(self._optimizer)
        facts: dict[str, Any] = {
            "run": self.run,
            "spent": self.spent,
            "attendance": self._attendance,
            "optimizer": settings,
            "noise_std": None if noisy is None else noisy.noise_std,
        }
        tensors = dict(state)
        if isinstance(self._sampling, SecureStream) or isinstance(self._noise, SecureStream):
            facts["secure"] = [_place(self._sampling), _place(self._noise)]
        else:
            facts["sampling"] = self._sampling.bit_generator.state
            tensors["stream/noise"] = self._noise.get_state()
        tensors |= {f"weights/{name}": value for name, value in cpu_weights(self.model).items()}
        if noisy is not None:
            tensors |= {f"noisy/{name}": value.cpu().clone() for name, value in noisy.gradients.items()}
        self._journal.write(Entry(facts, tensors))

    def _go_on_with_streams(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if isinstance(self._sampling, SecureStream) or isinstance(self._noise, SecureStream):
            if "secure" not in facts:
                raise FileRefused(
                    "a run must go on with streams of its own kind, got Secure() for one that was begun with a seed. "
                    "Give any seed: the journal has the streams' states"
                )
            self._sampling, self._noise = (
                SecureStream(bytes.fromhex(key), position) for key, position in facts["secure"]
            )
            return
        if "secure" in facts:
            raise FileRefused(
                "a run must go on with streams of its own kind, got a seed for one that was begun with Secure()"
            )
        self._sampling.bit_generator.state = facts["sampling"]
        self._noise.set_state(tensors["stream/noise"])

    def _resume(self, entry: Entry) -> None:
        facts, tensors = entry.facts, entry.tensors
        if facts.get("run") != self.run:
            raise FileRefused(
                "the journal must be of this run (plan, placement and name), got another's. "
                "Give each run a folder of its own"
            )
        try:
            spent = check_integer("spent", facts["spent"])
            self._releases = [self._release_of(index) for index in range(spent)]
            self._attendance = [(int(members), int(replies)) for members, replies in facts["attendance"]]
            self._go_on_with_streams(facts, tensors)
            self.model.load_state_dict(_part(tensors, "weights"))
            thaw(self._optimizer, facts["optimizer"], tensors)
            moved = _part(tensors, "noisy")
            noisy = NoisyMean(moved, self._releases[-1], facts["noise_std"]) if moved else None
            if noisy is not None:
                apply(noisy, self.model, self._optimizer)
        except FileRefused:
            raise
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RuntimeError,
            IndexError,
            OverflowError,
        ) as error:
            raise FileRefused(f"the journal must fit this model and optimiser, got {error}") from error


def _place(stream: object) -> tuple[str, int]:
    assert isinstance(stream, SecureStream)
    return stream.key.hex(), stream.position


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}/")
    }
