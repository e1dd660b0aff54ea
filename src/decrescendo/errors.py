"""All errors, as a class hierarchy, and the range checks that raise them.

::

    DecrescendoError
    ├── InvalidValue (ValueError)     an argument outside its range
    │   └── ImpossibleBudget          no schedule of the asked shape meets the budget
    ├── InvalidType (TypeError)       an argument of the wrong kind
    ├── AccountingError               an accountant cannot judge this ledger (which release, and why)
    ├── FileRefused (ValueError)      a damaged, foreign or newer file
    ├── UnsupportedModel              the model or loss cannot be trained privately as it stands (why, and the remedy)
    ├── OutOfMemory (MemoryError)     one example alone does not fit into memory
    ├── PlanViolation                 a step that the plan does not contain
    ├── RankLost (RuntimeError)       another process of a training ended, failed or was silent too long
    ├── DataUnavailable (OSError)     a data file is neither here nor could it be downloaded
    └── MissingExtra (ImportError)    an optional package is not installed (which, and the command that installs it)

Every message is one sentence in three parts: what must hold, what was got, what to do.
"""

import math
import os
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

_Kind = TypeVar("_Kind", bound=type)


class DecrescendoError(Exception):
    """Root of every error this package raises on purpose."""


class InvalidValue(DecrescendoError, ValueError):
    """An argument is outside its range."""


class ImpossibleBudget(InvalidValue):
    """No schedule of the requested shape meets the budget; the message gives the nearest budget that can be met."""


class InvalidType(DecrescendoError, TypeError):
    """An argument is of the wrong kind."""


class AccountingError(DecrescendoError):
    """An accountant does not cover this ledger; the message names the release and the reason."""


class FileRefused(DecrescendoError, ValueError):
    """A file is damaged, of another kind or from a newer version; it was not changed."""


class UnsupportedModel(DecrescendoError):
    """The model or its loss cannot be trained privately as it stands; the message says why and what to do.

    ``refusal``: the same in parts, where rows may depend on each other (`decrescendo.row_independence.Refusal`).
    """

    refusal: object = None


class OutOfMemory(DecrescendoError, MemoryError):
    """One example alone does not fit into memory, so splitting the batch further cannot help."""


class PlanViolation(DecrescendoError):
    """A requested step is not in the plan; taking it would void the guarantee."""


class RankLost(DecrescendoError, RuntimeError):
    """Another process of the training ended, failed or did not answer in time; nothing more was released."""


class DataUnavailable(DecrescendoError, OSError):
    """A data file is not on this machine and could not be downloaded; the message says where to put it."""


class MissingExtra(DecrescendoError, ImportError):
    """An optional dependency is missing; the message has the command that installs it."""


def within(claim: str, error: Exception) -> str:
    """One sentence: what must hold for the whole, and what was wrong in a part of it.

    >>> within("a.toml must be a declaration", InvalidValue("data must be a text, got data=3. Quote it"))
    'a.toml must be a declaration, in which data must be a text, got data=3. Quote it'
    >>> within("a.json must be a recipe", KeyError("settings"))
    'a.json must be a recipe, got one without settings'
    """
    if isinstance(error, DecrescendoError):
        return f"{claim}, in which {error}"
    if isinstance(error, KeyError):
        return f"{claim}, got one without {error.args[0]}"
    if isinstance(error, OSError) and error.strerror:
        return f"{claim}, got: {error.strerror}"
    return f"{claim}, got {error}"


def check_real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    hint: str = "",
) -> float:
    """A finite real number within the stated range, as ``float``, or an error that teaches.

    >>> check_real("delta", 1e-5, above=0, below=1)
    1e-05
    >>> check_real("delta", 2, above=0, below=1)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: delta must be > 0 and < 1, got delta=2
    """
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise InvalidType(f"{name} must be a real number, got {name}={value!r} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (
        math.isfinite(number)
        and (above is None or number > above) and (at_least is None or number >= at_least)
        and (below is None or number < below) and (at_most is None or number <= at_most)
    ):  # fmt: skip
        limits = ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
        wanted = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        if not math.isfinite(number):
            wanted = f"finite, {wanted}" if wanted else "finite"
        raise InvalidValue(f"{name} must be {wanted}, got {name}={value}" + (f". {hint}" if hint else ""))
    return number


def check_integer(name: str, value: object, *, at_least: int = 0) -> int:
    """A whole number not below ``at_least``, as ``int``, or an error that teaches.

    >>> check_integer("steps", 10, at_least=1)
    10
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidType(f"{name} must be a whole number, got {name}={value!r} ({type(value).__name__})")
    number = int(value)
    if number < at_least:
        raise InvalidValue(f"{name} must be >= {at_least}, got {name}={number}")
    return number


def check_path(name: str, value: object) -> None:
    """``value`` is a text or a path, without the character NUL."""
    if "\0" in str(value):
        raise InvalidValue(f"{name} must be a path, got one with the character NUL")
    if not isinstance(value, str):
        check_instance(name, value, os.PathLike, "It is a path")


def check_instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """``value`` is a ``kind``, or an error that says what it is instead."""
    if not isinstance(value, kind):
        raise InvalidType(
            f"{name} must be a {kind.__name__}, got {type(value).__name__}" + (f". {hint}" if hint else "")
        )


def check_array(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    length: int | None = None,
    hint: str = "",
) -> "Array":
    """A one-dimensional array of finite float64 above a bound, or an error that names the first offender.

    >>> check_array("clip_norm", [1.0, 0.0], above=0)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: clip_norm must be > 0 at every step, got clip_norm[1]=0.0
    """
    import numpy as np  # here, so that --help is quick

    tail = f". {hint}" if hint else ""
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "fiu":
            raise TypeError(f"dtype {given.dtype}")
        array = given.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # the latter: a tensor that requires a gradient
        raise InvalidType(f"{name} must be an array of numbers, got {type(value).__name__} ({error}){tail}") from None
    if array.ndim != 1:
        raise InvalidValue(f"{name} must have one dimension, got shape {array.shape}{tail}")
    if length is not None and array.size != length:
        raise InvalidValue(f"{name} must have one value a step ({length}), got {array.size} values{tail}")
    wrong = ~np.isfinite(array)
    wanted = "finite"
    if above is not None:
        wrong |= ~(array > above)
        wanted = f"> {above:g}"
    if at_least is not None:
        wrong |= ~(array >= at_least)
        wanted = f">= {at_least:g}"
    if not np.isfinite(array).all() and wanted != "finite":
        wanted += " and finite"
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidValue(f"{name} must be {wanted} at every step, got {name}[{first}]={array[first]}{tail}")
    return array


def uninherited(why: str) -> Callable[[_Kind], _Kind]:
    """A class that nobody inherits from, as its methods draw what is accounted: another law would have another price.

    >>> @uninherited("Give it other numbers")
    ... class Coin: pass
    >>> class Loaded(Coin): pass
    Traceback (most recent call last):
    decrescendo.errors.InvalidType: Coin must be used as it is, got a class of its own, Loaded. Give it other numbers
    """

    def seal(kind: _Kind) -> _Kind:
        def refuse(other: type) -> NoReturn:
            raise InvalidType(f"{kind.__name__} must be used as it is, got a class of its own, {other.__name__}. {why}")

        kind.__init_subclass__ = classmethod(refuse)  # pyrefly: ignore[method-assign, bad-assignment]
        return kind

    return seal
