"""`HiddenInteger`: stands for how many rows the data selected; Python may compare it but never learns it."""

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from decrescendo.row_independence.dynamic_sizes import DynamicSizes


class HiddenInteger:
    """An integer computed from how many rows the data selected; comparisons with it give fixed answers.

    ``counts`` is the `DynamicSizes` of the pass, ``value`` the integer, which user code never gets.
    """

    counts: "DynamicSizes"
    value: int

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, HiddenInteger)
        return self.counts.reads.answer(self.value == (other.value if alike else other), likely=alike)

    def __gt__(self, other: Any) -> bool:
        return self.counts.reads.answer(
            self.value > true_value(other), likely=not isinstance(other, HiddenInteger)
        )

    def __ge__(self, other: Any) -> bool:
        return self.counts.reads.answer(self.value >= true_value(other), likely=True)

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
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        self.counts.reads.selected()


def true_value(other: Any) -> Any:
    return other.value if isinstance(other, HiddenInteger) else other
