"""What server and clients say to each other: plain values that survive JSON and other serialisations."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any

from torch import Tensor

from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer, check_real
from decrescendo.federated.placement import Placement
from decrescendo.plans.plan import Plan

Scalar = str | int | float


def run_id(plan: Plan, placement: Placement, name: str = "") -> str:
    """The name of a run: SHA-256 of the whole plan, the placement and a public ``name``.

    Whoever has the plan can compute it, so a client can agree to a plan before the first round. Two runs of one
    plan must have different names: a client answers each round of a run once.

    >>> from decrescendo.plans.plan import _EXAMPLE
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> run_id(plan, Placement.CENTRAL)[:8] == run_id(plan, Placement.CENTRAL, "second")[:8]
    False
    """
    text = f"decrescendo:run\n{plan.to_json()}\n{Placement(placement)}\n{name}"
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Round:
    """The server's message to the members of a cohort; the model's weights are sent beside it.

    Args:
        run: from `run_id`.
        number: 1 .. ``rounds``.
        rounds: of the whole plan, T >= 1.
        clip_norm: C_t > 0: the longest update a client may send, before its noise.
        noise_multiplier: z_t >= 0.
        placement: who adds the noise.
        share_std: >= 0, standard deviation of the noise that the client adds to every coordinate: 0, s_t / sqrt(k),
            or s_t = z_t C_t. In DISTRIBUTED it tells the cohort's size k to its members.

    Raises:
        InvalidValue: a number outside its range, or a share that does not fit the placement.

    >>> r = Round("ab", 1, 10, clip_norm=1.0, noise_multiplier=2.0, placement=Placement.DISTRIBUTED, share_std=0.5)
    >>> Round.from_config(r.to_config()) == r
    True
    """

    run: str
    number: int
    rounds: int
    clip_norm: float
    noise_multiplier: float
    placement: Placement
    share_std: float

    def __post_init__(self) -> None:
        check_instance("run", self.run, str)
        check_integer("number", self.number, at_least=1)
        check_integer("rounds", self.rounds, at_least=self.number)
        object.__setattr__(self, "clip_norm", check_real("clip_norm", self.clip_norm, above=0))
        noise = check_real("noise_multiplier", self.noise_multiplier, at_least=0)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "placement", Placement(self.placement))
        share = check_real("share_std", self.share_std, at_least=0)
        object.__setattr__(self, "share_std", share)
        least = self.noise_std if self.placement is Placement.LOCAL else 0.0
        most = 0.0 if self.placement is Placement.CENTRAL else self.noise_std
        if not least <= share <= most or (share == 0 and most > 0):
            raise InvalidValue(
                f"share_std must fit the placement {self.placement} of noise {self.noise_std:g}, "
                f"got share_std={share:g}. It is 0 for server, s / sqrt(k) for shares, s for local"
            )

    @classmethod
    def of(cls, plan: Plan, placement: Placement, run: str, index: int, cohort: int, factor: float = 1.0) -> "Round":
        """Round ``index`` (from 0) of ``plan``, for a cohort of so many members, ``factor`` on its clip norm."""
        c, z = factor * float(plan.clip_norm[index]), float(plan.noise_multiplier[index])
        return cls(run, index + 1, plan.steps, c, z, placement, placement.share_std(z * c, cohort))

    @property
    def noise_std(self) -> float:
        """s_t = z_t C_t, of the whole noise on the sum."""
        return self.noise_multiplier * self.clip_norm

    def to_config(self) -> dict[str, Scalar]:
        """Flat strings, whole numbers and floats only: fits JSON, and Flower's ``ConfigRecord``."""
        return {**asdict(self), "placement": self.placement.value}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Round":
        """What `to_config` gave.

        Raises:
            FileRefused: a missing, unknown or impossible entry.
        """
        known = {item.name for item in fields(cls)}
        if set(config) != known:
            odd = ", ".join(sorted(set(config) ^ known))
            raise FileRefused(f"a round must have exactly its {len(known)} entries, got a difference in {odd}")
        try:
            values: dict[str, Any] = {**config, "placement": Placement(config["placement"])}
            return cls(**values)
        except (InvalidValue, TypeError) as error:
            raise FileRefused(f"a round must have values that a round can have: {error}") from None


@dataclass(frozen=True, slots=True)
class Opened:
    """An open round: its members and the message to them.

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


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The reply of a client. It is not trusted; see `Server.receive`.

    Args:
        client: its number, 0 .. clients - 1. Whoever carries the messages says whose they are; a reply that
            could say it by itself would be another's.
        round: the number of the round it answers.
        run: the run it answers.
        tensors: its update (the direction that the model is moved *against*, as a gradient is), one tensor for each
            trainable parameter, by name. float32 or float64 without noise; float64 with it, as `update.prepare`
            makes it.
        values: the client's mean loss and mean score, those of them that the server's `Telemetry` has, in this order
            (`client_values`); empty if it tells none.

    >>> import torch
    >>> Reply(client=3, round=1, run="ab", tensors={"w": torch.zeros(2)})
    Reply(client 3, round 1)
    """

    client: int
    round: int
    run: str
    tensors: Mapping[str, Tensor]
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tensors, dict):
            object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __repr__(self) -> str:
        # The values are private: they are not printed.
        return f"Reply(client {self.client}, round {self.round})"
