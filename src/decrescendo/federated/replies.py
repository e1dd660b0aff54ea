"""The replies to one round: checked, counted and added up."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from decrescendo.clipping import Diagnostics, Telemetry
from decrescendo.errors import InvalidValue, PlanViolation, check_integer
from decrescendo.federated.messages import Opened, Reply
from decrescendo.federated.summing import MARGIN, TAIL, ExactSum, norm_of
from decrescendo.federated.turns import Turns
from decrescendo.federated.verdict import Received, RoundReport, Verdict

# A sum of parts of length C_t is no longer than so many times the number of parts, whatever rounds it.
_LONGER = 1.001
# The name of the telemetry coordinates in a sum of tensors by name.
_EXTRA = "telemetry"


@final
class Replies:
    """What came of the open round.

    Args:
        run: that replies must name.
        shapes: of the tensors of a reply, by name.
        clients: how many there are, all in all.
        turns: of the server.
        telemetry: of the updates and of what clients tell beside them, or none.
    """

    def __init__(
        self, run: str, shapes: dict[str, torch.Size], clients: int, turns: Turns, telemetry: Telemetry | None
    ) -> None:
        self._run, self._shapes, self._clients, self._turns = run, shapes, clients, turns
        self._telemetry = telemetry
        self._size = sum(shape.numel() for shape in shapes.values())
        self.counts: Counter[Verdict] = Counter()
        self.answered: set[int] = set()
        self.total: ExactSum | None = None
        self._extra: ExactSum | None = None
        self.reports: list[RoundReport] = []
        # Whether replies came one by one, at all; and whether one of this round was refused.
        self.one_by_one, self.odd = False, False

    def begin(self, opened: Opened) -> None:
        """Have an empty sum."""
        self.answered.clear()
        limit = opened.round.clip_norm + TAIL * opened.round.share_std
        self.total = ExactSum(self._shapes, limit, self._clients)
        if self._telemetry is not None:
            self._extra = ExactSum({_EXTRA: torch.Size([self._telemetry.size])}, limit, self._clients)

    def required(self, opened: Opened | None) -> tuple[Opened, ExactSum]:
        """The open round and its sum.

        Raises:
            PlanViolation: no round is open.
        """
        self._turns.check_whole(opened=opened is not None)
        if opened is None or self.total is None:  # the sum is made with the round
            raise PlanViolation("a round must be open, got none. Call open() first")
        return opened, self.total

    def extra_coordinates(self) -> Tensor | None:
        """The sum of the telemetry coordinates, in float64."""
        return None if self._extra is None else self._extra.value()[_EXTRA]

    def check_extra(self, extra: Tensor | None, present: int, clip_norm: float) -> Tensor | None:
        """A copy of the telemetry coordinates of a sum from elsewhere; refused if there are none, or other ones."""
        size, longest = 0 if self._telemetry is None else self._telemetry.size, present * clip_norm * _LONGER
        given: object = extra
        if given is None and not size:
            return None
        real = isinstance(given, Tensor) and given.layout == torch.strided and given.is_floating_point()
        if isinstance(given, Tensor) and real and not (given.is_meta or given.is_nested):
            own = given.detach().to("cpu", torch.float64, copy=True)
            if own.shape == (size,) and norm_of({_EXTRA: own}) <= longest:
                return own
        raise InvalidValue(
            f"extra_coordinates must be the sum of the {size} telemetry coordinates of {present} updates, in a row and "
            f"no longer than {longest:.4g}, got another one. `Telemetry.coordinates` has those of one update"
        )

    def take(self, opened: Opened | None, reply: Reply, tensors: dict[str, Tensor] | Received) -> Received:
        """Judge a reply, count the verdict, and add what is fit. ``tensors``: copies, or why there are none."""
        received = self._judge(opened, reply, tensors)
        self.counts[received.verdict] += 1
        self.odd = self.odd or not received.verdict.taken
        return received

    def seen(self) -> Diagnostics:
        """What clipping the replies saw."""
        return Diagnostics(
            examples=len(self.answered),
            nonfinite=self.counts[Verdict.NONFINITE],
            clipped=self.counts[Verdict.RECLIPPED],
            loss_sum=0.0,
        )

    def check_sum(self, opened: Opened, total: Mapping[str, Tensor], present: int) -> None:
        """Refuse a sum from elsewhere that is longer than ``present`` clipped parts can be."""
        members, asked = len(opened.cohort), opened.round
        check_integer("present", present, at_least=len(self.answered))
        if present > members:
            raise InvalidValue(f"present must be at most the cohort's {members} members, got {present}")
        # Of noise there is no more than that, but with probability e^(-TAIL^2 / 2).
        noise = asked.share_std * present**0.5 * (self._size**0.5 + TAIL)
        limit = self._limit(asked.clip_norm)
        longest, norm = (present * limit + noise) * _LONGER, norm_of(total)
        if not norm <= longest:
            raise InvalidValue(
                f"total must be the sum of {present} parts of length {limit:g} at most, which is no longer "
                f"than {longest:.4g}, got {norm:.4g}. Nothing was released: sum what clients have clipped"
            )

    def summed(self, present: int) -> None:
        """Count the replies that are in the sum and were never seen one by one."""
        if summed := present - len(self.answered):
            self.counts[Verdict.ACCEPTED] += summed

    def report(self, opened: Opened, *, released: bool) -> RoundReport:
        """What happened in the round, which has ended."""
        self.reports.append(RoundReport(opened.round.number, len(opened.cohort), self.counts, released))
        self.counts, self.total = Counter(), None
        return self.reports[-1]

    def _limit(self, clip_norm: float) -> float:
        """How long an update may be: below C_t, where loss or accuracy needs room."""
        return clip_norm if self._telemetry is None else self._telemetry.gradient_limit(clip_norm)

    def _values_of(self, reply: Reply) -> Float64[Tensor, "1 told"] | Received | None:
        """The loss and the score that a reply tells, ``None`` if none; or that they are not what was asked for."""
        values: Any = reply.values
        wanted = 0 if self._telemetry is None else self._telemetry.scalars
        real = type(values) is tuple and all(type(value) is float for value in values)
        if not real or len(values) not in {0, wanted}:
            return Received(Verdict.TYPES, f"values must be a tuple of {wanted} floats, or empty")
        return torch.tensor([values], dtype=torch.float64) if values else None

    def _judge(self, opened: Opened | None, reply: Reply, tensors: dict[str, Tensor] | Received) -> Received:
        self._turns.check_whole(opened=opened is not None)
        total = self.total
        client: Any = reply.client
        # What comes by wire may be of any type.
        if type(reply.run) is not str or reply.run != self._run:
            return Received(Verdict.OTHER_RUN, "a reply must name this run")
        number: Any = reply.round
        if opened is None or total is None or type(number) is not int or number != opened.round.number:
            now = "no round" if opened is None else f"round {opened.round.number}"
            return Received(Verdict.OTHER_ROUND, f"{now} is open, got a reply to round {_shown(number)}")
        if type(client) is not int or client not in opened.cohort:
            return Received(Verdict.NOT_ASKED, f"client {_shown(client)} is not in the cohort")
        if client in self.answered:
            return Received(Verdict.REPEATED, f"client {client} has answered")
        if isinstance(tensors, Received):
            return tensors
        values = self._values_of(reply)
        if isinstance(values, Received):
            return values
        norm, c, share = norm_of(tensors), opened.round.clip_norm, opened.round.share_std
        if not norm < float("inf"):
            return Received(Verdict.NONFINITE, "every value must be finite, and the norm too")
        verdict, factor, reason = Verdict.ACCEPTED, 1.0, ""
        if share > 0:
            longest = c + share * (self._size**0.5 + TAIL)
            largest = max(float(tensor.abs().max()) for tensor in tensors.values() if tensor.numel())
            if norm > longest or largest > c + TAIL * share:
                return Received(Verdict.TOO_LONG, f"the norm must be at most {longest:.4g}, got {norm:.4g}")
        elif norm > (target := self._limit(c) * (1 - MARGIN)):
            factor = target / norm
            if norm > c:
                verdict, reason = Verdict.RECLIPPED, f"norm {norm:.4g} shortened to {target:.4g}"
        with self._turns.whole():
            total.add(tensors, factor)
            if self._telemetry is not None and self._extra is not None:
                own = torch.tensor([norm * factor], dtype=torch.float64)
                self._extra.add({_EXTRA: extra_coordinates(self._telemetry, own, values, c)})
            self.answered.add(client)
        return Received(verdict, reason)


def extra_coordinates(
    telemetry: Telemetry,
    lengths: Float[Tensor, " clients"],
    values: Float[Tensor, "clients told"] | None,
    clip_norm: float,
    counted: Bool[Tensor, " clients"] | None = None,
) -> Float64[Tensor, " size"]:
    """The sum of the telemetry coordinates of clipped updates of these lengths.

    Args:
        values: of each client the mean loss and the mean score, as `update.client_values` has them; ``None`` for
            clients that tell none: 0, as the middle of the range is.
        counted: whose update is finite; ``None`` for all.

    >>> extra_coordinates(Telemetry(norms=2), torch.tensor([0.5, 1.0]), None, 1.0).round(decimals=3)
    tensor([0.7070, 0.0000], dtype=torch.float64)
    """
    exact = lengths.detach().to("cpu", torch.float64)
    known = torch.ones_like(exact, dtype=torch.bool) if counted is None else counted.to("cpu")
    if values is None:
        loss = score = exact
    else:
        told = values.detach().to("cpu", torch.float64)
        loss, score = told[:, 0], told[:, -1]
    found = telemetry.coordinates(exact, loss, score, known, clip_norm)
    if values is None:
        found[:, telemetry.norms :] = 0
    return found.sum(0)


def _shown(value: object) -> str:
    """A number that a client sent, or the type of what it sent instead."""
    return repr(value) if type(value) is int and abs(value) < 2**63 else f"<{type(value).__name__}>"
