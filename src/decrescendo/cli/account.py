"""The command that asks every accountant about a list of noisy steps."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decrescendo.cli import options
from decrescendo.cli.app import err, one_line_errors, out, print_json, say
from decrescendo.errors import InvalidValue

if TYPE_CHECKING:
    from decrescendo.plans.agreement import Agreement


@one_line_errors
def account_command(
    file: Annotated[Path, typer.Argument(help="A plan, a run's folder, or noise multipliers: JSON list, CSV.")],
    delta: Annotated[float | None, typer.Option(help="Default: the plan's.")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="For a file that does not say it.")] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(help="Batches were truncated to so many rows: what that costs, too.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="With --max-batch-size: number of records.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compute the epsilon of a list of noisy steps with every accountant, and say which are proven.

    A CSV has one noise multiplier per line, or named columns noise_multiplier, sample_rate, count.

    Example: decrescendo account noise.csv --sample-rate 0.01 --delta 1e-5
    """
    from decrescendo.accounting.budget import guarantee_facts
    from decrescendo.accounting.membership import ALARMS, membership, percent
    from decrescendo.report.judge import verdict_table, verdicts
    from decrescendo.report.ledgers import agreed_in, read_ledger

    ledger, planned = read_ledger(file, sample_rate=sample_rate)
    agreed = agreed_in(file)
    promised = agreed.guarantee if agreed is not None and agreed.planned is None else None
    at = planned if delta is None else delta
    if at is None:
        raise InvalidValue(f"--delta must be given for {file}, which has none, got none")
    rows, max_batch_size = _cut(agreed, rows, max_batch_size)
    group = 1 if agreed is None else agreed.budget.examples_per_person
    accounted = ledger if rows is None else ledger.cut(rows, max_batch_size)
    found = verdicts(accounted, at, group=group)
    told = None if agreed is None else agreed.guarantee
    tests = membership(None if promised is not None else accounted, told, ALARMS, group=group)
    if as_json:
        answers = [dataclasses.asdict(verdict) for verdict in found]
        facts: dict[str, Any] = {"steps": ledger.steps, "delta": at, "accountants": answers}
        facts["power_at_false_alarms"] = dict(
            zip([f"{alarms:g}" for alarms in ALARMS], tests.power.tolist(), strict=True)
        )
        facts["power_by"] = tests.by
        if max_batch_size is not None:
            facts |= {"max_batch_size": max_batch_size, "rows": rows}
        if agreed is not None:
            facts["unit"] = str(agreed.budget.unit)
        if promised is not None:
            facts["guarantee"] = guarantee_facts(promised)
        print_json(facts)
        return
    out.print(verdict_table(found, ledger, at))
    for alarms, power in zip(ALARMS, tests.power.tolist(), strict=True):
        say(
            f"at a false-positive rate of {100 * alarms:g} %, a membership test finds at most {percent(power)} % of "
            "the members"
        )
    say(f"which follows from {tests.by}")
    if max_batch_size is not None:
        say(f"batches truncated to at most {max_batch_size} of {rows} rows")
    if agreed is not None:
        say(f"one {agreed.budget.protected} is protected")
    if promised is not None:
        say(f"guarantee: {promised}")
        err.print(
            "[yellow]warning:[/yellow] this noise was decided during the run. The answers above are for noise fixed in "
            "advance and guarantee nothing here: the filter's budget does"
        )


def _cut(agreed: "Agreement | None", rows: int | None, max_batch_size: int | None) -> tuple[int | None, int | None]:
    """The number of records and the largest batch, where batches were cut: a plan says them, or both options."""
    if agreed is not None and rows not in (None, agreed.sampling.dataset_size):
        raise InvalidValue(f"--rows must be the plan's {agreed.sampling.dataset_size}, got {rows}. Leave it out")
    if agreed is not None and agreed.sampling.max_batch_size is not None:
        if max_batch_size not in (None, agreed.sampling.max_batch_size):
            raise InvalidValue(
                f"--max-batch-size must be the plan's {agreed.sampling.max_batch_size}, got {max_batch_size}. Leave it "
                "out"
            )
        max_batch_size = agreed.sampling.max_batch_size
    if agreed is not None and max_batch_size is not None:
        rows = agreed.sampling.dataset_size
    if (rows is None) != (max_batch_size is None):
        raise InvalidValue(
            "--max-batch-size and --rows must be given together, got one of them. A plan says its rows itself"
        )
    return rows, max_batch_size
