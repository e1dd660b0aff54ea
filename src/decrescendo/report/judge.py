"""What every accountant says of one ledger, side by side, and where each says nothing."""

from dataclasses import dataclass

from rich.table import Table

from decrescendo import accounting
from decrescendo.accounting import Bound, Budget, Ledger, Unit, rounded
from decrescendo.accounting.budget import WORDS
from decrescendo.accounting.table import DEFAULT, OPTIONS
from decrescendo.errors import AccountingError, InvalidValue


@dataclass(frozen=True, slots=True)
class Verdict:
    """One accountant's answer: a bound, or the reason why there is none.

    Args:
        accountant: its name.
        bound: epsilon at the asked delta, or ``None``.
        lower: the certified lower end, where the accountant has one.
        reason: why it does not apply.
    """

    accountant: str
    bound: Bound | None
    lower: float | None = None
    reason: str = ""


def verdicts(ledger: Ledger, delta: float, *, group: int = 1) -> list[Verdict]:
    """Every accountant's epsilon for ``ledger`` at ``delta``, the certified one first.

    Where batches were cut, each with what that costs (`accounting.Truncated`). With ``group``: for so many examples of
    one person, of whom only `Pld` says something.

    >>> [verdict.accountant for verdict in verdicts(Ledger.of([2.0], 0.1), 1e-5)][0]
    'Pld'
    """
    pld = accounting.Pld()
    budget = Budget(1.0, delta, Unit.PERSON if group > 1 else Unit.EXAMPLE, group)
    first = accounting.Truncated(pld).certify(ledger, budget)
    found = [
        Verdict(
            pld.name if ledger.is_cut else first.accountant,
            Bound(first.epsilon, "upper"),
            first.epsilon_lower,
        )
    ]
    for accountant in (known.made() for known in OPTIONS.values() if known is not DEFAULT):
        try:
            judge = accounting.Truncated(accountant.protecting(budget))
            found.append(Verdict(accountant.name, judge.epsilon(ledger, delta)))
        except (AccountingError, InvalidValue) as error:
            found.append(Verdict(accountant.name, None, reason=str(error)))
        except ArithmeticError as error:  # of noise so large, or so small, that its square is no number
            found.append(Verdict(accountant.name, None, reason=f"numbers out of range ({error})"))
    return found


def verdict_table(found: list[Verdict], ledger: Ledger, delta: float) -> Table:
    """The verdicts as a table for the terminal."""
    table = Table(title=f"{ledger.steps} releases at delta {delta:g}", title_justify="left")
    table.add_column("accountant")
    table.add_column("epsilon", justify="right")
    table.add_column("what it is", overflow="fold")
    for verdict in found:
        if verdict.bound is None:
            table.add_row(verdict.accountant, "-", f"not applicable: {verdict.reason}", style="dim")
            continue
        words = WORDS[verdict.bound.kind]
        if verdict.lower is not None:
            words += f"; the true epsilon is at least {rounded(verdict.lower, 'down', 5)}"
        style = "yellow" if verdict.bound.kind == "estimate" else None
        table.add_row(verdict.accountant, verdict.bound.shown(5), words, style=style)
    return table
