"""The page of the comparative claims of both papers, and the sentences made of them that open the index."""

from collections.abc import Sequence

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.comparisons import pooled
from decrescendo_papers.experiments.pages.claims import (
    ORDERS,
    TOGETHER,
    Claim,
    counts,
    family_of,
    same_sign,
    short,
)
from decrescendo_papers.experiments.pages.filled import LINEAR, VANILLA, Filled
from decrescendo_papers.experiments.pages.question import comparisons, p_in_words
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED

PAPERS = ("Du et al.", "Hong et al.")
WORDS = {
    "dynamic": "Dynamic DP-SGD above vanilla", "sensitivity-decay": "Sensitivity decay above vanilla",
    "growing-mu": "Growing mu above vanilla",
}  # fmt: skip
RULE = (
    "A claim *holds* or *fails* where the two-sided paired t-test over the seeds, after Holm's correction in its "
    "family, has p < 0.05 in the claimed or in the other direction, and is *undecided* otherwise; where nothing is "
    "random, it holds or fails as it is. That a curve is an exponential can fail, and not hold: it fails where some "
    "measured step is off the fitted one, t-test over the seeds, p < 0.05 after a correction for the steps and Holm's."
)


def claims_page(claims: Sequence[Claim]) -> str:
    """The whole page."""
    parts = [
        "# The papers' comparisons, one by one",
        "Of Du et al. the orders of methods that section 4.2 states, in every column, with the losses against training "
        "without privacy and Figures 1, 3, 4 and 5; of Hong et al. section 5.",
        f"Written by `papers report`; no number here is typed by hand. {RULE} *Paper* is the difference that the "
        "paper's own numbers show, *effect* the mean difference here with its standard error, in points unless said, "
        "above zero as claimed. The command runs what is missing; with `--results FOLDER`, an empty one, it runs "
        "the line again.",
        "\n".join(f"- {line}" for line in totals(claims)),
    ]
    header = ["claim", "cell", "paper", "effect", "seeds", "p", "after Holm", "verdict", "command"]
    for family in dict.fromkeys(claim.family for claim in claims):
        rows = [
            [
                claim.words, claim.cell, "-" if claim.paper is None else f"{claim.paper:+.2f}", claim.effect,
                str(claim.pair.seeds) if claim.pair.differences else "-", p_in_words(claim.p_value),
                p_in_words(claim.corrected), claim.outcome, f"`{claim.command}`",
            ]
            for claim in claims if claim.family == family
        ]  # fmt: skip
        parts += [f"## {family}", table(header, rows, "llrrrrrll")]
    return "\n\n".join(parts) + "\n"


def totals(claims: Sequence[Claim]) -> list[str]:
    """How many claims of each paper hold, fail and are open."""
    lines: list[str] = []
    for paper in PAPERS:
        of = [
            claim
            for claim in claims
            if claim.family.startswith(paper) and not claim.family.endswith(TOGETHER)
        ]
        found = counts(of)
        missing = f", {found['no run']} have no run" if found["no run"] else ""
        lines.append(
            f"**{paper}**, {sum(found.values())} comparisons: {found['holds']} hold, {found['fails']} fail, "
            f"{found['undecided']} are undecided{missing}."
        )
    return lines


def what_holds(tables: Sequence[Filled], claims: Sequence[Claim]) -> str:
    """The top of the index."""
    lines = totals(claims)
    for first, second in ORDERS[:3]:
        both = [(one, other) for of in tables if (one := of.row(first)) and (other := of.row(second))]
        words = {f"{one.label} above {other.label}" for one, other in both}
        for block in BLOCKS:
            found = [claim for claim in claims if claim.words in words and f", {block}" in claim.family]
            parts = [claim for claim in found if claim.pair.differences]
            if not parts:
                continue
            told: list[str] = []
            for filled in tables:
                single, together = (
                    [claim for claim in parts if claim.family == f"{family_of(filled, block)}{end}"]
                    for end in ("", f", {TOGETHER}")
                )
                effects = " ".join(
                    f"{claim.pair.mean:+.2f}" for claim in single if claim.cell in filled.table.keys
                )
                if effects and together:
                    mean = f"{together[0].pair.mean:+.2f}, p = {p_in_words(together[0].corrected)}"
                    told.append(f"{short(filled)} {effects} (together {mean}, {together[0].outcome})")
            single = [claim for claim in parts if not claim.family.endswith(TOGETHER)]
            low = [claim.cell for claim in single if claim.pair.mean <= 0]
            lines.append(
                f"**{WORDS[first]}, {IN_WORDS[block]}**: {universal(parts)} At or below in {', '.join(low) or 'none'}. "
                f"Points: {'; '.join(told)}."
            )
    lines += [line for filled in tables for line in against_falling_rate(filled)]
    return "\n".join(f"- {line}" for line in lines)


IN_WORDS = dict(zip(BLOCKS, ("as the paper counts", "certified"), strict=True))


def universal(claims: Sequence[Claim]) -> str:
    """What becomes of a claim that is made for every column, from these and from those of columns together."""
    single = [claim for claim in claims if not claim.family.endswith(TOGETHER)]
    found, (alike, other, _) = counts(single), same_sign(single)
    if counts(claims)["fails"]:
        verdict = "does not hold everywhere"
    elif found["holds"] == len(single):
        verdict = "holds everywhere"
    else:
        verdict = "undecided"
    return (
        f"{verdict}. Significantly above in {found['holds']} of {len(single)} columns, significantly below in "
        f"{found['fails']}, undecided in {found['undecided']}; the sign is the paper's in {alike} of {alike + other}."
    )


def against_falling_rate(filled: Filled) -> list[str]:
    """Dynamic against the control that the paper lacks, with what both are against vanilla."""
    _, together = comparisons(filled)
    of = next((one for one in together if one.row.key == "dynamic" and one.pair.differences), None)
    control, base = filled.row(LINEAR), filled.row(VANILLA)
    if of is None or control is None or base is None:
        return []
    present = [
        column for column in filled.table.columns
        if all(filled.score(row, column, CERTIFIED).seeds for row in (of.row, control, base))
    ]  # fmt: skip
    by = {
        row.key: [filled.score(row, column, CERTIFIED).by_seed for column in present]
        for row in (of.row, control, base)
    }
    # Of the seeds that all three have: else the three numbers would not add up.
    common = (
        set[int].intersection(*(set(scores) for found in by.values() for scores in found))
        if present
        else set()
    )
    by = {key: [{seed: one[seed] for seed in common} for one in found] for key, found in by.items()}
    above = [pooled(by[row.key], by[VANILLA]) for row in (of.row, control)]
    if not above[0].differences:
        return []
    seeds = "1 seed" if of.pair.seeds == 1 else f"{of.pair.seeds} seeds"
    return [
        f"**A falling learning rate instead, {short(filled)}** (certified, mean of "
        f"{len(present)} columns, {seeds}): dynamic is {of.pair.mean:+.2f} points against vanilla with a rate falling "
        f"to zero (p after Holm {p_in_words(of.p_value)}); against vanilla, dynamic is {above[0].mean:+.2f} and the "
        f"falling rate {above[1].mean:+.2f}."
    ]
