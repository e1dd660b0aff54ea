"""What a finished federated training is, and what may be said of it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from decrescendo.accounting import Guarantee, Ledger
from decrescendo.base.assumption import Assumption, are_independent, independence
from decrescendo.errors import InvalidValue
from decrescendo.federated.placement import Placement
from decrescendo.federated.verdict import RoundReport
from decrescendo.plans.plan import Plan
from decrescendo.training.run import Run
from decrescendo.training.statement import SEEDED, UNRECORDED, Provenance
from decrescendo.training.steering.reading import Reading

_MANY = 5  # rounds without any reply are no accident


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A finished federated training.

    Args:
        plan: what was decided before the start.
        placement: who added the noise.
        ledger: what was spent, aborted rounds included. In LOCAL the releases have sample rate 1.
        guarantee: of the weights, a client: the plan's accountant-checked one in CENTRAL and DISTRIBUTED; in LOCAL
            that of a client that answered every round. See `Placement` for whom it protects against.
        against_server: DISTRIBUTED only: what a curious server learned of a client that answered every round, at worst.
        secure_sum: whether the server saw only the sum of a round's replies; matters in DISTRIBUTED.
        weights: the trained parameters and the persistent buffers, by name, on the CPU.
        account: data set and id of the run in a `Store`; empty: in none.
        assumptions: what must be true for the guarantee to hold; rows are clients here. See
            `training.run.Run.assumptions`.
        random: ``secure`` or ``seeded``: where the server's cohorts and noise came from.
        reports: what happened in each round since this process started; private.
        seconds: wall-clock time since this process started.
        resumed: the rounds after which the run went on from its journal.
        clip_norm: C_t of the rounds spent, if it followed the telemetry; else empty.
        telemetry: what was released beside the updates, of each round that was released; public.

    >>> from decrescendo.plans.plan import _EXAMPLE
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> outcome = Outcome(plan, Placement.CENTRAL, plan.ledger, plan.guarantee, None, {})
    >>> print(outcome.statement().splitlines()[1])
    The server is trusted with every reply; the guarantee holds against whoever sees the models it releases.
    """

    plan: Plan
    placement: Placement
    ledger: Ledger
    guarantee: Guarantee
    against_server: Guarantee | None
    weights: Mapping[str, Tensor]
    reports: tuple[RoundReport, ...] = ()
    seconds: float = 0.0
    secure_sum: bool = True
    random: str = SEEDED
    assumptions: tuple[Assumption, ...] = (UNRECORDED,)
    account: str = ""
    resumed: tuple[int, ...] = ()
    clip_norm: tuple[float, ...] = ()
    telemetry: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        rounds = [report for report in self.reports if report.cohort]
        if len(rounds) >= _MANY and not any(report.taken for report in rounds):
            warnings.warn(
                f"no client's reply is in any of the {len(rounds)} rounds since this process started: the weights have "
                "moved by noise alone, and the rounds are spent. Read the clients' logs",
                stacklevel=3,
            )

    @property
    def steps(self) -> int:
        """Rounds spent."""
        return self.ledger.steps

    @property
    def rows_independent(self) -> bool:
        """Whether every pass was shown to keep clients independent; never where they reply from elsewhere."""
        return are_independent(self.assumptions)

    def statement(self) -> str:
        """What is promised, and against whom."""
        lines = [str(self.guarantee), *self._trust]
        lines.append(
            'The unit is a client as the plan counts them. Where clients are not independent people ("one client" '
            "may hold a copy of what another holds), `federated.units` says what else is hidden, and how far."
        )
        lines.append(f"Rows (clients) independent: {independence(self.assumptions)}.")
        lines += [f"{assumption}." for assumption in self.assumptions]
        if self.telemetry:
            lines.append(f"Released in each round beside the sum of the updates: {self.telemetry[0].telemetry}.")
        if self.clip_norm:
            lines.append("C_t followed these numbers from round to round.")
        return "\n".join(lines)

    @property
    def _trust(self) -> list[str]:
        """Who is trusted with what."""
        lines = [self.placement.threat]
        if self.placement is Placement.DISTRIBUTED and not self.secure_sum:
            lines.append("There was no secure aggregation here: the server saw every reply by itself.")
        if self.against_server is not None:
            lines.append(f"Against the server, for a client that answers every round: {self.against_server}")
        return lines

    def to_run(self) -> Run:
        """The same as a `decrescendo.training.run.Run`, which can be saved.

        Raises:
            InvalidValue: LOCAL, whose ledger is not a part of its plan's.
        """
        if self.placement is Placement.LOCAL:
            raise InvalidValue(
                "a Run must keep its plan's promise, got the placement local, which promises something else. "
                "Save its weights with the text of statement()"
            )
        provenance = Provenance(
            random=self.random,
            resumed=self.resumed,
            trust=" ".join(self._trust),
            assumptions=self.assumptions,
            account=self.account,
            telemetry=str(self.telemetry[0].telemetry) if self.telemetry else "",
        )
        whole = len(self.telemetry) == self.ledger.steps  # a run's readings are of all its steps
        return Run(
            self.plan, self.ledger, self.guarantee, self.weights, seconds=self.seconds, provenance=provenance,
            clip_norm=self.clip_norm, telemetry=self.telemetry if whole else (),
        )  # fmt: skip
