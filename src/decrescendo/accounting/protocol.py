"""What every accountant can do."""

from typing import Protocol, runtime_checkable

from decrescendo.accounting.budget import Bound
from decrescendo.accounting.ledger import Ledger


@runtime_checkable
class Accountant(Protocol):
    """Judges ledgers: a pure function of what was released.

    Every implementation keeps these laws (``tests/contracts/test_accountants.py``): an empty ledger costs 0; a
    release without noise costs infinity; splitting a count changes nothing; less noise or one more release never
    lowers epsilon; epsilon and delta invert each other; a ledger outside its conditions is refused by name.
    """

    @property
    def name(self) -> str:
        """Name in tables and guarantees."""
        ...

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Epsilon of the whole ledger at ``delta`` in (0, 1), and what kind of number it is."""
        ...

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Delta of the whole ledger at ``epsilon`` >= 0, and what kind of number it is."""
        ...
