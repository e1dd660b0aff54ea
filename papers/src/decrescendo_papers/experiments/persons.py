"""What a plan for clients says of the person who is behind several of them: InfiniteMNIST derives images from digits.

No training is needed, but minutes are: computed once and kept.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused
from decrescendo.federated import group_epsilon, most_clients
from decrescendo_papers.data.infinite import TEST, sources
from decrescendo_papers.experiments import lines
from decrescendo_papers.experiments.perform import plan_of, rows_of
from decrescendo_papers.experiments.spec import Spec

FORMAT, VERSION = "decrescendo-person", 1


@dataclass(frozen=True, slots=True)
class Person:
    """The guarantee for who wrote a digit.

    Args:
        clients: behind how many clients such a person is at most.
        epsilon: an upper bound at the spec's delta; ``None``: none was found, nothing is promised.
    """

    clients: int
    epsilon: float | None


@lru_cache
def _clients(rows: int, records: int) -> int:
    row = np.arange(rows)
    return most_clients(sources(TEST + row), row // records)


def compute(spec: Spec) -> Person:
    """The person's guarantee in a run of ``spec`` over clients of InfiniteMNIST.

    Clients of several images hold other persons' images too: they stay, with other updates, when a person leaves.
    """
    clients = _clients(rows_of(spec), spec.records)
    found = group_epsilon(plan_of(spec).ledger, spec.delta, clients, replaced=spec.records > 1).value
    return Person(clients, found if math.isfinite(found) else None)


def path_of(folder: Path) -> Path:
    """The file that everyone is a line of."""
    return folder / "persons.jsonl"


def save(folder: Path, spec: Spec, person: Person) -> Path:
    """Write it, all or nothing; seeds share it."""
    spec = spec.seeded(0)
    facts = {"format": FORMAT, "version": VERSION, "spec": spec.settings(), **asdict(person)}
    return lines.keep(path_of(folder), spec.hash, kept.seal(facts))


def find(folder: Path, spec: Spec) -> Person | None:
    """What is kept; ``None`` if there is nothing, or only something damaged."""
    path = path_of(folder)
    try:
        line = lines.find(path, spec.seeded(0).hash)
        if line is None:
            return None
        facts = kept.opened(line, path, FORMAT, VERSION)
        return Person(facts["clients"], facts["epsilon"])
    except (FileRefused, KeyError, TypeError):
        return None
