"""Checks the ids of people (one per row) against the number of examples per person that a plan protects."""

import math
import unicodedata
from collections.abc import Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data.repeated_records import index_of, indices_of

# The names of pandas' types for a missing value.
_MISSING = ("NAType", "NaTType")
# What str() makes of a value that is missing, and what files have for one.
_MISSING_TEXTS = frozenset({"nan", "NaN", "None", "NaT", "<NA>", "null", "NULL"})
_KINDS: dict[type, type] = {str: str, bytes: bytes, int: float, bool: float, float: float}
# Below this every whole number has a float of its own.
_WHOLE = 2.0**53


def check_people(people: object, budget: Budget, rows: int) -> Int[np.ndarray, " rows"] | None:
    """Check that ``people`` has one id per row, and no id more often than ``budget`` allows.

    Args:
        people: the id of each row's person, in the order of the rows: an array, a tensor, a list or a column of a
            data frame. ``None`` for a plan that protects examples.
        budget: of the plan.
        rows: number of rows.

    Returns:
        Each row's person, as a number from 0; ``None`` without ``people``.

    Raises:
        InvalidValue: no ids for a plan that protects people, or ids for one that does not; more or fewer ids than rows,
            a row without one, a person with too many rows.
        InvalidType: ids of another form.

    >>> budget = Budget(1.0, 1e-5, Unit.PERSON, examples_per_person=2)
    >>> check_people(["ann", "bo", "ann"], budget, 3)
    array([0, 1, 0])
    >>> check_people(["ann", "bo", "ann", "ann"], budget, 4)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: one person must have at most 2 rows, as the plan says, got one with 3. ...
    """
    if budget.unit is not Unit.PERSON:
        if people is not None:
            raise InvalidValue(
                f"people must come with a plan that protects people, got ids for one of unit={budget.unit}. Calibrate "
                "with Budget(epsilon, delta, Unit.PERSON, examples_per_person=k)"
            )
        return None
    if people is None:
        raise InvalidValue(
            f"a plan that protects a {budget.protected} must be given people=, an id for each row, got none. Without "
            "it nobody has looked how many rows one person has"
        )
    ids = ids_of(people)
    if len(ids) != rows:
        raise InvalidValue(f"people must have an id for each of the {rows} rows, got {len(ids)}")
    person_of_row = numbered(ids)
    most = int(np.bincount(person_of_row).max())
    if most > budget.examples_per_person:
        raise InvalidValue(
            f"one person must have at most {budget.examples_per_person} rows, as the plan says, got one with {most}. "
            "Leave rows out, calibrate with a larger examples_per_person, or make one row of each person with by_person"
        )
    return person_of_row


def check_index(data: object, people: object) -> None:
    """Refuse ids with another index than the rows', both of data frames: which row is whose?

    Args:
        data: a data frame; also a dict, tuple or list with columns of one. Of anything else nothing is known.
        people: its ids.

    Raises:
        InvalidValue: another index.
    """
    ids = index_of(people)
    for index in indices_of(data):
        # (A list of as many frames as there are rows has one for each row.)
        if ids is not None and len(index) == len(ids) and not ids.equals(index):
            raise InvalidValue(
                "people must have the index of the rows, got another one: the ids of a frame that was shuffled or "
                "cut after they were taken? Take both from one frame (frame[columns] and frame['id']), or, if they are "
                "in the order of the rows, give people.to_numpy()"
            )


def numbered(ids: Sequence[Any], name: str = "people") -> Int[np.ndarray, " rows"]:
    """Ids as integers from 0, in the order of their first occurrence.

    Raises:
        InvalidValue: a row without an id; an id that is spelled in two ways (spaces, Unicode's forms).

    >>> numbered(["ann", "bo", "ann"])
    array([0, 1, 0])
    """
    places: dict[object, int] = {}
    spelled: dict[str, str] = {}
    found = np.empty(len(ids), dtype=np.int64)
    for row, one in enumerate(ids):
        bare = one.strip() if isinstance(one, str | bytes) else one
        if bare is None or one != one or bare in ("", b"") or bare in _MISSING_TEXTS:
            raise InvalidValue(f"every row must have an id in {name}, got {one!r} for row {row}. Whose row is it?")
        if isinstance(one, str):
            same = spelled.setdefault(unicodedata.normalize("NFC", one.strip()), one)
            if same != one:
                raise InvalidValue(
                    f"each person must have one id in {name}, got {same!r} and {one!r}, which differ in spaces or in "
                    "Unicode's form and would count as two. Write each id in one way (strip, unicodedata.normalize)"
                )
        found[row] = places.setdefault(one, len(places))
    return found


def ids_of(people: object, name: str = "people") -> list[Any]:
    """Ids in comparable form, strings or numbers; ``None`` and NaN where an id is missing. Equal ids are one
    person.

    Raises:
        InvalidType: something else.
        InvalidValue: floats so large that several ids are one.

    >>> ids_of(np.array([1, 2]))
    [1, 2]
    """
    whole = _WHOLE
    if isinstance(people, Tensor):
        if people.is_floating_point():
            whole, people = min(whole, 2 / torch.finfo(people.dtype).eps), people.double()
        people = people.detach().cpu().numpy()
    elif not isinstance(people, np.ndarray) and hasattr(people, "to_numpy"):
        people = cast("Any", people).to_numpy()
    if isinstance(people, np.ndarray) and people.ndim == 1:
        if people.dtype.kind == "f":
            whole = min(whole, 2 / float(np.finfo(people.dtype).eps))
        people = people.tolist()  # (an array of objects may hold anything)
    if isinstance(people, (str, bytes, np.ndarray, Mapping)) or not (
        isinstance(people, Sized) and hasattr(people, "__getitem__")
    ):
        raise InvalidType(
            f"{name} must be a list or a one-dimensional array of ids, one a row, got {type(people).__name__}"
        )
    sequence = cast("Any", people)
    each = (sequence[row] for row in range(len(sequence)))
    ids = [one.item() if isinstance(one, np.generic) else one for one in each]
    kinds: dict[type, int] = {}
    for row, one in enumerate(ids):
        if one is None or type(one).__name__ in _MISSING:
            ids[row] = None
            continue
        if type(one) is float and math.isnan(one):
            continue
        found = _KINDS.get(type(one))
        if found is None:  # objects of one person are often not equal: they would be two people
            raise InvalidType(
                f"each id in {name} must be a text or a number, got {type(one).__name__} for row {row}. str(..) makes "
                "a text of a UUID or a date (leave out rows whose id is missing first)"
            )
        if type(one) is float and abs(one) >= whole:
            raise InvalidValue(
                f"ids in {name} must be told apart, got the float {one!r} for row {row}, which several large numbers "
                "become (pandas makes floats of a column with gaps). Give texts, or whole numbers without gaps"
            )
        kinds.setdefault(found, row)
    if len(kinds) > 1:
        first, second, *_ = kinds.values()
        raise InvalidType(
            f"ids in {name} must be all texts or all numbers, got {ids[first]!r} for row {first} and {ids[second]!r} "
            f"for row {second}. A person with an id of each kind would count as two (as texts, 7 and 7.0 "
            "also differ): write all ids in one form, without the rows that have none"
        )
    return ids
