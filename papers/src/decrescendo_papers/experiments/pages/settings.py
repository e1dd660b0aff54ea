"""Settings, hardware and versions of a page, read off the specs and the results."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from decrescendo.base.markdown import table
from decrescendo.plans import SCHEDULES
from decrescendo_papers.experiments.perform import rows_of
from decrescendo_papers.experiments.results import REVISION, Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import Row
from decrescendo_papers.experiments.tasks import find_task

# Told elsewhere on the page, a cell at a time.
ELSEWHERE = {
    "task",
    "method",
    "accountant",
    "epsilon",
    "seed",
    "rho_mu",
    "rho_c",
    "trace",
    "stand_in",
    "start",
    "rows",
    "records",
    "noise",
    "noise_decay",
}
NAMES = {"lr_decay": "learning rate decay", "clip": "clip norm C_0", "averaging": "averaging of iterates"}


def setting(value: Any) -> str:
    """A value for people.

    >>> setting(1 / 600_000), setting(250.0), setting("sgd"), setting(4800), setting(60_000), setting("")
    ('1/600000', '250', 'sgd', '4800', '60000', 'none')
    """
    if isinstance(value, float) and 0 < value < 1e-3 and abs(1 / value - round(1 / value)) < 1e-6 / value:
        inverse = round(1 / value)
        return f"{value:g}" if float(f"{value:g}") == value else f"1/{inverse}"
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value) or "none"


def settings_table(specs: Mapping[str, Spec]) -> str:
    """What all runs of a column share: a column of the table for each heading in ``specs``."""
    fields = [field.name for field in dataclasses.fields(Spec) if field.name not in ELSEWHERE]
    rows = [
        ["training examples N", *(str(rows_of(spec)) for spec in specs.values())],
        ["settings from", *(find_task(spec.task).source for spec in specs.values())],
        *(
            [
                NAMES.get(name, name.replace("_", " ")),
                *(setting(getattr(spec, name)) for spec in specs.values()),
            ]
            for name in fields
        ),
    ]
    return table(["setting", *specs], rows, "l" + "r" * len(specs))


def methods_table(rows: Sequence[Row]) -> str:
    """What each method is, and what it changes of the settings above."""
    lines: list[list[str]] = []
    for row in rows:
        method = str(row.settings.get("method", "constant"))
        changes = [f"{name} = {setting(value)}" for name, value in row.settings.items() if name != "method"]
        lines.append(
            [
                row.label,
                SCHEDULES.get(method, method),
                ", ".join(changes) or "-",
                "not in the paper" if row.control else row.accountant,
            ]
        )
    return table(["method", "schedule", "changes", "the paper's accountant"], lines, "llll")


def machines_table(results: Sequence[Result]) -> str:
    """What the runs were computed on, and how long one took."""
    trained = [result for result in results if not result.refused]
    if not trained:
        return "No run is finished."
    kinds = Counter(tuple(sorted(result.machine.items())) for result in trained)
    names = list(dict.fromkeys(name for kind in kinds for name, _ in kind))
    rows = [[*(dict(kind).get(name, "-") for name in names), str(kinds[kind])] for kind in sorted(kinds)]
    times = {
        task: median(result.seconds for result in trained if result.spec.task == task)
        for task in sorted({result.spec.task for result in trained})
    }
    spent = ", ".join(f"{seconds:.0f} s ({task})" for task, seconds in times.items())
    return (
        table([*names, "runs"], rows, "l" * len(names) + "r")
        + f"\n\nOne run took in the median: {spent}.\n\n{provenance(trained)}"
    )


def provenance(results: Sequence[Result]) -> str:
    """How many of the runs today's code would give again, and how many name the commit they were made with."""
    older = sum(result.revision < REVISION for result in results)
    unknown = sum(result.commit.startswith("before") or not result.commit for result in results)
    changed = sum(result.commit.endswith("+") for result in results)
    told = f"{len(results)} runs: {len(results) - unknown - changed} name the commit that they were made with"
    told += f", {changed} name one with uncommitted changes, {unknown} were made before commits were recorded."
    if older:
        told += (
            f" {older} of them were made while seeded noise was drawn in another way (revision 1): its distribution "
            "and their plans are the same, but their commands give other numbers today."
        )
    return told
