"""The page of the schedules that are tuned in each column: what was chosen, and what it wins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decrescendo.base.markdown import table
from decrescendo.report import Paired, paired
from decrescendo_papers.experiments.comparisons import (
    ENOUGH,
    decide,
    holm,
    p_in_words,
    p_of,
    p_phrase,
    pooled,
    seeds_in_words,
)
from decrescendo_papers.experiments.methods import RHO_C, RHO_MU
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.pages.settings import machines_table
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.tuned import (
    COLUMNS,
    CONSTANT,
    MOVING,
    SCORE,
    TRIAL_SEED,
    Evaluations,
    Tuned,
)

# What the tuned pair is compared with, by its role, in words.
OTHERS = {
    "vanilla": "vanilla DP-SGD",
    "constant": "the tuned constant clip norm",
    "fixed": f"the pair of all tables ({RHO_MU:g}, {RHO_C:g})",
}
IN_WORDS = {"holds": "above", "fails": "below", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column whose trials are finished.

    Args:
        tuned: the column.
        candidates: settings by their role.
        scores: accuracy by role.
    """

    tuned: Tuned
    candidates: Mapping[str, Mapping[str, Any]]
    scores: Mapping[str, Score]

    def gain(self, role: str) -> Paired:
        """The tuned pair against another role, one difference a seed; none where both are the same runs."""
        if self.candidates["moving"] == self.candidates[role]:
            return Paired(())
        return paired(self.scores["moving"].by_seed, self.scores[role].by_seed)


def chosen_by(archive: Archive) -> Evaluations:
    """What was chosen by the trials that an archive holds."""
    return Evaluations(lambda spec: archive.of(spec).get(TRIAL_SEED))


def columns_of(archive: Archive) -> list[Column]:
    """The columns whose trials are finished."""
    evaluations = chosen_by(archive)
    found: list[Column] = []
    for tuned in COLUMNS:
        candidates = evaluations.candidates(tuned)
        if candidates:
            scores = {role: score_of(archive.of(tuned.spec(one))) for role, one in candidates.items()}
            found.append(Column(tuned, candidates, scores))
    return found


def tuned_page(archive: Archive) -> str:
    """The whole page."""
    columns = columns_of(archive)
    parts = [
        "# Schedules tuned in each column",
        "Du et al. sweep (rho_mu, rho_c) in each column of their tables; our tables have one pair for all, the one "
        f"that the authors released, ({RHO_MU:g}, {RHO_C:g}). Here each column has a pair of its own, chosen on public "
        f"data: of {len(MOVING)} pairs, and of {len(CONSTANT)} constant clip norms as the match, each is run once on "
        "these, certified at the column's epsilon and with the table's settings, and the best of each kind is "
        "run on the task with the seeds of the tables. Grid, public data and rule were committed before the first "
        "run (`experiments/tuned.py`). Only dynamic DP-SGD is tuned; growing mu and sensitivity decay are not.",
        "IMDB's public data are half of its test reviews, so its columns are tested on the other half (`imdb-half`), "
        "each with runs of vanilla DP-SGD of its own.",
        tuned_in_brief(archive),
        "## What was chosen",
        "1/rho_mu and 1/rho_c of the pair; the constant clip norm as a share of C_0; accuracy in % on the public rows "
        "kept for scores, of one run each, and so the best of several single runs.",
        _choices(columns, archive) or "Nothing yet.",
        "## What it wins",
        "Accuracy in %, mean ± sample standard deviation over the seeds, and paired differences in points: above zero, "
        "the tuned pair is better. Two-sided paired t-tests, Holm over the columns of a table that are compared; "
        f"*same*: the two are one. Fewer than {ENOUGH} seeds are not tested.",
        _gains(columns) or "Nothing yet.",
        *_missing(columns),
        "## Commands",
        "```sh\npapers reproduce tuned-trials   # one run a candidate, on public data\n"
        "papers reproduce tuned          # what was chosen, on the tasks\npapers report\n```",
    ]
    results = _results(columns, archive)
    if results:
        parts += ["## Hardware and versions", machines_table(results)]
    return "\n\n".join(parts) + "\n"


def tuned_in_brief(archive: Archive) -> str:
    """What the tuned pairs win over each of the others, table by table.

    >>> tuned_in_brief(Archive([]))
    'No column has all of its trials: no run yet.'
    """
    columns = columns_of(archive)
    if not columns:
        return "No column has all of its trials: no run yet."
    lines: list[str] = []
    for key in dict.fromkeys(column.tuned.table for column in columns):
        own = [column for column in columns if column.tuned.table == key]
        parts = [words for role, name in OTHERS.items() if (words := _in_a_table(own, role, name))]
        if parts:
            lines.append(f"- {_name(key)}: {'; '.join(parts)}.")
    return "\n".join(
        [
            f"{len(columns)} of {len(COLUMNS)} columns have all of their trials. Dynamic DP-SGD with the pair that was "
            "chosen in each column, certified, against",
            "",
            *lines,
        ]
    )


