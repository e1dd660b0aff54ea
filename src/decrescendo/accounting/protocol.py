"""What every accountant can do."""

from typing import Protocol, runtime_checkable

import numpy as np

from decrescendo.accounting.budget import Bound, Budget, Guarantee, check_one_example
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import AccountingError, check_instance


@runtime_checkable
class Accountant(Protocol):
    """Computes the epsilon of a ledger: a pure function of what was released.

    Every implementation keeps these laws (``tests/contracts/test_accountants.py``): an empty ledger costs 0; a
    release without noise costs infinity; splitting a count changes nothing; less noise or one more release never
    lowers epsilon; epsilon and delta invert each other; what is certified is that epsilon; a ledger outside its
    conditions is refused by name; so is one whose batches were cut, by all but `Truncated`, which adds what that costs,
    and one of records that are each in one step of an epoch, by all but `Allocated`; and one of records that take
    turns (correlated noise), by all but `Pld`.
    """

    @property
    def name(self) -> str:
        """Name in tables and guarantees: that of the class, unless it says another."""
        return type(self).__name__

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Epsilon of the whole ledger at ``delta`` in (0, 1), and what kind of number it is."""
        ...

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Delta of the whole ledger at ``epsilon`` >= 0, and what kind of number it is."""
        ...

    def protecting(self, budget: Budget) -> "Accountant":
        """This accountant for whom ``budget`` protects: itself for one example.

        Raises:
            InvalidValue: people with several examples, of whom it says nothing.
        """
        check_one_example(budget, self.name)
        return self

    def certify(self, ledger: Ledger, budget: Budget) -> Guarantee:
        """What may be promised for the whole ledger at the delta and for the unit of ``budget``: `epsilon`, and its
        lower end where this accountant has one. Whether that is within ``budget.epsilon`` is for the caller to ask."""
        bound = self.protecting(budget).epsilon(ledger, budget.delta)
        return Guarantee(bound.value, budget.delta, budget.unit, self.name, bound.kind)


def check_poisson(ledger: Ledger, accountant: str, *, turns: bool = False) -> None:
    """Check that ``ledger`` has Poisson batches, not truncated: most accountants accept nothing else.

    Args:
        ledger: what an accountant was given.
        accountant: its name, for the message.
        turns: whether it accepts one run whose records take turns (correlated noise).

    Raises:
        InvalidType: no ledger. AccountingError: records that take part once an epoch, or in turns; truncated batches.

    >>> check_poisson(Ledger.of([2.0, 1.5], sample_rate=0.1), "mine")
    >>> check_poisson(Ledger.of([2.0, 1.5], sample_rate=0.1).cut(1_000, 120), "mine")
    Traceback (most recent call last):
    decrescendo.errors.AccountingError: mine accounts batches of any size only, got ... Use Truncated, ...
    """
    check_instance("ledger", ledger, Ledger)
    if ledger.is_allocated:
        raise AccountingError(
            f"{accountant} accounts Poisson batches only, got {ledger}. Use Allocated: who surely takes part once an "
            "epoch may be seen where one who may stay away cannot"
        )
    if ledger.is_banded and not turns:
        raise AccountingError(
            f"{accountant} accounts independent noise only, got {ledger}. Use Pld, which judges the releases of each "
            "group of records"
        )
    if ledger.is_banded:
        check_one_run(ledger)
    if ledger.is_cut:
        raise AccountingError(
            f"{accountant} accounts batches of any size only, got {ledger}. Use Truncated, which adds what it costs"
        )


def check_one_run(ledger: Ledger) -> None:
    """Refuse releases of correlated noise that are not the beginning of one run: each run draws groups of its own, so
    that two do not take the mean over the same ones.

    >>> run = Ledger.of([1.0, 1.0], 0.5).banded(2)
    >>> check_one_run(run + run)
    Traceback (most recent call last):
    decrescendo.errors.AccountingError: correlated noise must be accounted for one run from its first step, got ...
    """
    own = ledger.where(ledger.bands > 1)
    if (own.bands != ledger.groups).any() or own != own.banded(ledger.groups):
        raise AccountingError(
            f"correlated noise must be accounted for one run from its first step, got {ledger}. Add up the epsilons "
            "and deltas of several runs"
        )


def with_finite_squares(ledger: Ledger) -> Ledger:
    """The releases with a noise whose square and its inverse are numbers, never more noise than they have: above 1e70
    it counts as that, below 1e-70 as none.

    >>> with_finite_squares(Ledger.of([1e300, 2.0, 1e-200], sample_rate=0.1)).noise_multiplier
    array([1.e+70, 2.e+00, 0.e+00])
    """
    return ledger.with_noise(lambda z: np.where(z < 1e-70, 0, np.minimum(z, 1e70)))


@runtime_checkable
class Estimator(Protocol):
    """An accountant that also has a quick number, for searches that ask it often."""

    def estimate(self, ledger: Ledger, delta: float) -> float:
        """Epsilon of the whole ledger at ``delta``, near enough to search with, and not to promise."""
        ...


def estimate(accountant: Accountant, ledger: Ledger, delta: float) -> float:
    """Epsilon to search with: the accountant's quick number where it is an `Estimator`, else its epsilon."""
    if isinstance(accountant, Estimator):
        return accountant.estimate(ledger, delta)
    return accountant.epsilon(ledger, delta).value
