"""What travels between the server app and the client apps, as records of Flower; read as if a stranger had sent it.

One message goes to a node in a round, for all of its members together, and one comes back: updates of its clients are
stacked, one row a client, so the number of objects on the wire does not grow with the clients of a node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from decrescendo.clipping import Telemetry
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.federated.flower.arrays import to_arrays, to_tensors
from decrescendo.federated.messages import Round
from decrescendo.federated.placement import Placement
from decrescendo.plans.plan import Plan

TRAIN, AGREE = "train", "query.agree"
_WEIGHTS, _ROUND, _COHORT, _UPDATES, _ANSWER, _PLAN, _HOSTS = (
    "weights", "round", "cohort", "updates", "answer", "plan", "hosts",
)  # fmt: skip
_Record = TypeVar("_Record", ArrayRecord, ConfigRecord)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A round for the members that live on one node.

    Args:
        round: what is asked.
        clients: which of the node's clients are in the cohort.
        weights: what the updates start from.
        values: "loss", "accuracy" or both: what each client is to tell beside its update.
    """

    round: Round
    clients: tuple[int, ...]
    weights: Mapping[str, Tensor]
    values: tuple[str, ...] = ()

    def to_content(self) -> RecordDict:
        """As records.

        >>> asked = Round("ab", 1, 9, 1.0, 2.0, Placement.CENTRAL, 0.0)
        >>> Ask.from_content(Ask(asked, (3, 5), {"w": torch.zeros(1)}).to_content()).clients
        (3, 5)
        """
        return RecordDict(
            {
                _WEIGHTS: to_arrays(self.weights),
                _ROUND: ConfigRecord(dict(self.round.to_config())),
                _COHORT: ConfigRecord({"clients": list(self.clients), "values": list(self.values)}),
            }
        )

    @property
    def telemetry(self) -> Telemetry | None:
        """For `client_values`: with loss and accuracy if they are asked for; ``None`` if neither is."""
        loss, accuracy = ("loss" in self.values, "accuracy" in self.values)
        return Telemetry(norms=0, loss=loss, accuracy=accuracy) if loss or accuracy else None

    @classmethod
    def from_content(cls, content: RecordDict) -> "Ask":
        """What `to_content` gave, or `FileRefused`."""
        asked = Round.from_config(dict(_record(content, _ROUND, ConfigRecord)))
        facts = _facts(content, _COHORT, {"clients": [int], "values": [str]}, {"values": []})
        weights = to_tensors(_record(content, _WEIGHTS, ArrayRecord))
        return cls(asked, tuple(facts["clients"]), weights, tuple(facts["values"]))


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What one node says for its clients.

    Args:
        run: the run it answers.
        round: the number of the round it answers.
        updates: one a client that takes part, in the order they came; a client may be named twice by a bad node.
        declined: clients that do not, with the reason.
        values: what clients tell beside their updates, as `client_values` has it: as many numbers of each.
    """

    run: str
    round: int
    updates: tuple[tuple[int, Mapping[str, Tensor]], ...]
    declined: tuple[tuple[int, str], ...] = ()
    values: Mapping[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])

    def to_content(self) -> RecordDict:
        """As records: one stack of rows a parameter.

        >>> answer = Answer("ab", 1, ((3, {"w": torch.zeros(2)}),), ((5, "no"),))
        >>> again = Answer.from_content(answer.to_content())
        >>> again.updates[0][0], again.declined
        (3, ((5, 'no'),))
        """
        names = list(self.updates[0][1]) if self.updates else []
        if len({len(values) for values in self.values.values()} - {0}) > 1:
            raise InvalidValue("values must be as many of each client that tells any, got uneven ones")
        stacks = {name: torch.stack([update[name] for _, update in self.updates]) for name in names}
        facts = ConfigRecord(
            {
                "run": self.run,
                "round": self.round,
                "clients": [client for client, _ in self.updates],
                "declined": [client for client, _ in self.declined],
                "reasons": [reason for _, reason in self.declined],
                "told": [client for client, values in self.values.items() if values],
                "values": [float(value) for values in self.values.values() for value in values],
            }
        )
        return RecordDict({_UPDATES: to_arrays(stacks), _ANSWER: facts})

    @classmethod
    def from_content(cls, content: RecordDict) -> "Answer":
        """What `to_content` gave.

        Raises:
            FileRefused: it cannot be read. What can be read may still be wrong; `Server.receive` judges it.
        """
        kinds = {"run": str, "round": int, "clients": [int], "declined": [int], "reasons": [str]}
        kinds |= {"told": [int], "values": [float]}
        facts = _facts(content, _ANSWER, kinds, {"told": [], "values": []})
        clients, declined, reasons = facts["clients"], facts["declined"], facts["reasons"]
        stacks = to_tensors(_record(content, _UPDATES, ArrayRecord)) if clients else {}
        for name, stack in stacks.items():
            if not stack.ndim or len(stack) != len(clients):
                raise FileRefused(
                    f"updates must have a row for each of the {len(clients)} clients, got {name} of "
                    f"{tuple(stack.shape)}"
                )
        rows = [{name: stack[row] for name, stack in stacks.items()} for row in range(len(clients))]
        if len(declined) != len(reasons):
            raise FileRefused(f"each client that declines must say why, got {len(reasons)} reasons")
        told, values = facts["told"], facts["values"]
        if len(values) % max(len(told), 1):
            raise FileRefused(f"each client must tell as many values, got {len(values)} of {len(told)}")
        each = len(values) // max(len(told), 1)
        own = {client: tuple(values[i * each : (i + 1) * each]) for i, client in enumerate(told)}
        updates, refusals = zip(clients, rows, strict=True), zip(declined, reasons, strict=True)
        return cls(facts["run"], facts["round"], tuple(updates), tuple(refusals), own)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The whole run, shown to every node before its first round.

    Args:
        plan: what is decided.
        placement: who adds the noise.
        name: the public name that tells runs of one plan apart.
        max_clip_norm: the largest C_t of a run whose C_t follows the updates' norms; 0: C_t is the plan's.
        values: "loss", "accuracy" or both: what clients are to tell beside their updates.
    """

    plan: Plan
    placement: Placement
    name: str
    max_clip_norm: float = 0.0
    values: tuple[str, ...] = ()

    def to_content(self) -> RecordDict:
        """As records; the plan as its own JSON.

        >>> from decrescendo.plans.plan import _EXAMPLE
        >>> proposal = Proposal(Plan.from_json(_EXAMPLE), Placement.CENTRAL, "first")
        >>> Proposal.from_content(proposal.to_content()) == proposal
        True
        """
        facts = ConfigRecord(
            {
                "plan": self.plan.to_json(),
                "placement": self.placement.value,
                "name": self.name,
                "max_clip_norm": self.max_clip_norm,
                "values": list(self.values),
            }
        )
        return RecordDict({_PLAN: facts})

    @classmethod
    def from_content(cls, content: RecordDict) -> "Proposal":
        """What `to_content` gave, or `FileRefused`."""
        kinds = {"plan": str, "placement": str, "name": str, "max_clip_norm": float, "values": [str]}
        facts = _facts(content, _PLAN, kinds, {"max_clip_norm": 0.0, "values": []})
        plan = Plan.from_json(facts["plan"], source="the proposed plan")
        try:
            about = facts["name"], facts["max_clip_norm"], tuple(facts["values"])
            return cls(plan, Placement(facts["placement"]), *about)
        except ValueError as error:
            raise FileRefused(f"a proposal must name a placement, got {error}") from None


