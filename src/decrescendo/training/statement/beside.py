"""Compares the privacy statement stored beside a run with the run."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from decrescendo.base import sealed
from decrescendo.base.whole_file import read_whole
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.training.statement.declaration import NOT_STATED, Declaration
from decrescendo.training.statement.statement import FORMAT, JSON, MARKDOWN, VERSION, Statement

# The entry that is not computed again: each of its points takes up to a second.
_LEFT = "spent"
_AGAIN = "Edited, or of another version: decrescendo statement FOLDER writes both files again"


def said_beside(folder: Path) -> tuple[Declaration | None, Mapping[str, Any] | None]:
    """The owner's declaration and the facts of an audit in the stored statement; ``None`` for each that is
    missing.

    Raises:
        FileRefused: the file is damaged, or says something else.
    """
    if not (folder / JSON).exists():
        return None, None
    facts = sealed.opened(read_whole(folder / JSON), folder / JSON, FORMAT, VERSION, spaced=True)
    try:
        return _declared(facts), facts["audit"]
    except (KeyError, AttributeError, TypeError, InvalidValue) as error:
        raise FileRefused(f"{folder / JSON} must be a statement, got something else: {error}") from None


def _declared(facts: Mapping[str, Any]) -> Declaration:
    return Declaration.of({name: "" if text == NOT_STATED else text for name, text in facts["declared"].items()})


def check_beside(folder: Path, made: Callable[[Declaration, Mapping[str, Any] | None], Statement]) -> str | None:
    """Compare ``statement.json`` with the statement that the run makes, and ``statement.md`` with
    ``statement.json``.

    The data owner's declaration and the facts of an audit are taken from the file: no run has them.

    Args:
        folder: of a run.
        made: the statement of the run, from a declaration and the facts of an audit.

    Returns:
        A sentence that both files agree with the run; ``None`` if there is neither file.

    Raises:
        FileRefused: a file is missing, damaged, or says something else.
    """
    if not (folder / JSON).exists() and not (folder / MARKDOWN).exists():
        return None
    facts = sealed.opened(read_whole(folder / JSON), folder / JSON, FORMAT, VERSION, spaced=True)
    del facts["format"], facts["version"]
    try:
        own = dict(made(_declared(facts), facts["audit"]).facts) | {_LEFT: facts[_LEFT]}
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise FileRefused(f"{folder / JSON} must be a statement, got something else: {error}. {_AGAIN}") from None
    if (odd := _differs(facts, own)) is not None:
        raise FileRefused(f"{folder / JSON} must say what the run says, got another {odd}. {_AGAIN}")
    if read_whole(folder / MARKDOWN) != Statement(facts).to_markdown().encode():
        raise FileRefused(f"{folder / MARKDOWN} must say what {JSON} says, got another text. {_AGAIN}")
    return "the statement beside the run says what the run says"


def _differs(found: object, own: object, name: str = "") -> str | None:
    """The name of the first entry that differs, or ``None``; floats may differ by the rounding of other machines."""
    if isinstance(found, dict) and isinstance(own, dict):
        one, other = cast("dict[str, Any]", found), cast("dict[str, Any]", own)
        for key in [*other, *(key for key in one if key not in other)]:
            path = f"{name}.{key}" if name else key
            if (key in one) != (key in other):
                return path
            if (odd := _differs(one[key], other[key], path)) is not None:
                return odd
        return None
    if isinstance(found, list) and isinstance(own, list):
        several, others = cast("list[Any]", found), cast("list[Any]", own)
        if len(several) != len(others):
            return name
        return next(filter(None, map(_differs, several, others, [name] * len(others))), None)
    if isinstance(found, float) and isinstance(own, float):
        return None if math.isclose(found, own, rel_tol=1e-9) else name
    return None if type(found) is type(own) and found == own else name
