"""That a trainer's rows are records: inspected in the data it is given, before it makes rows of its own of them."""

from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.accounting.budget import Unit
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data.repeated_records import check_distinct, is_hugging_face, share_records

ONE_ROW_A_RECORD = assumed("one-row-a-record")

# A column of TRL's packing: rows in it hold parts of several records.
_PACKED = "seq_lengths"


class Records:
    """The data that a trainer is given. TRL's map copies them, and equal rows of a copy cannot be told apart.

    Args:
        data: ``train_dataset``, as the user gave it.

    >>> from torch.utils.data import ConcatDataset
    >>> rows = [{"labels": 0}, {"labels": 1}]
    >>> records = Records(rows * 2)
    >>> records.prepared(list(map(dict, rows * 2)))
    >>> records.check(records.made, Unit.EXAMPLE)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a plan for examples must be given each record once, got a list in which ...
    """

    def __init__(self, data: object = None) -> None:
        self._packed, self._count = _is_packed(data), len(data) if isinstance(data, Sized) else None
        self._error: InvalidValue | None = None
        self.made: object = None
        try:
            check_distinct(data)
        except InvalidValue as error:
            self._error = error
        except InvalidType:  # said where batches are drawn, with what data must be
            pass

    def prepared(self, data: object) -> None:
        """These are the rows that the trainer made of them."""
        self.made = data

    def check(self, data: object, unit: Unit) -> Assumption | None:
        """Whether each row of ``data``, which is trained on, is one record.

        Returns:
            What is assumed of rows that cannot be traced back to records; `None` where there is nothing to trace.

        Raises:
            InvalidValue: a record that has several rows, or rows with parts of several records.
        """
        if self._packed or _is_packed(data):
            raise InvalidValue(
                f"train_dataset must have one record in each row, got packed rows (a column {_PACKED!r}): a record "
                "that is cut has several rows, and several in one row are clipped as one. Give the rows unpacked"
            )
        if unit is not Unit.EXAMPLE:
            return None
        if data is self.made:
            if self._error is not None:
                raise self._error
            rows = len(data) if isinstance(data, Sized) else None
            if self._count is not None and rows is not None and rows > self._count:
                raise InvalidValue(
                    f"the trainer must make one row of each record, got {rows} rows of {self._count}: a record with "
                    "several rows has more than one share of the budget. Make a plan for people "
                    "(examples_per_person=, people=), or leave splitting and packing out"
                )
        return ONE_ROW_A_RECORD if _is_made(data) else None


def check_public(eval_dataset: object, train_datasets: tuple[object, ...]) -> None:
    """That evaluation data that are declared to be public hold no row that is trained on.

    Raises:
        InvalidValue: they do.
    """
    for public in _each(eval_dataset):
        for private in train_datasets:
            if _are_alike(public, private):
                raise InvalidValue(
                    "public_eval=True must come with public evaluation data, got rows of train_dataset in "
                    "eval_dataset: their scores are private. Give other rows, which nobody has to protect"
                )


def _are_alike(public: object, private: object) -> bool:
    if public is None or private is None:
        return False
    if public is private:
        return True
    known = (list, Subset, ConcatDataset, TensorDataset)
    if not all(isinstance(data, known) or is_hugging_face(data) for data in (public, private)):
        return False
    try:
        return share_records(public, private)
    except InvalidType:  # indices that are no numbers
        return False


def _each(data: object) -> Iterator[object]:
    yield from cast("Mapping[str, object]", data).values() if isinstance(data, Mapping) else (data,)


def _is_packed(data: object) -> bool:
    names: Any = getattr(data, "column_names", None)
    return isinstance(names, list) and _PACKED in names


def _is_made(data: object) -> bool:
    """Whether code may have made these rows of records: all but containers of which each item is what was put in."""
    if isinstance(data, Subset):
        return _is_made(cast("object", data.dataset))
    if isinstance(data, ConcatDataset):
        return any(map(_is_made, cast("ConcatDataset[Any]", data).datasets))
    return type(data) not in (list, tuple, dict, TensorDataset) and not isinstance(data, Tensor)
