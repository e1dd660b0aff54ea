"""What do moving schedules win that a simpler change does not? Each method with a moving schedule against constant
noise and clipping: with a learning rate that falls to zero, and with a smaller clip norm."""

from dataclasses import dataclass

from decrescendo.base.markdown import table
from decrescendo.report import Paired
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import (
    ENOUGH,
    Decided,
    decide,
    holm,
    p_in_words,
    p_of,
    p_phrase,
    pooled,
    seeds_in_words,
)
from decrescendo_papers.experiments.methods import END_CLIP, MEAN_CLIP
from decrescendo_papers.experiments.pages.filled import LINEAR, VANILLA, Filled
from decrescendo_papers.experiments.table import CERTIFIED, Column, Row

MOVING = ("dynamic", "sensitivity-decay", "growing-mu")

MANY_SEEDS = 10


@dataclass(frozen=True, slots=True)
class Control:
    """A row that a moving schedule is compared with.

    Args:
        question: as a heading asks it.
        short: as a column's head.
        words: what the row is, after "against".
        why: one sentence: what it could explain.
        caveat: where nothing is to be explained.
    """

    question: str
    short: str
    words: str
    why: str
    caveat: str = ""


CONTROLS = {
    LINEAR: Control(
        "Noise schedule or learning-rate schedule?", "falling rate",
        "constant noise and clipping with a learning rate that falls to zero along a line",
        "A clip norm that falls also makes steps smaller, as a falling learning rate does.",
        " The rate was not tuned again for its fall, so that this says little of either.",
    ),
    END_CLIP.key: Control(
        "A moving clip norm, or a smaller one?", "final clip norm",
        "constant noise and clipping at the clip norm where the schedule ends",
        "A clip norm that falls is smaller on average than the one it starts from.",
    ),
    MEAN_CLIP.key: Control(
        "A moving clip norm, or one in the middle?", "middle clip norm",
        "constant noise and clipping at the geometric mean of the clip norms where the schedule starts and ends",
        "A clip norm that falls is smaller on average than the one it starts from.",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """One moving method against the control, in one column or pooled.

    Args:
        row: the method.
        column: where; ``None`` for all columns together.
        pair: the differences, one a seed.
        p_value: of the paired t-test, corrected after Holm among the comparisons of its kind; ``None`` where there is
            no test.
    """

    row: Row
    column: Column | None
    pair: Paired
    p_value: float | None = None

    @property
    def outcome(self) -> Decided:
        """Whether the method is above the control, after the correction."""
        return decide(self.pair.mean, self.p_value)

    @property
    def significant(self) -> bool:
        """Whether the corrected p value is below the level."""
        return self.outcome != "undecided"


def comparisons(filled: Filled, key: str = LINEAR) -> tuple[list[Comparison], list[Comparison]]:
    """By column, and pooled over the columns; empty where the table lacks the control called ``key``."""
    control = filled.row(key)
    methods = [row for key in MOVING if (row := filled.row(key)) is not None]
    if control is None:
        return [], []
    single: list[Comparison] = []
    together: list[Comparison] = []
    for row in methods:
        columns = [(column, filled.gain(row, key, column, CERTIFIED)) for column in filled.table.columns]
        single += [Comparison(row, column, pair) for column, pair in columns]
        present = [column for column, pair in columns if pair.differences]
        scores = [[filled.score(one, column, CERTIFIED).by_seed for column in present] for one in (row, control)]
        together.append(Comparison(row, None, pooled(*scores)))
    return _corrected(single), _corrected(together)


def _corrected(found: list[Comparison]) -> list[Comparison]:
    values = {i: p_of(one.pair) for i, one in enumerate(found)}
    tested = {i: value for i, value in values.items() if value is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [Comparison(one.row, one.column, one.pair, corrected.get(i)) for i, one in enumerate(found)]


def question_section(filled: Filled) -> str:
    """The questions, their tests and the answers; empty if the table lacks the controls."""
    return "\n\n".join(part for key in CONTROLS if (part := _one_question(filled, key)))


def _one_question(filled: Filled, key: str) -> str:
    single, together = comparisons(filled, key)
    if not any(one.pair.differences for one in together):
        return ""
    control = CONTROLS[key]
    rows = [
        [
            one.row.label,
            "all columns" if one.column is None else one.column.key,
            str(one.pair.seeds),
            f"{one.pair.mean:+.2f}" if one.pair.differences else "-",
            f"{one.pair.error:.2f}" if one.pair.seeds > 1 else "-",
            p_in_words(p_of(one.pair)),
            p_in_words(one.p_value),
        ]
        for one in (*single, *together)
    ]
    header = ["method", "column", "seeds", "difference", "standard error", "p", "p after Holm"]
    return "\n\n".join(
        [
            f"## {control.question}",
            f"{control.why} So each moving schedule is compared with {control.words}, at the same certified epsilon, "
            "seed by seed (in points; above zero, the moving schedule is better). Two-sided "
            "paired t-tests; Holm's correction among the single columns and, apart from them, among the rows of all "
            "columns, where each seed's differences are averaged over the columns first.",
            table(header, rows, "llrrrrr"),
            answer(filled, key),
        ]
    )


def answer(filled: Filled, key: str = LINEAR) -> str:
    """The answer in words, as far as the seeds go."""
    single, together = comparisons(filled, key)
    control = CONTROLS[key]
    lines: list[str] = []
    for pooling in together:
        name = f"{pooling.row.label} against the {control.short}"
        seeds, tested = (
            pooling.pair.seeds,
            [one for one in single if one.row == pooling.row and one.pair.seeds >= ENOUGH],
        )
        if seeds < ENOUGH:
            lines.append(
                f"- {name}: {_few(seeds)} complete in every column that has runs: too few, nothing is compared."
            )
            continue
        if no_gain(filled, pooling.row):
            lines.append(
                f"- {name}: {pooling.pair.mean:+.2f} points, and no gain to explain: over all columns it is not above "
                f"vanilla DP-SGD.{control.caveat}"
            )
            continue
        p = p_phrase(pooling.p_value)
        verdict = {
            "holds": "significantly better", "fails": "significantly worse", "undecided": "no significant difference",
        }[pooling.outcome]  # fmt: skip
        better, worse = (sum(one.outcome == outcome for one in tested) for outcome in ("holds", "fails"))
        lines.append(
            f"- {name}: {pooling.pair.mean:+.2f} points over {len(tested)} columns and {seeds} seeds"
            f"{p and f' ({p} after Holm)'}: {verdict}. Of single columns it is significantly better in {better}, "
            f"worse in {worse}, undecided in {len(tested) - better - worse}."
        )
    few = min((pooling.pair.seeds for pooling in together if pooling.pair.seeds >= ENOUGH), default=MANY_SEEDS)
    if few < MANY_SEEDS:
        lines.append(
            f"- The tests rest on as few as {few} seeds. So few decide only large differences: no significant "
            "difference does not mean none."
        )
    return "\n".join(lines)


def no_gain(filled: Filled, row: Row) -> bool:
    """Whether a method is, in the mean of the columns, at or below vanilla DP-SGD, certified."""
    base = filled.row(VANILLA)
    scores = [(filled.score(row, column, CERTIFIED), filled.score(base, column, CERTIFIED))
              for column in filled.table.columns] if base is not None else []  # fmt: skip
    found = pooled(*([pair[at].by_seed for pair in scores if pair[0].seeds and pair[1].seeds] for at in (0, 1)))
    return found.seeds >= ENOUGH and not above(found.mean, 0.0)


def _few(seeds: int) -> str:
    return "no seed is" if seeds == 0 else f"{seeds_in_words(seeds)} {'is' if seeds == 1 else 'are'}"
