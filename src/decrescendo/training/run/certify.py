"""Certifies the privacy cost of a run with the PLD accountant (`accounting.Pld`)."""

from contextlib import suppress

from decrescendo.accounting import Budget, Guarantee, Ledger, Pld, Truncated
from decrescendo.errors import AccountingError
from decrescendo.plans import Plan
from decrescendo.plans.agreement import Agreement

# Relative excess over the budget within which the default bracket of `Pld` is inconclusive; and the tightest
# tolerance, which is tried then.
_NEAR, _NARROWEST = 2e-3, 1e-5


def certified_epsilon(plan: Plan) -> float:
    """A plan's guaranteed epsilon; if it has only an estimate, the one that `Pld` certifies for its ledger.

    >>> from decrescendo import calibrate, curves
    >>> from decrescendo.accounting import GdpClt
    >>> from decrescendo.plans import PoissonSampling
    >>> one = curves.constant(1.0)
    >>> sampling = PoissonSampling(1_000, 100)
    >>> plan = calibrate(Budget(2.0, 1e-5), sampling, steps=9, privacy=one, clip=one, accountant=GdpClt())
    >>> plan.guarantee.epsilon < 2.001 < certified_epsilon(plan)
    True
    """
    if plan.guarantee.kind != "estimate":
        return plan.guarantee.epsilon
    return certify(plan.ledger, plan.budget).epsilon


def certify(ledger: Ledger, budget: Budget) -> Guarantee:
    """The certified epsilon of ``ledger`` (upper bound, with its lower bound) at the budget's delta.

    It includes the cost of truncated batches (`accounting.Truncated`). If epsilon exceeds the budget only
    slightly, it is recomputed with a tighter tolerance.

    >>> from decrescendo.accounting.release import Release
    >>> round(certify(Ledger([Release(1.0, 2.0)]), Budget(3.0, 1e-5)).epsilon, 2)
    1.99
    """
    found = Truncated().certify(ledger, budget)
    if budget.epsilon < found.epsilon <= budget.epsilon * (1 + _NEAR):
        with suppress(AccountingError):
            return min(found, Truncated(Pld(rtol=_NARROWEST)).certify(ledger, budget), key=lambda one: one.epsilon)
    return found


def check_claim(agreed: Agreement, given: Guarantee) -> None:
    """Check that the guarantee of a run follows from its plan or its releases.

    It must be the plan's (same accountant and kind, no smaller epsilon), or one certified from the run's
    releases, by the name of the certifying accountant. The plan's ledger is certified again, because the
    files of plan and run may both have been edited.
    """
    planned, own = agreed.planned, agreed.guarantee
    if planned is None:
        return  # there is no planned ledger: a privacy filter checked every release
    recertified = certify(planned, agreed.budget)
    as_planned = (own.accountant, own.kind) == (given.accountant, given.kind) and given.epsilon >= own.epsilon
    if not as_planned and given.accountant != recertified.accountant:
        raise AccountingError(
            f"a run must name who certified its releases, {recertified.accountant}, got {given.accountant}"
        )
    agreed.held_up(recertified, given)
