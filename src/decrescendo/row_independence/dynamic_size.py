"""`DynamicSize`: stands for how many rows the data selected; Python may compare it but never learns it."""

from typing import Any, NoReturn, cast

from decrescendo.row_independence.data_reads import DataReads
from decrescendo.row_independence.row_layout import Owners

# The value that C code sees for a hidden size: unusual, so that a pass that uses it differs from other passes.
_VALUE_FOR_C_CODE = 1013


class DynamicSize(int):
    """``times`` the number of rows that the data selected; comparisons with it give fixed answers. C code reads it as
    an int: always `_VALUE_FOR_C_CODE`. ``value``: the true one, which user code never gets.

    Divided by an integer that does not divide ``times`` (then ``None``), it can be compared, but is not a size.
    """

    reads: DataReads
    owners: Owners
    times: int | None
    value: int

    def __new__(cls, reads: DataReads, owners: Owners, times: int | None, value: int) -> "DynamicSize":
        made = super().__new__(cls, _VALUE_FOR_C_CODE)
        made.reads, made.owners, made.times, made.value = reads, owners, times, value
        return made

    def __mul__(self, other: Any) -> Any:
        if type(other) is not int or self.times is None:
            self._refuse()
        return DynamicSize(self.reads, self.owners, self.times * other, self.value * other)

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is not int or other <= 0 or self.times is None:
            self._refuse()
        times = None if self.times % other else self.times // other
        return DynamicSize(self.reads, self.owners, times, self.value // other)

    def __mod__(self, other: Any) -> Any:
        if type(other) is not int or not other or self.times is None or self.times % other:
            self._refuse()
        return 0

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, DynamicSize)
        return self.reads.answer(self.value == (other.value if alike else other), likely=alike)

    def __gt__(self, other: Any) -> bool:
        return self.reads.answer(self.value > _true(other), likely=not isinstance(other, DynamicSize))

    def __ge__(self, other: Any) -> bool:
        return self.reads.answer(self.value >= _true(other), likely=True)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        return "?"

    def __hash__(self) -> int:
        return hash((id(self.reads), self.times))

    def _refuse(self, *_: object) -> NoReturn:
        self.reads.selected()

    def _number(self, *_: object) -> float:
        return self.reads.number()

    __rmul__, __float__ = cast("Any", __mul__), cast("Any", _number)
    __truediv__ = __rtruediv__ = cast("Any", _number)
    __index__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = __rfloordiv__ = cast("Any", _refuse)
    __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = cast("Any", _refuse)


def _true(other: Any) -> Any:
    return other.value if isinstance(other, DynamicSize) else other
