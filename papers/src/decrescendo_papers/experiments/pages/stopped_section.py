"""Rows whose noise is fixed and whose runs end when the budget is spent, on the page of their table."""

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import ENOUGH
from decrescendo_papers.experiments.methods import DYNAMIC
from decrescendo_papers.experiments.pages.filled import REACHED, Filled
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, CLAIMED, Cell

NAMES = {CLAIMED: "as the paper counts", CERTIFIED: "certified"}


def stopped_section(filled: Filled) -> str:
    """Table and sentences; empty where the table has no such row."""
    cells = [cell for block in BLOCKS for cell in filled.table.tried_cells([0], filled.table.stopped, block)]
    if not cells:
        return ""
    header = [
        "calibrated by nothing, ended", "column", "accuracy", "seeds", "steps", "noise", "certified",
        "calibrated", "dynamic", "paper",
    ]  # fmt: skip
    return "\n\n".join(
        [
            "## Yu et al.'s own protocol",
            "The exponential decay of Yu et al. 2019 as their program has it for MNIST: noise multiplier 10 in the "
            "first epoch, times e^-0.0138 an epoch, until the budget is spent "
            "(github.com/git-disl/DP_modelpublishing, `dp_mnist.py`; their network, batches of 600 and clip norm are "
            "not taken: network, batch, rate and C_0 are this page's). *As the paper counts* rho-zCDP over disjoint "
            "batches ends it, after whole epochs; *certified* `Pld` ends it, before the step that would be one too "
            "many. "
            "*Calibrated* is the same decay with this page's 20 epochs and noise that is scaled to the budget, *paper* "
            "what Du et al. report for rho-zCDP-SGD.",
            table(header, [_line(filled, cell) for cell in cells], "llrrrrrrrr"),
            "\n".join(f"- {line}" for line in sentences(filled)),
        ]
    )


def _line(filled: Filled, cell: Cell) -> list[str]:
    score = filled.score(cell.row, cell.column, cell.block)
    run = next((one for one in filled.results(cell.row, cell.column, cell.block).values() if not one.refused), None)
    noise = "-" if run is None or run.noise_multiplier is None else "{:.4g} -> {:.4g}".format(*run.noise_multiplier)
    base, best = filled.row(cell.row.base), filled.row(DYNAMIC.key)
    others = ["-" if row is None else filled.score(row, cell.column, cell.block).shown for row in (base, best)]
    paper = None if base is None else filled.table.reported(base, cell.column, cell.block)
    return [
        NAMES[cell.block], cell.column.key, "no first step" if score.refused else score.shown,
        str(score.seeds) if score.seeds else "-", "-" if run is None else f"{run.steps:,}", noise, score.bracket,
        *others, "-" if paper is None else f"{paper:.2f}",
    ]  # fmt: skip


def sentences(filled: Filled) -> list[str]:
    """What the table shows of means; there is no test, and it says so."""
    lines: list[str] = []
    for block in BLOCKS:
        cells = list(filled.table.tried_cells([0], filled.table.stopped, block))
        ran = [(cell, filled.score(cell.row, cell.column, block)) for cell in cells]
        none = [cell.column.key for cell, score in ran if score.refused]
        if none:
            lines.append(
                f"**No run**, {NAMES[block]}: the first epoch alone costs more than the budget in {', '.join(none)}."
            )
        if absent := [cell.column.key for cell, score in ran if not (score.refused or score.seeds)]:
            lines.append(f"**Unfinished**, {NAMES[block]}: no run yet in {', '.join(absent)}.")
        if few := [f"{cell.column.key} ({score.seeds})" for cell, score in ran if 0 < score.seeds < ENOUGH]:
            lines.append(f"**Fewer than {ENOUGH} seeds**, {NAMES[block]}, so not compared: {', '.join(few)}.")
        near, of, ahead, pairs = 0, 0, 0, 0
        for cell, score in ran:
            base, best = filled.row(cell.row.base), filled.row(DYNAMIC.key)
            paper = None if base is None else filled.table.reported(base, cell.column, block)
            if score.seeds < ENOUGH:
                continue
            if paper is not None:
                of += 1
                near += round(score.mean - paper, 9) >= -REACHED
            other = None if best is None else filled.score(best, cell.column, block)
            if other is not None and other.seeds >= ENOUGH:
                pairs += 1
                ahead += not above(other.mean, score.mean)
        if of:
            lines.append(
                f"**Against the paper's rho-zCDP-SGD**: within {REACHED:.1f} point of its number, or above it, in "
                f"{near} of {of} columns that have seeds enough."
            )
        if pairs:
            lines.append(
                f"**Against dynamic DP-SGD, {NAMES[block]}**: level with its mean or above it in {ahead} of {pairs} "
                "columns that have seeds enough; nothing is tested."
            )
    return lines
