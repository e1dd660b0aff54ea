"""The page of one table: our numbers beside the paper's, in two blocks, with verdict, settings and command."""

from collections.abc import Sequence

from scipy import stats

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.pages.filled import VANILLA, Filled
from decrescendo_papers.experiments.pages.question import question_section
from decrescendo_papers.experiments.pages.settings import machines_table, methods_table, settings_table
from decrescendo_papers.experiments.pages.stopped_section import stopped_section
from decrescendo_papers.experiments.pages.verdict import misses_section, seeds_of, verdict
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import CERTIFIED, CLAIMED, Column, Row

MADE = (
    "Written by `papers report` from the finished runs in `results/runs`; typed by hand are the paper's numbers, and "
    "what stands under *What is implemented*."
)
BLOCK_WORDS = {
    CLAIMED: (
        "As the paper counts",
        "The noise is calibrated by each method's own accountant, as in the paper: the central limit theorem (CLT), an "
        "estimate, or what the baselines used. *Claimed* is that accountant's epsilon; *certified* is the bracket in "
        "which the true epsilon of the very same runs lies.",
    ),
    CERTIFIED: (
        "Certified",
        "The noise is calibrated so that the certified upper end (`Pld`) meets the stated epsilon. *CLT* is what the "
        "central limit theorem would claim for the very same runs. Controls that the paper lacks come last.",
    ),
}


def table_page(filled: Filled, *sections: str) -> str:
    """The whole page; ``sections`` come after the numbers."""
    source = filled.table
    parts = [
        f"# {source.title}",
        "Test accuracy in %, mean ± sample standard deviation over seeds, beside the numbers of Du et al. "
        f"2022. {MADE}",
        "## Verdict",
        verdict(filled),
        misses_section(filled),
        question_section(filled),
        *_block(filled, CLAIMED),
        *_block(filled, CERTIFIED),
        *_own(filled),
        stopped_section(filled),
        *_tried(filled),
        *sections,
        "## Without privacy",
        _plain(filled),
        "## What is implemented",
        "\n".join(f"- {note}" for note in source.notes),
        methods_table([*filled.rows(CERTIFIED)]),
        "Equal seeds have equal initial weights whatever the method, and equal batches where the sample rate is equal. "
        "Schedules move at every step (the "
        "baselines' noise decays once an epoch), and the noisy sum is divided by the expected batch size.",
        "## Settings",
        settings_table(_specs(filled)),
        "## Hardware and versions",
        machines_table(filled.all_results()),
        "## Command",
        f"```sh\npapers reproduce {source.key} --seeds {_seeds(filled)}\npapers report\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(filled: Filled, block: str) -> list[str]:
    title, words = BLOCK_WORDS[block]
    reasons: list[str] = []
    details = [part for column in filled.table.columns for part in _column(filled, column, block, reasons)]
    return [
        f"## {title}",
        words,
        _overview(filled, block),
        "Differences to vanilla are over paired seeds, mean ± standard error; a mean within two standard errors of "
        f"zero is a tie. With few seeds that rule is generous: {false_alarms()}.",
        *details,
        "\n".join(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)),
    ]


def false_alarms() -> str:
    """How often the rule sees a difference where there is none: |t| > 2 for so many seeds."""
    rates = [f"{200 * stats.t.sf(2, seeds - 1):.0f} % of {seeds} seeds" for seeds in (3, 5, 10)]
    return f"without any difference, it sees one in {', '.join(rates)}"


def _overview(filled: Filled, block: str) -> str:
    """Every number of the block beside the paper's, as the paper prints them."""
    rows: list[list[str]] = []
    for row in filled.rows(block):
        scores = [filled.score(row, column, block) for column in filled.table.columns]
        rows.append([row.label_in(block), "ours", *(score.shown for score in scores)])
        if row.paper and row.is_papers(block):
            rows.append(["", "paper", *(_number(paper) for paper in row.paper)])
    columns = filled.table.columns
    return table(["method", "", *(column.key for column in columns)], rows, "ll" + "r" * len(columns))


def _column(filled: Filled, column: Column, block: str, reasons: list[str]) -> list[str]:
    rows: list[list[str]] = []
    for row in filled.rows(block):
        score, paper = filled.score(row, column, block), filled.table.reported(row, column, block)
        shown = score.shown
        if score.refused:
            if score.refused not in reasons:
                reasons.append(score.refused)
            shown = f"refused [{reasons.index(score.refused) + 1}]"
        claim = score.claimed if block == CLAIMED else score.clt
        rows.append(
            [
                row.label_in(block),
                shown,
                str(score.seeds) if score.seeds else "-",
                _number(paper),
                f"{score.mean - paper:+.2f}" if paper is not None and score.seeds else "-",
                "-" if claim is None else f"{claim:.4f}",
                score.bracket,
                "-" if row.key == VANILLA else filled.gain(row, VANILLA, column, block).shown,
            ]
        )
    claimed = "claimed" if block == CLAIMED else "CLT"
    header = ["method", "accuracy", "seeds", "paper", "ours - paper", claimed, "certified", "against vanilla"]
    return [f"### {column.key}, {BLOCK_WORDS[block][0].lower()}", table(header, rows, "lrrrrrrr")]


def _tried(filled: Filled) -> list[str]:
    """What was changed to come nearer to the paper."""
    return _changed(
        filled, filled.table.tried, "change",
        "## What was tried",
        "Changed settings, calibrated as the paper counts, to come nearer to the paper's numbers: beside them the same "
        "method with this page's settings, and with the paper's. They were thought of after the test scores above were "
        "seen: they explain a difference, and are no results of their own.",
    )  # fmt: skip


def _own(filled: Filled) -> list[str]:
    """Baselines as good as a search on public data makes them."""
    return _changed(
        filled, filled.table.own, "baseline",
        "## Baselines with settings of their own",
        "Steps, clip norm, rate and decay of each baseline in each column, by one rule that was written down before "
        "the first search; searched on public data, by the baseline's own accountant, at the column's epsilon. "
        "*Unchanged* is the same method with this page's settings.",
    )  # fmt: skip


def _changed(filled: Filled, changed: Sequence[Row], what: str, *words: str) -> list[str]:
    """Rows with other settings, beside those that they were changed from."""
    rows: list[list[str]] = []
    for cell in filled.table.tried_cells([0], changed):
        score = filled.score(cell.row, cell.column, CLAIMED)
        base = filled.row(cell.row.base)
        before = None if base is None else filled.score(base, cell.column, CLAIMED)
        paper = None if base is None else filled.table.reported(base, cell.column)
        rows.append(
            [
                cell.row.label, cell.column.key, score.shown, str(score.seeds) if score.seeds else "-",
                "-" if before is None else before.shown, _number(paper), score.bracket,
            ]
        )  # fmt: skip
    header = [what, "column", "accuracy", "seeds", "unchanged", "paper", "certified"]
    return [*words, table(header, rows, "llrrrrr")] if rows else []


def _plain(filled: Filled) -> str:
    rows = [
        [task, score.shown, str(score.seeds) if score.seeds else "-", _number(filled.table.plain.get(task))]
        for task, (_, score) in filled.plain().items()
    ]
    return table(["task", "accuracy", "seeds", "paper"], rows, "lrrr")


def _specs(filled: Filled) -> dict[str, Spec]:
    """One spec a task: what vanilla is run with."""
    row = filled.row(VANILLA) or filled.table.rows[0]
    return {column.task: filled.table.cell(row, column, CERTIFIED, [0]).specs[0] for column in filled.table.columns}


def _seeds(filled: Filled) -> int:
    return seeds_of([score for _, score in filled.cells()])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
