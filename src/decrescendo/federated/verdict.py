"""What the server says of a reply, and of all replies of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """Accepted, accepted and shortened, or refused and why. A refused reply adds nothing (who saw it has seen it).

    >>> Verdict.RECLIPPED.taken, Verdict.NONFINITE.taken
    (True, False)
    """

    ACCEPTED = "accepted"
    RECLIPPED = "re-clipped"
    OTHER_RUN = "another run"
    OTHER_ROUND = "another round"
    NOT_ASKED = "not in the cohort"
    REPEATED = "repeated"
    NAMES = "wrong names"
    SHAPES = "wrong shapes"
    TYPES = "wrong types"
    UNREADABLE = "unreadable"
    NONFINITE = "not finite"
    TOO_LONG = "longer than an honest reply"
    DECLINED = "declined by the client"

    @property
    def taken(self) -> bool:
        """Whether the reply is in the sum."""
        return self in (Verdict.ACCEPTED, Verdict.RECLIPPED)


@dataclass(frozen=True, slots=True)
class Received:
    """The verdict on one reply, with the reason.

    >>> str(Received(Verdict.REPEATED, "client 3 has answered"))
    'repeated: client 3 has answered'
    """

    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What happened in a round: for the holder of the server only, no guarantee covers it.

    Args:
        number: of the round.
        cohort: how many clients were drawn; private, as the size of any Poisson batch.
        verdicts: how many replies got each verdict.
        released: ``False`` for a round that was aborted: spent, and without effect.

    >>> RoundReport(1, 3, {Verdict.ACCEPTED: 1, Verdict.REPEATED: 1}).missing
    2
    """

    number: int
    cohort: int
    verdicts: Mapping[Verdict, int] = field(default_factory=dict[Verdict, int])
    released: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdicts", MappingProxyType(dict(self.verdicts)))

    @property
    def taken(self) -> int:
        """Replies that are in the sum."""
        return sum(count for verdict, count in self.verdicts.items() if verdict.taken)

    @property
    def missing(self) -> int:
        """Members of the cohort whose reply never came or was refused: zero updates."""
        return self.cohort - self.taken

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items()) or "none"
        end = "" if self.released else " · aborted"
        return f"round {self.number}: {self.cohort} asked, replies: {counts}; {self.missing} missing{end}"
