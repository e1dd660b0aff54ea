"""What a client allows, whatever the server asks for."""

import json
from dataclasses import dataclass, field
from typing import Any

from decrescendo.base import strict_json
from decrescendo.errors import FileRefused, check_instance, check_integer, check_real, within
from decrescendo.federated.messages import Round
from decrescendo.federated.placement import Placement


@dataclass(frozen=True, slots=True)
class Memory:
    """State of a client from round to round, also through a restart: store `to_json` in a place that lasts.

    Noise is drawn from the client's seed, the run and the round's number, so answering one round of a run twice with
    different updates would show their difference without noise. A client that forgets is not protected.

    Args:
        taken: how many rounds were answered, of all runs, >= 0.
        last: the number of the last round answered, by run.

    >>> memory = Memory().after(Round("ab", 3, 9, 1.0, 2.0, Placement.CENTRAL, 0.0))
    >>> Memory.from_json(memory.to_json()) == memory
    True
    """

    taken: int = 0
    last: dict[str, int] = field(default_factory=dict[str, int])

    def after(self, asked: Round) -> "Memory":
        """With ``asked`` answered: to be kept *before* the reply leaves."""
        return Memory(self.taken + 1, {**self.last, asked.run: asked.number})

    def to_json(self) -> str:
        """As text."""
        return json.dumps({"taken": self.taken, "last": self.last})

    @classmethod
    def from_json(cls, text: str) -> "Memory":
        """What `to_json` gave, or `FileRefused`."""
        try:
            content: Any = strict_json.loads(text)
            last = {str(run): check_integer("last", number) for run, number in content["last"].items()}
            return cls(check_integer("taken", content["taken"]), last)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FileRefused(within("a client's memory must be what to_json wrote", error)) from None


@dataclass(frozen=True, slots=True)
class Policy:
    """A client's own limits. A round outside of them is refused with the reason, and nothing is computed for it.

    Args:
        max_clip_norm: > 0, C_t may not be above it.
        min_noise_multiplier: >= 0, z_t may not be below it. In CENTRAL and DISTRIBUTED the client takes the server's
            word for the noise that others add; what it can see for itself is ``share_std``.
        max_rounds: >= 1, how many rounds it answers in its life (of all runs; `Memory` counts).
        run: the run it agreed to (`run_id` of a plan it has seen); ``None`` for any.
        placements: the placements it agrees to.
        min_share_std: >= 0, of the noise it adds itself; above 0 this refuses CENTRAL.
        tell_values: whether it tells the server its mean loss and mean score, in CENTRAL, where the server's telemetry
            asks for them. Without, a node refuses such a run.

    >>> policy = Policy(max_clip_norm=1.0, min_noise_multiplier=1.0, max_rounds=2)
    >>> asked = Round("ab", 1, 9, clip_norm=4.0, noise_multiplier=2.0, placement=Placement.CENTRAL, share_std=0.0)
    >>> policy.refusal(asked, Memory())
    'clip_norm must be <= 1, got 4'
    """

    max_clip_norm: float
    min_noise_multiplier: float
    max_rounds: int
    run: str | None = None
    placements: frozenset[Placement] = frozenset(Placement)
    min_share_std: float = 0.0
    tell_values: bool = False

    def __post_init__(self) -> None:
        check_real("max_clip_norm", self.max_clip_norm, above=0)
        check_real("min_noise_multiplier", self.min_noise_multiplier, at_least=0)
        check_integer("max_rounds", self.max_rounds, at_least=1)
        check_real("min_share_std", self.min_share_std, at_least=0)
        check_instance("tell_values", self.tell_values, bool)
        object.__setattr__(self, "placements", frozenset(Placement(value) for value in self.placements))

    def refusal(self, asked: Round, memory: Memory) -> str | None:
        """Why ``asked`` is refused; ``None`` where it may be answered.

        A server that trusts nobody else may do a round of CENTRAL again after it was restarted, with the same number:
        allowed, and counted again. Rounds with noise of the client's own are answered once.
        """
        last = memory.last.get(asked.run, 0)
        again = asked.number < last or (asked.number == last and asked.share_std > 0)
        if self.run is not None and asked.run != self.run:
            return f"the run must be {self.run[:12]}.., got {asked.run[:12]}.."
        if asked.placement not in self.placements:
            allowed = ", ".join(sorted(self.placements))
            return f"the placement must be one of {allowed}, got {asked.placement}"
        if asked.clip_norm > self.max_clip_norm:
            return f"clip_norm must be <= {self.max_clip_norm:g}, got {asked.clip_norm:g}"
        if asked.noise_multiplier < self.min_noise_multiplier:
            return f"noise_multiplier must be >= {self.min_noise_multiplier:g}, got {asked.noise_multiplier:g}"
        if asked.share_std < self.min_share_std:
            return f"share_std must be >= {self.min_share_std:g}, got {asked.share_std:g}"
        if memory.taken >= self.max_rounds:
            return f"at most {self.max_rounds} rounds are answered, and that many were"
        if again:
            return f"a round must come after round {last}, the last answered, got round {asked.number}"
        return None
