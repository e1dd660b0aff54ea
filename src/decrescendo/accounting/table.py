"""The table of this package's accountants: whoever names several of them reads it here.

Read by the command line (``--accountant``, `account`), the studio, `verify`, the bounds on tests of membership and the
tests that every accountant must pass; the pages name all of them, which a test checks. Nothing here loads NumPy: a
class is loaded when it is asked for. How to add one: docs/how-to/accountant.md.
"""

import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from decrescendo.accounting.budget import Kind
    from decrescendo.accounting.protocol import Accountant

# What a name says of a setting: Zcdp(batches_per_epoch=10).
_WITH_SETTING = re.compile(r"(\w+)\((\w+)=([1-9][0-9]{0,8})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One accountant of this package.

    Args:
        name: its class, and its name in guarantees.
        file: where that is, in ``accounting/``.
        kind: what its epsilon is; ``None``: that of the accountant that it is made with.
        title: what people see of it.
        option: its name on the command line, for those that are asked side by side about Poisson batches; else empty.
        setting: the whole number that it may be made with, and that its name says then; mostly none.
        needs: what it cannot be made without, in words; mostly nothing.
    """

    name: str
    file: str
    kind: "Kind | None"
    title: str
    option: str = ""
    setting: str = ""
    needs: str = ""

    @property
    def made(self) -> "type[Accountant]":
        """Its class."""
        return cast("type[Accountant]", getattr(import_module(f"decrescendo.accounting.{self.file}"), self.name))

    @property
    def shown(self) -> str:
        """Title and name.

        >>> KNOWN["Rdp"].shown
        'Rényi (Rdp)'
        """
        return f"{self.title} ({self.name})"


_TABLE = (
    Known(name="Pld", file="pld", kind="upper", title="Exact composition", option="pld"),
    Known(name="Gaussian", file="gaussian", kind="exact", title="Gaussian DP", option="gaussian"),
    Known(name="Rdp", file="rdp", kind="upper", title="Rényi", option="rdp"),
    Known(
        name="Zcdp", file="concentrated", kind="upper", title="zCDP", option="zcdp", setting="batches_per_epoch"
    ),
    Known(name="Tcdp", file="concentrated", kind="estimate", title="tCDP", option="tcdp"),
    Known(name="GdpClt", file="gdp", kind="estimate", title="Central limit theorem", option="clt"),
    Known(name="Allocated", file="allocated", kind="upper", title="Once an epoch"),
    Known(name="Truncated", file="truncated", kind=None, title="Truncated batches", needs="an accountant"),
    Known(
        name="Selection", file="selection", kind="upper", title="The best of several trials",
        needs="the law of their number",
    ),
)  # fmt: skip

KNOWN = {known.name: known for known in _TABLE}  # in the order in which they are shown, the default first
OPTIONS = {known.option: known for known in _TABLE if known.option}
DEFAULT = _TABLE[0]


def accountant_named(name: str) -> "Accountant | None":
    """The accountant of this package that a guarantee names; ``None`` for another, and one that its name does not
    make. What truncation costs is not in it: of ``Truncated(Rdp)`` it is `Rdp`.

    >>> accountant_named("Truncated(Rdp)"), accountant_named("Zcdp(batches_per_epoch=10)"), accountant_named("my own")
    (Rdp(), Zcdp(batches_per_epoch=10), None)
    """
    name = without_truncation(name)
    if (said := _WITH_SETTING.fullmatch(name)) and (found := KNOWN.get(said[1])) and found.setting == said[2]:
        return found.made(**{found.setting: int(said[3])})
    return KNOWN[name].made() if judges_releases(name) else None


def judges_releases(name: str) -> bool:
    """Whether an accountant of that name, truncation or not, judges the releases themselves and nothing else.

    >>> [judges_releases(name) for name in ("Pld", "Truncated(Rdp)", "Zcdp(batches_per_epoch=10)", "Selection", "mine")]
    [True, True, False, False, False]
    """
    found = KNOWN.get(without_truncation(name))
    return found is not None and not found.needs


def without_truncation(name: str) -> str:
    """The name of the accountant that ``Truncated(..)`` is made with, or ``name`` itself.

    >>> without_truncation("Truncated(Pld)"), without_truncation("Pld")
    ('Pld', 'Pld')
    """
    return name.removeprefix("Truncated(")[:-1] if name.startswith("Truncated(") and name.endswith(")") else name
