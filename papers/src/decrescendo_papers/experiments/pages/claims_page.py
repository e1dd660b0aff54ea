"""The page of the comparative claims of both papers, and the sentences and tables made of them that open the index."""

from collections.abc import Sequence

from decrescendo.base.markdown import table
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import (
    ENOUGH,
    LEVEL,
    p_in_words,
    p_phrase,
    pooled,
    seeds_in_words,
)
from decrescendo_papers.experiments.pages.claims import (
    ORDERS,
    TOGETHER,
    Claim,
    counts,
    family_of,
    same_sign,
    short,
)
from decrescendo_papers.experiments.pages.filled import VANILLA, Filled
from decrescendo_papers.experiments.pages.question import CONTROLS, comparisons, no_gain
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED

PAPERS = ("Du et al.", "Hong et al.")
WORDS = {"dynamic": "dynamic", "sensitivity-decay": "sensitivity decay", "growing-mu": "growing mu"}
IN_WORDS = dict(zip(BLOCKS, ("as the paper counts", "certified"), strict=True))
RULE = f"""Outcomes of a claim:

- *holds*, *fails*: the two-sided paired t-test over the seeds has p < {LEVEL} in the claimed direction, or in the
  opposite one, after Holm over its family: all claims under one heading of [claims.md](claims.md) (of one table and one
  way of counting). Where nothing is random, the numbers decide without a test.
- *undecided*: p is at least {LEVEL}.
- *too few seeds*: fewer than {ENOUGH}; nothing is compared.
- *depends*: the paper does not state a setting, the table was run with two values of it, and the outcomes differ; the
  sections of the tables count such a claim by its outcome there.
- The claim that a curve is an exponential can fail but cannot hold: it fails if some measured step is off the fitted
  curve (t-test over the seeds, p < {LEVEL} after a correction for the steps and Holm's)."""


def claims_page(tables: Sequence[Filled], claims: Sequence[Claim]) -> str:
    """The whole page."""
    parts = [
        "# The papers' comparisons, one by one",
        "Of Du et al. the orders of methods that section 4.2 states, in every column, with the losses against training "
        "without privacy and Figures 1 to 5; of Hong et al. section 5. Section 4.2 also says how fast and how stably "
        "the methods converge, and names no measure: [ours](figures.md) are used. What the theorems of both "
        "papers say is on [another page](../errata.md).",
        RULE,
        "Written by `papers report` from finished runs. *Paper* is the difference that the paper's own numbers show, "
        "*effect* the mean difference here with its standard error, in points unless said, "
        "above zero as claimed. The command runs what is missing; with `--results FOLDER`, an empty one, it runs "
        "the line again.",
        "\n".join(f"- {line}" for line in totals(claims)),
        *column_by_column(tables, claims),
    ]
    header = ["claim", "cell", "paper", "effect", "seeds", "p", "after Holm", "verdict", "command"]
    for family in dict.fromkeys(claim.family for claim in claims):
        rows = [
            [
                claim.words, claim.cell, "-" if claim.paper is None else f"{claim.paper:+.2f}", claim.effect,
                str(claim.pair.seeds) if claim.pair.differences else "-", p_in_words(claim.p_value),
                p_in_words(claim.corrected), _verdict(claim), f"`{claim.command}`",
            ]
            for claim in claims if claim.family == family
        ]  # fmt: skip
        parts += [f"## {family}", table(header, rows, "llrrrrrll")]
    return "\n\n".join(parts) + "\n"


def _verdict(claim: Claim) -> str:
    return f"depends on {claim.depends}: {claim.own_outcome} here" if claim.depends else claim.outcome


def column_by_column(tables: Sequence[Filled], claims: Sequence[Claim]) -> list[str]:
    """The three methods against vanilla in every column, in one table."""
    found = {
        (claim.family, claim.words, claim.cell): claim
        for claim in claims
        if not claim.family.endswith(TOGETHER) and claim.pair.differences
    }
    rows: list[list[str]] = []
    for filled in tables:
        for column in filled.table.columns:
            cells = [
                _starred(found.get((family_of(filled, block), _against_vanilla(filled, key), column.key)))
                for block in BLOCKS
                for key in WORDS
            ]
            rows.append([short(filled), column.key, *cells])
    if not any(cell != "-" for row in rows for cell in row[2:]):
        return []
    header = ["", "column", *(f"{words}, {block}" for block in BLOCKS for words in WORDS.values())]
    return [
        "## Against vanilla DP-SGD, column by column",
        "Mean differences in points, *claimed* as the paper counts; a star where a difference is significant, brackets "
        f"where there are fewer than {ENOUGH} seeds.",
        table(header, rows, "llrrrrrr"),
    ]


def _against_vanilla(filled: Filled, key: str) -> str:
    one, other = filled.row(key), filled.row(VANILLA)
    return "" if one is None or other is None else f"{one.label} above {other.label}"


def _starred(claim: Claim | None) -> str:
    if claim is None:
        return "-"
    mean = f"{claim.pair.mean:+.2f}"
    if claim.outcome == "too few seeds":
        return f"({mean})"
    return mean + "*" * (claim.own_outcome in ("holds", "fails"))


def totals(claims: Sequence[Claim]) -> list[str]:
    """How many claims of each paper hold, fail and are open."""
    return [f"**{paper}**: {_outcomes([one for one in claims if one.family.startswith(paper)])}" for paper in PAPERS]


