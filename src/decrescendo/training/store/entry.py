"""`Entry`: the record of one run in a store, and helpers that make one."""

import getpass
import os
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import (
    InvalidValue,
    check_instance,
)
from decrescendo.plans.agreement import Agreement

EXAMPLES = "examples_per_person"  # stored only if it is above 1

if TYPE_CHECKING:
    from decrescendo.training.store.store import Store


# Exact fractions without exponents: 1e999999999 is a short text, but a number that fills any memory.
COST = re.compile(r"(\d{1,2000}(/[1-9]\d{0,1999})?(,\d{1,2000}(/[1-9]\d{0,1999})?)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of one run in a store.

    Args:
        id: of the run, 32 hexadecimal digits.
        label: its name, as its user gave it: ``name`` of `train`, or of `Trainer`.
        who: who started it, as the operating system says.
        started: UTC, ISO 8601, by the machine's clock; for people: nothing is decided by it.
        agreed: its plan, fixed or adaptive.
        released: what it has released so far.
        state: ``open`` or ``finished``.
    """

    id: str
    label: str
    who: str
    started: str
    agreed: Agreement
    released: Ledger
    state: str

    @property
    def given_back(self) -> bool:
        """Whether the run ended before it released anything, so that it costs nothing."""
        return self.state == "finished" and not len(self.released)


def check_name(name: object, store: "Store | None") -> None:
    """Check that ``name`` is a string, and that there is a store to list the run under it."""
    check_instance("name", name, str)
    if name and store is None:
        raise InvalidValue(
            f"name must be given with a store, which lists the run by it, got name={name!r} and no store. Open one, or "
            "leave the name out"
        )


def new_id() -> str:
    """A unique id for a run."""
    return uuid.uuid4().hex


def planned(agreed: Agreement) -> Ledger:
    """The planned releases of a run; empty for an adaptive run, where they are not known in advance."""
    return agreed.planned or Ledger()


def checked_text(name: str, value: object) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{name} must be a text, got half of a character in {text!a}") from None
    return text


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"
