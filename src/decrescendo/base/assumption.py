"""`Assumption`: what must be true for a guarantee to hold, beside what the library checked."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from decrescendo.base.markdown import one_line
from decrescendo.errors import InvalidValue, check_instance

# Prefixes of codes: assumptions about the independence of rows in a pass; about values published without noise.
ROWS, PUBLIC = "rows-", "public-"
BEGINS = "Assumed: "
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WRITTEN = re.compile(r"(?P<code>[a-z0-9-]+): (?P<sentence>Assumed: .*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Assumption:
    """A condition of the guarantee that the library did not check, or only in part.

    Args:
        code: a stable name of small letters, digits and hyphens. With the prefix ``rows-`` the engine assumed it to
            call rows independent in a pass; with ``public-`` it is about values that are published as they are,
            without noise. All codes are listed in docs/reference/assumptions.md.
        sentence: begins with "Assumed: "; it is put on one line.

    Raises:
        InvalidValue: a code with other characters, a sentence that begins in another way.

    >>> Assumption("own-sampler", "Assumed: the sampler reads public values only")
    Assumption(code='own-sampler', sentence='Assumed: the sampler reads public values only')
    """

    code: str
    sentence: str

    def __post_init__(self) -> None:
        check_instance("code", self.code, str)
        check_instance("sentence", self.sentence, str)
        if not _CODE.fullmatch(self.code):
            raise InvalidValue(
                f"code must be of small letters, digits and hyphens, got code={self.code!r}. Write it like own-sampler"
            )
        line = one_line(self.sentence)
        if not line.startswith(BEGINS):
            raise InvalidValue(
                f'sentence must begin with "{BEGINS}", got sentence={self.sentence!r}. Say after it what must be true'
            )
        object.__setattr__(self, "sentence", line)

    def __str__(self) -> str:
        return self.sentence

    @property
    def of_rows(self) -> bool:
        """Whether the engine assumed this to call rows independent in a pass."""
        return self.code.startswith(ROWS)

    @property
    def of_published(self) -> bool:
        """Whether this assumption is about values that are published without noise."""
        return self.code.startswith(PUBLIC)

    def written(self) -> str:
        """Code and sentence as one text, for files; `read_assumption` reads it.

        >>> Assumption("own-sampler", "Assumed: it is public").written()
        'own-sampler: Assumed: it is public'
        """
        return f"{self.code}: {self.sentence}"


def read_assumption(text: object) -> Assumption:
    """The assumption in a text that `Assumption.written` wrote.

    Raises:
        InvalidType, InvalidValue: not a text, or a text without a code.

    >>> read_assumption("own-sampler: Assumed: it is public").code
    'own-sampler'
    """
    check_instance("an assumption", text, str)
    found = _WRITTEN.fullmatch(str(text))
    if found is None:
        raise InvalidValue(f'an assumption must be written as "code: Assumed: sentence", got {str(text)[:80]!r}')
    return Assumption(found["code"], found["sentence"])


class Template(NamedTuple):
    """A row of the table of assumptions: ``{}`` in the sentence is a place for a name."""

    code: str
    sentence: str
    when: str
    remedy: str

    def format(self, *names: object) -> Assumption:
        """The assumption, with names."""
        return Assumption(self.code, BEGINS + self.sentence.format(*names))


def are_independent(assumptions: Iterable[Assumption]) -> bool:
    """Whether no assumption is about the independence of rows in a pass: then it was checked in full.

    >>> own = Assumption("own-sampler", "Assumed: the sampler reads public values only")
    >>> are_independent([]), are_independent([own])
    (True, True)
    >>> are_independent([Assumption("rows-hidden", "Assumed: a hidden layer keeps rows independent")])
    False
    """
    return not any(assumption.of_rows for assumption in assumptions)


def independence(assumptions: Iterable[Assumption]) -> str:
    """Whether rows are independent, in words: checked, or the codes of what was assumed.

    >>> independence([])
    'yes, checked at every pass'
    >>> independence([Assumption("rows-hidden", "Assumed: a hidden layer keeps rows independent")])
    'no, assumed in part (rows-hidden)'
    """
    codes = sorted({assumption.code for assumption in assumptions if assumption.of_rows})
    return f"no, assumed in part ({', '.join(codes)})" if codes else "yes, checked at every pass"


def assumption_lines(assumptions: Iterable[Assumption]) -> list[str]:
    """The lines of a report: whether rows are independent, then one line per assumption.

    >>> assumption_lines([Assumption("own-sampler", "Assumed: it is public")])
    ['rows independent: yes, checked at every pass', 'Assumed: it is public']
    """
    listed = list(assumptions)
    return [f"rows independent: {independence(listed)}", *map(str, listed)]


def assumption_facts(assumptions: Iterable[Assumption]) -> dict[str, Any]:
    """The entries of a JSON file: whether rows are independent; codes and sentences.

    >>> assumption_facts([Assumption("own-sampler", "Assumed: it is public")])
    {'rows_independent': True, 'assumptions': [{'code': 'own-sampler', 'sentence': 'Assumed: it is public'}]}
    """
    listed = list(assumptions)
    return {
        "rows_independent": are_independent(listed),
        "assumptions": [{"code": found.code, "sentence": found.sentence} for found in listed],
    }
