"""What a table shows, in sentences made from its numbers."""

from collections.abc import Callable, Sequence

from decrescendo_papers.experiments.pages.filled import REACHED, VANILLA, Filled
from decrescendo_papers.experiments.pages.scores import Score
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, CLAIMED, Cell

FEW_SEEDS = 3
IN_WORDS = {CLAIMED: "as the paper counts", CERTIFIED: "certified"}


def verdict(filled: Filled) -> str:
    """All sentences, as a list."""
    parts = (progress, reached, tried, gains, under_reports, promises_kept)
    return "\n".join(f"- {line}" for part in parts for line in part(filled))


def progress(filled: Filled) -> list[str]:
    """How much is there."""
    cells = list(filled.cells())
    done = [cell for cell, score in cells if score.seeds or score.refused]
    few = [cell for cell, score in cells if 0 < score.seeds < FEW_SEEDS]
    refused = [cell for cell, score in cells if score.refused]
    seeds = sorted({score.seeds for _, score in cells if score.seeds})
    words = [f"{len(done)} of {len(cells)} private cells have an answer"]
    if seeds:
        words.append(
            f"{seeds[0]} to {seeds[-1]} seeds a cell" if len(seeds) > 1 else f"{_seeds(seeds[0])} a cell"
        )
    if few:
        words.append(f"{len(few)} cells have fewer than {FEW_SEEDS} seeds")
    if refused:
        words.append(
            f"in {len(refused)} the accountant's theorem does not reach the budget: nothing was trained"
        )
    lines = ["; ".join(words) + "."]
    if len(done) < len(cells):
        lines.append(
            f'**Unfinished**: {len(cells) - len(done)} cells have no run yet and show "-". What follows speaks of the '
            "finished ones only."
        )
    return lines


def reached(filled: Filled) -> list[str]:
    """Which cells come up to the paper's."""
    lines: list[str] = []
    for block in BLOCKS:
        near: list[str] = []
        far: list[str] = []
        for cell, score in filled.cells(block):
            paper = filled.table.reported(cell.row, cell.column)
            if paper is None or not score.seeds:
                continue
            gap = score.mean - paper
            (near if round(gap, 9) >= -REACHED else far).append(
                f"{cell.row.label} {cell.column.key} ({gap:+.2f})"
            )
        total = len(near) + len(far)
        if not total:
            continue
        line = (
            f"**Against the paper, {IN_WORDS[block]}**: within {REACHED:.1f} point of the paper's number or above in "
            f"{len(near)} of {total} cells"
        )
        lines.append(line + (f"; further below in {', '.join(far)}." if far else "."))
    return lines


def tried(filled: Filled) -> list[str]:
    """Which cells that stay below the paper's come up to it with other settings."""
    near: list[str] = []
    far: list[str] = []
    for cell in filled.table.tried_cells([0]):
        score, base = filled.score(cell.row, cell.column, CLAIMED), filled.row(cell.row.base)
        paper = None if base is None else filled.table.reported(base, cell.column)
        if paper is None or not score.seeds:
            continue
        gap = score.mean - paper
        words = f"{cell.row.label}, {cell.column.key} ({gap:+.2f}, {_seeds(score.seeds)})"
        (near if round(gap, 9) >= -REACHED else far).append(words)
    if not near and not far:
        return []
    return [
        f"**Tried with other settings**: within {REACHED:.1f} point of the paper's number or above with "
        f"{'; '.join(near) or 'none'}" + (f". Not with {'; '.join(far)}." if far else ".")
    ]


def gains(filled: Filled) -> list[str]:
    """Where dynamic beats vanilla."""
    row = filled.row("dynamic")
    if row is None or filled.row(VANILLA) is None:
        return []
    lines: list[str] = []
    for block in BLOCKS:
        pairs = [(column, filled.gain(row, VANILLA, column, block)) for column in filled.table.columns]
        found = {
            words: [f"{column.key} ({pair.mean:+.2f})" for column, pair in pairs if pair.verdict == kind]
            for kind, words in (
                ("better", "better in"), ("tie", "a tie (under two standard errors) in"), ("worse", "worse in"),
                ("one seed", "one seed, which decides nothing, in"),
            )
        }  # fmt: skip
        said = [f"{words} {', '.join(columns)}" for words, columns in found.items() if columns]
        if said:
            lines.append(
                f"**Dynamic against vanilla, {IN_WORDS[block]}** (points, paired seeds): {'; '.join(said)}."
            )
    return lines


def under_reports(filled: Filled) -> list[str]:
    """By how much the CLT's claim is below the certified lower end for the same steps."""

    def claimed_by_clt(cell: Cell, score: Score) -> bool:
        return cell.row.accountant == "clt" and score.certified is not None and bool(score.claimed)

    found = _ratios(filled, CLAIMED, claimed_by_clt)
    if not found:
        return []
    (least, where_least), (most, where_most) = min(found), max(found)
    below = sum(ratio > 0 for ratio, _ in found)
    return [
        f"**What the CLT leaves out**: in {below} of {len(found)} cells calibrated by it, the true epsilon of the very "
        f"same steps is proved to be above the claim: by {100 * least:.2f} % ({where_least}) to {100 * most:.2f} % "
        f"({where_most}), taking the lower end of the certified bracket."
    ]


def _ratios(filled: Filled, block: str, wanted: Callable[[Cell, Score], bool]) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    for cell, score in filled.cells(block):
        if wanted(cell, score) and score.certified is not None and score.claimed:
            found.append((score.certified[0] / score.claimed - 1, f"{cell.row.label} {cell.column.key}"))
    return found


def promises_kept(filled: Filled) -> list[str]:
    """Whether every certified cell stays in its budget."""
    cells = [(cell, score) for cell, score in filled.cells(CERTIFIED) if score.certified is not None]
    if not cells:
        return []
    broken = [
        f"{cell.row.label} {cell.column.key}"
        for cell, score in cells
        if score.certified is not None and score.certified[1] > cell.column.epsilon
    ]
    if broken:
        return [f"**Budgets exceeded in the certified block**: {', '.join(broken)}."]
    return [
        f"**Budgets**: in all {len(cells)} finished cells of the certified block the certified upper end is at or "
        "below the stated epsilon."
    ]


def in_brief(filled: Filled) -> str:
    """One line for the index."""
    return " ".join(progress(filled)[:1] + gains(filled)[-1:])


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def seeds_of(scores: Sequence[Score]) -> int:
    """The largest number of seeds, at least one."""
    return max((score.seeds for score in scores), default=1) or 1
