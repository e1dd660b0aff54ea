"""What a table shows, in sentences made from its numbers.

Longer than most files: each sentence stands beside the rule that chooses it.
"""

from collections.abc import Callable, Sequence

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import ENOUGH, seeds_in_words
from decrescendo_papers.experiments.methods import DYNAMIC
from decrescendo_papers.experiments.pages.claims import corrected, counts, same_sign, table_claims
from decrescendo_papers.experiments.pages.elsewhere import elsewhere
from decrescendo_papers.experiments.pages.filled import REACHED, Filled
from decrescendo_papers.experiments.pages.scores import Score
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, CLAIMED, Cell

FAR = 5.0  # points from the paper's number that no choice of seeds makes up: another setup
NOT_EXPLAINED = "not explained"
IN_WORDS = {CLAIMED: "as the paper counts", CERTIFIED: "certified"}


def verdict(filled: Filled) -> str:
    """All sentences, as a list."""
    parts = (progress, against_paper, at_the_majority, own_settings, orders, under_reports, promises_kept)
    return "\n".join(f"- {line}" for part in parts for line in part(filled))


def progress(filled: Filled) -> list[str]:
    """How much is there."""
    cells = list(filled.cells())
    done = [cell for cell, score in cells if score.seeds or score.refused]
    few = [cell for cell, score in cells if 0 < score.seeds < ENOUGH]
    refused = [cell for cell, score in cells if score.refused]
    seeds = sorted({score.seeds for _, score in cells if score.seeds})
    words = [f"{len(done)} of {len(cells)} private cells have a result"]
    if seeds:
        words.append(
            f"{seeds[0]} to {seeds[-1]} seeds per cell" if len(seeds) > 1 else f"{seeds_in_words(seeds[0])} per cell"
        )
    if few:
        words.append(f"{len(few)} cells have fewer than {ENOUGH} seeds: nothing is compared there")
    if refused:
        words.append(f"in {len(refused)} the accountant's theorem does not cover the budget: nothing was trained")
    lines = ["; ".join(words) + "."]
    if len(done) < len(cells):
        lines.append(
            f'**Unfinished**: {len(cells) - len(done)} cells have no run yet and show "-". What follows speaks of the '
            "finished ones only."
        )
    return lines


def gaps(filled: Filled, block: str) -> dict[tuple[str, str], tuple[Cell, float]]:
    """Ours less the paper's in every cell that has enough seeds, by label and column."""
    return {
        (cell.row.label, cell.column.key): (cell, round(score.mean - paper, 9))
        for cell, score in filled.cells(block)
        if score.seeds >= ENOUGH and (paper := filled.table.reported(cell.row, cell.column, block)) is not None
    }


def against_paper(filled: Filled) -> list[str]:
    """How far cells are from the paper's, both ways."""
    lines: list[str] = []
    for block in BLOCKS:
        found = [gap for _, gap in gaps(filled, block).values()]
        if not found:
            continue
        below, over = sum(gap < -REACHED for gap in found), sum(gap > REACHED for gap in found)
        far = sum(abs(gap) > FAR for gap in found)
        setup = (
            f" {far} are further away than {FAR:.1f} points: taken for another setup than the paper's." if far else ""
        )
        lines.append(
            f"**Against the paper's numbers, {IN_WORDS[block]}**: {len(found) - below - over} of {len(found)} cells "
            f"are within {REACHED:.1f} point, {below} further below, {over} further above.{setup}"
        )
    whys = list(misses(filled).values())
    if whys:
        known = sum(not why.startswith(NOT_EXPLAINED) for *_, why in whys)
        lines.append(
            f"**Why**: of {len(whys)} cells further away than {REACHED:.1f} point in either way of counting, {known} "
            f"have an explanation that was tested with {ENOUGH} seeds, {len(whys) - known} are not explained: listed "
            "below."
        )
    return lines


def misses(filled: Filled) -> dict[tuple[str, str], tuple[float | None, float | None, str]]:
    """Cells further away than a point: how far in both ways of counting, and why."""
    both = [gaps(filled, block) for block in BLOCKS]
    found: dict[tuple[str, str], tuple[float | None, float | None, str]] = {}
    for name in dict.fromkeys([*both[0], *both[1]]):
        claimed, certified = (of[name][1] if name in of else None for of in both)
        if any(gap is not None and abs(gap) > REACHED for gap in (claimed, certified)):
            cell = next(of[name][0] for of in both if name in of)
            found[name] = claimed, certified, _why(filled, cell, claimed)
    return found


def misses_section(filled: Filled) -> str:
    """Each miss with its explanation or without; empty where there is none."""
    rows = [
        [label, column, *("-" if gap is None else f"{gap:+.2f}" for gap in both), why]
        for (label, column), (*both, why) in misses(filled).items()
    ]
    if not rows:
        return ""
    return "\n\n".join(
        [
            f"## Cells further than {REACHED:.1f} point from the paper's numbers",
            f"Ours - paper in both ways of counting. A cell counts as explained where something that was changed "
            f"brings it within {REACHED:.1f} point, with {ENOUGH} seeds; what was tried is listed with the distance "
            "that it leaves.",
            table(["method", "column", IN_WORDS[CLAIMED], IN_WORDS[CERTIFIED], "why"], rows, "llrrl"),
        ]
    )


