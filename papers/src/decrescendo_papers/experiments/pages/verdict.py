"""What a table shows, in sentences made from its numbers."""

from collections.abc import Callable, Sequence

from decrescendo_papers.experiments.methods import DYNAMIC
from decrescendo_papers.experiments.pages.claims import corrected, counts, same_sign, table_claims
from decrescendo_papers.experiments.pages.filled import REACHED, Filled
from decrescendo_papers.experiments.pages.scores import Score
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, CLAIMED, Cell

FEW_SEEDS = 3
NOT_EXPLAINED = "not explained"
IN_WORDS = {CLAIMED: "as the paper counts", CERTIFIED: "certified"}


def verdict(filled: Filled) -> str:
    """All sentences, as a list."""
    parts = (progress, against_paper, own_settings, orders, under_reports, promises_kept)
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


def against_paper(filled: Filled) -> list[str]:
    """How far cells are from the paper's, both ways."""
    lines: list[str] = []
    for block in BLOCKS:
        gaps = {
            f"{cell.row.label} {cell.column.key}": (cell, round(score.mean - paper, 9))
            for cell, score in filled.cells(block)
            if score.seeds and (paper := filled.table.reported(cell.row, cell.column, block)) is not None
        }
        if not gaps:
            continue
        far = {name: gap for name, (_, gap) in gaps.items() if abs(gap) > REACHED}
        below = [f"{name} ({gap:+.2f})" for name, gap in far.items() if gap < 0]
        above = [f"{name} ({gap:+.2f})" for name, gap in far.items() if gap > 0]
        lines.append(
            f"**Against the paper's numbers, {IN_WORDS[block]}**: {len(gaps) - len(far)} of {len(gaps)} cells are "
            f"within {REACHED:.1f} point, {len(below)} further below{_listed(below)}, {len(above)} further "
            f"above{_listed(above)}."
        )
        if block == CLAIMED and far:
            why = {name: _why(filled, gaps[name][0]) for name in far}
            said = [f"{name}: {words}" for name, words in why.items() if words != NOT_EXPLAINED]
            rest = len(far) - len(said)
            last = [f"{'the other ' if said else ''}{rest}: {NOT_EXPLAINED}"] if rest else []
            lines.append(f"**Why**: {'; '.join([*said, *last])}.")
    return lines


def _why(filled: Filled, cell: Cell) -> str:
    """What was tried to come near the paper's number, if it was with enough seeds."""
    near: list[str] = []
    tried: list[str] = []
    for other in filled.table.tried_cells([0]):
        score, paper = (
            filled.score(other.row, other.column, CLAIMED),
            filled.table.reported(cell.row, cell.column),
        )
        if other.row.base != cell.row.key or other.column != cell.column or not score.seeds or paper is None:
            continue
        gap = round(score.mean - paper, 9)
        few = ": too few" if abs(gap) <= REACHED and score.seeds < FEW_SEEDS else ""
        words = f"{other.row.label.partition(', ')[2]} ({gap:+.2f}, {_seeds(score.seeds)}{few})"
        (near if abs(gap) <= REACHED and not few else tried).append(words)
    if near:
        return f"within {REACHED:.1f} point with {', '.join(near)}"
    return NOT_EXPLAINED + (f" by {', '.join(tried)}" if tried else "")


def own_settings(filled: Filled) -> list[str]:
    """What baselines reach with settings of their own: beside the paper's number, and beside dynamic DP-SGD here."""
    reached, of, ahead, pairs = 0, 0, list[str](), 0
    dynamic = filled.row(DYNAMIC.key)
    for cell in filled.table.tried_cells([0], filled.table.own):
        score, base = filled.score(cell.row, cell.column, CLAIMED), filled.row(cell.row.base)
        paper = None if base is None else filled.table.reported(base, cell.column)
        if not score.seeds:
            continue
        if paper is not None:
            of += 1
            reached += round(score.mean - paper, 9) >= -REACHED
        best = None if dynamic is None else filled.score(dynamic, cell.column, CLAIMED)
        if best is not None and best.seeds:
            pairs += 1
            if round(score.mean - best.mean, 9) >= 0:
                ahead.append(f"{cell.row.label} {cell.column.key}")
    if not of:
        return []
    return [
        f"**Baselines with settings of their own** come within {REACHED:.1f} point of the paper's number, or above it, "
        f"in {reached} of {of} columns searched; they are level with dynamic DP-SGD or above it in {len(ahead)} of "
        f"{pairs}{_listed(ahead)}.",
        *_learned(filled),
    ]


def _learned(filled: Filled) -> list[str]:
    """What the baselines score in the cell of which section 4.2 says that their models fail to learn."""
    scores = [
        f"{score.shown} ({cell.row.label.partition(',')[0]}, {_seeds(score.seeds)})"
        for cell in filled.table.tried_cells([0], filled.table.own)
        if cell.column.key == "mnist/0.4" and (score := filled.score(cell.row, cell.column, CLAIMED)).seeds
    ]
    if not scores:
        return []
    return [
        "**In mnist/0.4**, where the paper says that both baselines fail to learn for the noise that their accountants "
        f"ask for, settings of their own score {' and '.join(scores)}."
    ]


def orders(filled: Filled) -> list[str]:
    """How many of the paper's comparisons of methods come out as it says."""
    claims = [claim for claim in corrected(list(table_claims(filled))) if claim.pair.differences]
    lines: list[str] = []
    for block in BLOCKS:
        of = [claim for claim in claims if claim.family.endswith(f", {block}")]
        found, (alike, other, against) = counts(of), same_sign(of)
        if not of:
            continue
        own = f" (the paper's own numbers are against its claim in {against})" if against else ""
        lines.append(
            f"**The paper's comparisons, {IN_WORDS[block]}**: {len(of)} have runs here. Of {alike + other} with "
            f"numbers in the paper{own}, the difference has the paper's sign in {alike} and not in {other}. After Holm "
            f"{found['holds']} hold, {found['fails']} fail, {found['undecided']} are undecided: "
            "[one by one](claims.md)."
        )
    return lines


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


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
    return " ".join(progress(filled)[:1] + orders(filled)[-1:])


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def seeds_of(scores: Sequence[Score]) -> int:
    """The largest number of seeds, at least one."""
    return max((score.seeds for score in scores), default=1) or 1
