"""`Declaration`: facts about a training that only the data's owner knows: people, tuning, other uses."""

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from decrescendo.errors import FileRefused, InvalidValue, check_instance, within

NOT_STATED = "not stated by the owner of the data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Facts that the data's owner adds to a statement. An empty entry is shown as not stated.

    Args:
        data: what the data set is, how it was collected, and who is in it.
        person: how many units (examples, clients) one person may have in the data; what was done about duplicates.
        private_uses: whatever else was computed from the private data: constants, vocabularies, class weights,
            features, a choice of model, early stopping, an evaluation.
        tuning: how learning rate, clip norm and schedule were chosen, on which data, in how many tries, and what that
            adds to the guarantee.
        public_data: what public data were used, pre-training included.
        released: what is released: final weights, all iterates, scores.
        other_releases: what else was, or will be, released from the same data.
        groups: results for groups of people, who may be served worse under privacy.
        contact: whom to ask.

    >>> Declaration(data="letters of 2019, one a customer").tuning
    ''
    """

    data: str = ""
    person: str = ""
    private_uses: str = ""
    tuning: str = ""
    public_data: str = ""
    released: str = ""
    other_releases: str = ""
    groups: str = ""
    contact: str = ""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            check_instance(name, value, str)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Declaration":
        """A declaration from a mapping from names to entries.

        Raises:
            InvalidValue: an entry that is unknown or not a text.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        odd = [name for name in facts if name not in names]
        if odd:
            near = get_close_matches(odd[0], names, 1)
            raise InvalidValue(
                f"entries must be some of {', '.join(names)}, got {', '.join(odd)}"
                + (f". Did you mean {near[0]}?" if near else "")
            )
        for name, value in facts.items():
            if not isinstance(value, str):
                raise InvalidValue(f"{name} must be a text, got {name}={value!r}. Put it in quotes")
        return cls(**facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Declaration":
        """A declaration from a TOML file with one line for each entry.

        Raises:
            FileRefused: it cannot be read, is no TOML, or says something else.
        """
        try:
            return cls.of(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise FileRefused(within(f"{os.fspath(path)} must be a declaration in TOML", error)) from None

    def stated(self) -> dict[str, str]:
        """Every entry; `NOT_STATED` in place of empty ones."""
        return {name: value or NOT_STATED for name, value in dataclasses.asdict(self).items()}
