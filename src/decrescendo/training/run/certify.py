"""What a run cost, by the accountant that certifies."""

from contextlib import suppress

from decrescendo.accounting import Budget, Guarantee, Ledger, Pld, Truncated
from decrescendo.errors import AccountingError
from decrescendo.plans import Plan
from decrescendo.plans.agreement import Agreement

# So far beyond the promise that a bracket of `Pld`'s own width leaves it open, and the narrowest there is.
_NEAR, _NARROWEST = 2e-3, 1e-5


def certified_epsilon(plan: Plan) -> float:
    """What a plan promises, and of one that holds an estimate alone, what `accounting.Pld` says of its ledger.

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
    """What `accounting.Pld` says of ``ledger`` at the budget's delta: its upper end, and the lower end beside it; where
    batches were cut, with what that costs (`accounting.Truncated`). A plan made with a narrower bracket than usual is
    certified with a narrower one, too.

    >>> from decrescendo.accounting.release import Release
    >>> round(certify(Ledger([Release(1.0, 2.0)]), Budget(3.0, 1e-5)).epsilon, 2)
    1.99
    """
    found = Truncated().certify(ledger, budget)
    if budget.epsilon < found.epsilon <= budget.epsilon * (1 + _NEAR):
        with suppress(AccountingError):
            return min(
                found, Truncated(Pld(rtol=_NARROWEST)).certify(ledger, budget), key=lambda one: one.epsilon
            )
    return found


def check_claim(agreed: Agreement, given: Guarantee) -> None:
    """A run has its plan's guarantee, or the one that its releases are certified for, which may be less where the plan
    has a looser accountant; no less than that, and by that name. The plan's is asked again too: both files
    may have been edited."""
    planned, own = agreed.planned, agreed.guarantee
    if planned is None:
        return  # its filter was asked
    again = certify(planned, agreed.budget)
    as_planned = (own.accountant, own.kind) == (given.accountant, given.kind) and given.epsilon >= own.epsilon
    if not as_planned and given.accountant != again.accountant:
        raise AccountingError(
            f"a run must name who certified its releases, {again.accountant}, got {given.accountant}"
        )
    agreed.held_up(again, given)