def _name(key: str) -> str:
    number = key.removeprefix("table")
    return f"Table {number.removesuffix('-at-64')}" + " at a batch of 64" * number.endswith("-at-64")


def _in_a_table(columns: list[Column], role: str, name: str) -> str:
    """The mean over the columns in which the two differ, and how many of these are decided."""
    found = [(column, gain) for column in columns if (gain := column.gain(role)).seeds >= ENOUGH]
    if not found:
        return ""
    mean = pooled(*([column.scores[one].by_seed for column, _ in found] for one in ("moving", role)))
    corrected = _holm([gain for _, gain in found])
    outcomes = [decide(gain.mean, p) for (_, gain), p in zip(found, corrected, strict=True)]
    phrase = p_phrase(p_of(mean))
    return (
        f"{name} {mean.mean:+.2f} points over {_columns(len(found))} and {seeds_in_words(mean.seeds)}"
        f"{phrase and f' ({phrase})'}, above in {outcomes.count('holds')}, below in {outcomes.count('fails')}"
    )


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _holm(gains: list[Paired]) -> list[float | None]:
    values = {at: p for at, gain in enumerate(gains) if (p := p_of(gain)) is not None}
    corrected = dict(zip(values, holm(list(values.values())), strict=True))
    return [corrected.get(at) for at in range(len(gains))]


def _choices(columns: list[Column], archive: Archive) -> str:
    rows: list[list[str]] = []
    for column in columns:
        pair, constant = column.candidates["moving"], column.candidates["constant"]
        rows.append(
            [
                _name(column.tuned.table), f"{column.tuned.task}/{column.tuned.epsilon:g}", column.tuned.stand_in,
                f"{1 / pair['rho_mu']:.2f}, {1 / pair['rho_c']:.2f}", *_trial_scores(column.tuned, MOVING, archive),
                f"{constant['clip_factor']:.2f}", *_trial_scores(column.tuned, CONSTANT, archive),
            ]
        )  # fmt: skip
    header = [
        "",
        "column",
        "public data",
        "pair",
        "its score",
        "all pairs",
        "constant",
        "its score",
        "all constant",
    ]
    return table(header, rows, "lllrrrrrr") if rows else ""


def _trial_scores(tuned: Tuned, among: tuple[dict[str, Any], ...], archive: Archive) -> list[str]:
    """The best, and from the lowest to it."""
    results = [archive.of(tuned.trial(one))[TRIAL_SEED] for one in among]
    scores = [100 * result.metrics.get(SCORE, 0.0) for result in results]
    return [f"{max(scores):.2f}", f"{min(scores):.2f} .. {max(scores):.2f}"]


def _gains(columns: list[Column]) -> str:
    corrected: dict[tuple[str, str], float | None] = {}
    for key in dict.fromkeys(column.tuned.table for column in columns):
        own = [column for column in columns if column.tuned.table == key]
        for role in OTHERS:
            gains = [(column, column.gain(role)) for column in own]
            corrected |= {
                (column.tuned.key, role): p
                for (column, _), p in zip(gains, _holm([gain for _, gain in gains]), strict=True)
            }
    rows = [
        [
            _name(column.tuned.table), f"{column.tuned.task}/{column.tuned.epsilon:g}",
            *(column.scores[role].shown for role in ("vanilla", "constant", "fixed", "moving")),
            str(min(score.seeds for score in column.scores.values())),
            *(_difference(column, role, corrected[column.tuned.key, role]) for role in OTHERS),
        ]
        for column in columns
    ]  # fmt: skip
    header = [
        "", "column", "vanilla", "tuned constant", "pair of all tables", "tuned pair", "seeds",
        *(f"against {words}" for words in ("vanilla", "the tuned constant", "the pair of all tables")),
    ]  # fmt: skip
    return table(header, rows, "llrrrrrlll") if rows else ""


def _difference(column: Column, role: str, p: float | None) -> str:
    gain = column.gain(role)
    if column.candidates["moving"] == column.candidates[role]:
        return "same"
    if not gain.differences:
        return "-"
    error = f" ± {gain.error:.2f}" if gain.seeds > 1 else ""
    tested = f", p {p_in_words(p)}: {IN_WORDS[decide(gain.mean, p)]}" if p is not None else ""
    return f"{gain.mean:+.2f}{error}{tested}"


def _missing(columns: list[Column]) -> list[str]:
    there = {column.tuned.key for column in columns}
    names = [tuned.key for tuned in COLUMNS if tuned.key not in there]
    return [f"Trials are missing of {len(names)} columns: {', '.join(names)}."] if names else []


def _results(columns: list[Column], archive: Archive) -> list[Result]:
    found: list[Result] = []
    for column in columns:
        specs = [*column.tuned.trials(), *(column.tuned.spec(one) for one in column.candidates.values())]
        found += [result for spec in dict.fromkeys(specs) for result in archive.of(spec).values()]
    return found