def _why(filled: Filled, cell: Cell, claimed: float | None) -> str:
    """What was tried to come near the paper's number, if it was with enough seeds."""
    near: list[str] = []
    tried: list[str] = []
    if claimed is not None and abs(claimed) <= REACHED:
        near.append(f"less noise, as the paper counts ({claimed:+.2f})")
    paper = filled.table.reported(cell.row, cell.column)
    for other in filled.table.tried_cells([0]):
        score = filled.score(other.row, other.column, CLAIMED)
        if other.row.base != cell.row.key or other.column != cell.column or not score.seeds or paper is None:
            continue
        gap = round(score.mean - paper, 9)
        few = ": too few" if score.seeds < ENOUGH else ""
        words = f"{other.row.label.partition(', ')[2]} ({gap:+.2f}, {seeds_in_words(score.seeds)}{few})"
        (near if abs(gap) <= REACHED and not few else tried).append(words)
    for other in filled.table.tried_cells([0], filled.table.own):
        score = filled.score(other.row, other.column, CLAIMED)
        if other.row.base == cell.row.key and other.column == cell.column and score.seeds and paper is not None:
            gap = round(score.mean - paper, 9)
            words = f"settings of its own ({gap:+.2f}, {seeds_in_words(score.seeds)})"
            if claimed is not None and claimed < 0 and gap > REACHED and score.seeds >= ENOUGH:
                return f"its settings: with {words} it is above the paper's number"
            (near if abs(gap) <= REACHED and score.seeds >= ENOUGH else tried).append(words)
    for words, score in elsewhere(filled, cell) if paper is not None else ():
        if score.seeds:
            gap = round(score.mean - (paper or 0.0), 9)
            enough = score.seeds >= ENOUGH
            told = f"{words} ({gap:+.2f}, {seeds_in_words(score.seeds)}{'' if enough else ': too few'})"
            (near if abs(gap) <= REACHED and enough else tried).append(told)
    if near:
        return f"within {REACHED:.1f} point with {', '.join(near)}"
    differs = f"; known to differ: {filled.table.differs}" if filled.table.differs else ""
    return NOT_EXPLAINED + (f"; tried: {', '.join(tried)}" if tried else "") + differs


def at_the_majority(filled: Filled) -> list[str]:
    """Cells that score what the largest class alone would."""
    cells = [(cell, filled.score(cell.row, cell.column, cell.block)) for cell in filled.table.every_cell([0])]
    names = [
        f"{cell.row.label} {cell.column.key} ({seeds_in_words(score.seeds)})"
        for cell, score in cells
        if score.seeds
        and (share := filled.table.majority.get(cell.column.task)) is not None
        and not above(score.mean, share)
    ]
    if not names:
        return []
    shares = ", ".join(f"{share:.2f} % of {task}" for task, share in filled.table.majority.items())
    return [f"**Nothing learned**: at or below the share of the largest class ({shares}): {', '.join(names)}."]


def own_settings(filled: Filled) -> list[str]:
    """What baselines reach with settings of their own: beside the paper's number, and beside dynamic DP-SGD here."""
    reached, of, ahead, pairs = 0, 0, list[str](), 0
    dynamic = filled.row(DYNAMIC.key)
    for cell in filled.table.tried_cells([0], filled.table.own):
        score, base = filled.score(cell.row, cell.column, CLAIMED), filled.row(cell.row.base)
        paper = None if base is None else filled.table.reported(base, cell.column)
        if score.seeds < ENOUGH:
            continue
        if paper is not None:
            of += 1
            reached += round(score.mean - paper, 9) >= -REACHED
        best = None if dynamic is None else filled.score(dynamic, cell.column, CLAIMED)
        if best is not None and best.seeds >= ENOUGH:
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
        f"{score.shown} ({cell.row.label.partition(',')[0]}, {seeds_in_words(score.seeds)})"
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
        own = f" (the paper's own numbers contradict its claim in {against})" if against else ""
        few = (
            f", {found['too few seeds']} of them with fewer than {ENOUGH} seeds, which are not compared"
            if found["too few seeds"]
            else ""
        )
        lines.append(
            f"**The paper's comparisons, {IN_WORDS[block]}**: {len(of)} have runs here{few}. Of {alike + other} with "
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
    proved = [one for one in found if one[0] > 0]
    if not proved:
        return [
            f"**What the CLT leaves out**: in none of {len(found)} cells calibrated by it is the true epsilon of the "
            "very same steps proved to be above the claim."
        ]
    (least, where_least), (most, where_most) = min(proved), max(proved)
    return [
        f"**What the CLT leaves out**: in {len(proved)} of {len(found)} cells calibrated by it, the true epsilon of "
        f"the very same steps is proved to be above the claim: by {100 * least:.2f} % ({where_least}) to "
        f"{100 * most:.2f} % ({where_most}), taking the lower end of the certified bracket."
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


def seeds_of(scores: Sequence[Score]) -> int:
    """The largest number of seeds, at least one."""
    return max((score.seeds for score in scores), default=1) or 1