@dataclass(frozen=True, slots=True)
class Agreement:
    """A node's answer to a proposal.

    Args:
        run: the run it speaks of.
        spans: the clients it hosts, as (first, stop) with ``stop`` excluded; none if it refuses.
        refused: why it refuses; "" where it agrees.
    """

    run: str
    spans: tuple[tuple[int, int], ...]
    refused: str = ""

    def to_content(self) -> RecordDict:
        """As records.

        >>> Agreement.from_content(Agreement("ab", ((0, 5), (8, 9))).to_content()).spans
        ((0, 5), (8, 9))
        """
        facts = ConfigRecord(
            {
                "run": self.run,
                "first": [first for first, _ in self.spans],
                "stop": [stop for _, stop in self.spans],
                "refused": self.refused,
            }
        )
        return RecordDict({_HOSTS: facts})

    @classmethod
    def from_content(cls, content: RecordDict) -> "Agreement":
        """What `to_content` gave, or `FileRefused`."""
        facts = _facts(content, _HOSTS, {"run": str, "first": [int], "stop": [int], "refused": str})
        first, stop = facts["first"], facts["stop"]
        if len(first) != len(stop):
            raise FileRefused(f"each span must have two ends, got {len(first)} and {len(stop)}")
        return cls(facts["run"], tuple(zip(first, stop, strict=True)), facts["refused"])


def spans_of(clients: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Client numbers as few (first, stop) spans.

    >>> spans_of([0, 1, 2, 7, 5, 6])
    ((0, 3), (5, 8))
    """
    spans: list[tuple[int, int]] = []
    for client in sorted(set(clients)):
        if spans and spans[-1][1] == client:
            spans[-1] = (spans[-1][0], client + 1)
        else:
            spans.append((client, client + 1))
    return tuple(spans)


def _record(content: RecordDict, name: str, kind: type[_Record]) -> _Record:
    found = content.get(name)
    if not isinstance(found, kind):
        raise FileRefused(f"a message must have the {kind.__name__} {name!r}, got {type(found).__name__}")
    return found


def _facts(
    content: RecordDict, name: str, kinds: Mapping[str, object], absent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Entries of a record, each of its kind: a type, or a list of one type; ``absent``: of those that older versions do
    not send."""
    facts = {**(absent or {}), **_record(content, name, ConfigRecord)}
    for key, kind in kinds.items():
        if not _fits(facts.get(key), kind):
            raise FileRefused(f"{key} must be of the kind {kind}, got {type(facts.get(key)).__name__}")
    return {key: facts[key] for key in kinds}


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, list):
        inner = cast("list[Any]", kind)[0]
        return isinstance(value, list) and all(_fits(one, inner) for one in cast("list[object]", value))
    return type(value) is kind
