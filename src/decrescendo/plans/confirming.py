"""Checks a plan's numbers again: by the plan's accountant, the exact one, and an independent library."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from decrescendo.accounting.budget import Guarantee, rounded
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.table import accountant_named
from decrescendo.accounting.truncated import least_epsilon
from decrescendo.accounting.verify import check_word
from decrescendo.errors import AccountingError

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan


def confirmed(plan: "Plan", guarantee: Guarantee | None) -> Iterator[str]:
    """The report of `Plan.confirm`, line by line."""
    again = plan.price(Pld())
    lower, upper = again.epsilon_lower or 0.0, rounded(again.epsilon, "up", 6)
    cut = plan.sampling.max_batch_size is not None
    yield f"{again.accountant} again: epsilon " + (
        f"at most {upper}" if cut else f"in [{rounded(lower, 'down', 6)}, {upper}]"
    )
    for whose, given in _said(plan, guarantee):  # before the other library, which takes its time
        _check_least(whose, given, max(lower, least_epsilon(plan.ledger, given) if cut else 0.0))
    yield from held_up(plan, again, guarantee)
    opinion = plan.verify()
    yield str(opinion)
    for whose, given in _said(plan, guarantee):
        _check_least(whose, given, opinion.lower)


def held_up(plan: "Plan", certified: Guarantee, guarantee: Guarantee | None) -> list[str]:
    """Compare the guarantees of a plan and of its run with ``certified``; see `Plan.held_up`."""
    lines: list[str] = []
    for whose, given in _said(plan, guarantee):
        judge = accountant_named(given.accountant)
        if judge is None or given.kind != "estimate":
            _check_least(whose, given, certified.epsilon_lower or 0.0)
        if (given.epsilon_lower or 0.0) > certified.epsilon:
            raise AccountingError(
                f"{whose}'s lower end must not be above the true epsilon, which is at most "
                f"{certified.epsilon:.6g}, got epsilon_lower={given.epsilon_lower:.6g}"
            )
        if judge is None:
            lines.append(
                f"{given.accountant} is no accountant of this package: {whose}'s guarantee was not asked of it again"
            )
            continue
        known = given.accountant == certified.accountant
        again = certified if known else plan.price(judge)
        check_word(whose, given, again)
        if not known:
            lines.append(f"{again.accountant} again: {again}")
    return lines


def _said(plan: "Plan", guarantee: Guarantee | None) -> list[tuple[str, Guarantee]]:
    """The guarantees to check, each with the name of its owner (plan, run)."""
    own = [("a plan", plan.guarantee)]
    return own if guarantee is None or guarantee == plan.guarantee else [*own, ("a run", guarantee)]


def _check_least(whose: str, given: Guarantee, proved: float) -> None:
    if given.epsilon < proved:
        raise AccountingError(
            f"{whose}'s guarantee must not be below the true epsilon, which is at least {proved:.6g}, got "
            f"epsilon={given.epsilon:.6g}. Calibrate again"
        )
