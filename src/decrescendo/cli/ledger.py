"""The command that shows, makes and exports a store."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decrescendo.cli import options
from decrescendo.cli.app import in_a_cell, one_line_errors, out, printable, say
from decrescendo.cli.asked import whom
from decrescendo.errors import InvalidValue

if TYPE_CHECKING:
    from decrescendo.training.store import Store


@one_line_errors
def ledger_command(
    store: Annotated[Path, typer.Argument(help="The store: one file for all runs on one data set.")],
    create: Annotated[bool, typer.Option("--create", help="Make it; with the budget for everything.")] = False,
    epsilon: options.Epsilon = None,
    delta: Annotated[float | None, typer.Option(help="With --create: delta in (0, 1).")] = None,
    rows: Annotated[int | None, typer.Option(help="With --create: number of records, or clients; public.")] = None,
    unit: options.UnitOf = options.UnitName.EXAMPLE,
    examples_per_person: options.ExamplesPerPerson = None,
    dataset: Annotated[str, typer.Option(help="With --create: name of the data set.")] = "",
    composition: Annotated[
        str, typer.Option(help="With --create: how runs add up: sum, renyi:ORDER, or declared.")
    ] = "sum",
    give_back: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="End a run that has released nothing: what it reserved is free again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything in it, as JSON.")] = False,
) -> None:
    """Show what each run spent on a data set, and what is left.

    Example: decrescendo ledger mnist.db --create --epsilon 3 --delta 1e-5 --rows 60000 --dataset mnist
    """
    from decrescendo.accounting.budget import Budget
    from decrescendo.training.store import Store

    if create:
        if epsilon is None or delta is None or rows is None:
            raise InvalidValue(
                "a new store must be given --epsilon, --delta and --rows, got less. A budget has no default"
            )
        opened = Store.create(
            store,
            Budget(epsilon, delta, *whom(unit, examples_per_person)),
            dataset=dataset or printable(store.stem),
            rows=rows,
            composition=composition,
        )
    else:
        given = {"--epsilon": epsilon, "--delta": delta, "--rows": rows}
        if surplus := [name for name, value in given.items() if value is not None]:
            raise InvalidValue(
                f"a store's budget is fixed when it is made, got {', '.join(surplus)}. Add --create for a new one"
            )
        opened = Store(store)
    with closing(opened):
        if give_back is not None:
            _give_back(opened, give_back)
        _show(opened, as_json)


def _give_back(opened: "Store", begins: str) -> None:
    """Of the run whose id begins so."""
    found = [entry.id for entry in opened.entries() if begins and entry.id.startswith(begins)]
    if len(found) != 1:
        raise InvalidValue(
            f"--give-back must be of one run, got {begins!r}: the names of {len(found)} runs begin so. Without this "
            "option, the command lists them"
        )
    if not opened.account(found[0]).give_back():
        raise InvalidValue(
            f"--give-back must be of a run that has released nothing, got {begins!r}. What was released is spent, and "
            "what was reserved stays so: when a run ended may have depended on what it released"
        )


def _show(opened: "Store", as_json: bool) -> None:
    from rich.table import Table

    from decrescendo.accounting import rounded
    from decrescendo.base.markdown import one_line

    if as_json:
        typer.echo(opened.to_json(), nl=False)
        return
    table = Table("run", "name", "who", "started (UTC)", "asked for", "steps released", "state")
    for entry in opened.entries():
        budget, kind = entry.agreed.budget, entry.agreed.guarantee.kind
        asked = f"({rounded(budget.epsilon, 'up', 6)}, {rounded(budget.delta, 'up', 6)})"
        table.add_row(
            entry.id[:8], in_a_cell(entry.label), in_a_cell(entry.who), entry.started[:16].replace("T", " "),
            asked + " by an estimate" * (kind == "estimate"), f"{entry.released.steps} of {entry.agreed.steps}",
            "given back" if entry.given_back else entry.state,
        )  # fmt: skip
    say(f"{one_line(opened.dataset)}: {opened.rows} rows, one {opened.budget.protected} protected")
    if table.row_count:
        out.print(table)
    say(opened.describe())