def _outcomes(claims: Sequence[Claim]) -> str:
    """In a sentence; columns together are not counted beside the columns."""
    found = counts([claim for claim in claims if not claim.family.endswith(TOGETHER)])
    depends = f", {found['depends']} depend on a setting that the paper does not state" if found["depends"] else ""
    few = f", {found['too few seeds']} have too few seeds" if found["too few seeds"] else ""
    missing = f", {found['no run']} have no run" if found["no run"] else ""
    return (
        f"of {sum(found.values())} comparisons {found['holds']} hold, {found['fails']} fail, {found['undecided']} are "
        f"undecided{depends}{few}{missing}."
    )


def in_brief(paper: str | tuple[str, ...], claims: Sequence[Claim]) -> str:
    """One sentence for the index."""
    words = _outcomes([claim for claim in claims if claim.family.startswith(paper)])
    return f"{words[0].upper()}{words[1:]}"


def what_holds(tables: Sequence[Filled], claims: Sequence[Claim]) -> list[str]:
    """The top of the index: short sentences, and a table of every method against vanilla DP-SGD."""
    lines = totals(claims)
    rows: list[list[str]] = []
    for key, base in ORDERS[:3]:
        for block in BLOCKS:
            both = [(filled, _against_vanilla(filled, key)) for filled in tables]
            of = [
                claim
                for filled, words in both
                for claim in claims
                if claim.words == words and claim.family.startswith(family_of(filled, block))
            ]
            found = [claim for claim in of if claim.pair.differences]
            if not found:
                continue
            if key == "dynamic" and base == VANILLA:
                lines.append(f"**Dynamic DP-SGD above vanilla, {IN_WORDS[block]}**: {universal(found)}")
            together = [
                next((one for one in found if one.family == f"{family_of(filled, block)}, {TOGETHER}"), None)
                for filled in tables
            ]
            rows.append([WORDS[key], IN_WORDS[block], *(_mean(claim) for claim in together)])
    parts = ["\n".join(f"- {line}" for line in lines)]
    if rows:
        parts += [
            "Each method against vanilla DP-SGD: the mean over the columns of a table, in points, p after Holm, and "
            "whether the paper's claim that it is above holds. [Column by column](claims.md).",
            table(["method", "counted", *(short(filled) for filled in tables)], rows, "ll" + "l" * len(tables)),
        ]
    return [*parts, *against_controls(tables)]


def _mean(claim: Claim | None) -> str:
    if claim is None:
        return "-"
    if claim.outcome == "too few seeds":
        return f"{seeds_in_words(claim.pair.seeds)}: too few"
    words = f"{claim.pair.mean:+.2f}", p_phrase(claim.corrected), _verdict(claim)
    return ", ".join(filter(None, words))


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
    few, depends = found["too few seeds"], found["depends"]
    left = f" In {few} there are too few seeds." if few else ""
    if depends:
        left = f" In {depends} the outcome depends on a setting that the paper does not state.{left}"
    return (
        f"{verdict}. Significantly above in {found['holds']} of {len(single)} columns, significantly below in "
        f"{found['fails']}, undecided in {found['undecided']}.{left} The difference has the paper's sign in {alike} of "
        f"{alike + other}."
    )


def against_controls(tables: Sequence[Filled]) -> list[str]:
    """Dynamic against each control that the paper lacks, with what both are against vanilla; empty without runs."""
    parts: list[str] = []
    for key, control in CONTROLS.items():
        rows = [row for filled in tables if (row := _against(filled, key))]
        if rows:
            header = [
                "certified", "columns", "seeds", "dynamic - vanilla", f"{control.short} - vanilla",
                f"dynamic - {control.short}", "p after Holm", f"dynamic against the {control.short}",
            ]  # fmt: skip
            parts += [
                f"{control.question} Dynamic against {control.words}, which the paper did not run. Differences in "
                "points, means over the columns that have runs:",
                table(header, rows, "lrrrrrrl"),
            ]
    return parts


def _against(filled: Filled, key: str) -> list[str]:
    _, together = comparisons(filled, key)
    of = next((one for one in together if one.row.key == "dynamic" and one.pair.differences), None)
    control, base = filled.row(key), filled.row(VANILLA)
    if of is None or control is None or base is None:
        return []
    present = [
        column for column in filled.table.columns
        if all(filled.score(row, column, CERTIFIED).seeds for row in (of.row, control, base))
    ]  # fmt: skip
    by = {
        row.key: [filled.score(row, column, CERTIFIED).by_seed for column in present] for row in (of.row, control, base)
    }
    # Of the seeds that all three have: else the three numbers would not add up.
    common = set[int].intersection(*(set(scores) for found in by.values() for scores in found)) if present else set()
    by = {key: [{seed: one[seed] for seed in common} for one in found] for key, found in by.items()}
    against = [pooled(by[one], by[other]) for one, other in ((of.row.key, VANILLA), (key, VANILLA), (of.row.key, key))]
    if not common:
        return []
    enough = len(common) >= ENOUGH
    return [
        short(filled), str(len(present)), str(len(common)),
        *(f"{pair.mean:+.2f}" if enough else "-" for pair in against), p_in_words(of.p_value if enough else None),
        _told(of.pair.mean, of.significant, no_gain(filled, of.row)) if enough else "too few seeds",
    ]  # fmt: skip


def _told(difference: float, significant: bool, gains_nothing: bool) -> str:
    """What the control says of dynamic.

    >>> _told(1.0, True, False), _told(-1.0, True, False), _told(1.0, False, False)
    ('significantly above it', 'significantly below it', 'no significant difference')
    >>> _told(1.0, True, True)
    'dynamic gains nothing over vanilla'
    """
    if gains_nothing:
        return "dynamic gains nothing over vanilla"
    if not significant:
        return "no significant difference"
    return "significantly above it" if above(difference, 0.0) else "significantly below it"
