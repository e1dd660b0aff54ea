"""Facts: a comparison of the papers holds, fails or is undecided by the rule that the page states, at its threshold and
on both sides of it; every sentence made of them changes where what it says changes."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from decrescendo.report import Paired
from decrescendo_papers.cli import app
from decrescendo_papers.experiments.comparisons import holm
from decrescendo_papers.experiments.methods import DYNAMIC, LINEAR, TCDP, VANILLA
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.claims import (
    LEVEL,
    Claim,
    corrected,
    counts,
    decide,
    every_claim,
    same_sign,
    table_claims,
)
from decrescendo_papers.experiments.pages.claims_page import (
    against_falling_rate,
    claims_page,
    totals,
    universal,
    what_holds,
)
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.question import answer
from decrescendo_papers.experiments.pages.verdict import against_paper, orders, own_settings
from decrescendo_papers.experiments.reproduce import TABLES
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.table import CERTIFIED, CLAIMED, Column, Table

TABLE = Table(
    key="table1",
    title="Table 1: made up",
    columns=(Column("mnist", 0.4), Column("mnist", 1.2)),
    rows=(VANILLA.reports(90.0, 95.0), DYNAMIC.reports(92.0, 94.0), LINEAR, TCDP.reports(20.0, 92.0)),
    tried=(VANILLA.changed("other", "vanilla, other", {"clip": 9.0}, ("mnist/0.4",)),),
    own=(TCDP.changed("tcdp-own", "tCDP, own", {"clip": 8.0}, ("mnist/0.4",)),),
)
Scores = Mapping[tuple[str, str, float], Sequence[float]]  # block, row, epsilon: per cent by seed


def fill(scores: Scores) -> Filled:
    results: list[Result] = []
    for (block, key, epsilon), values in scores.items():
        row = next(row for row in (*TABLE.rows, *TABLE.tried, *TABLE.own) if row.key == key)
        cell = TABLE.cell(row, Column("mnist", epsilon), block, range(len(values)))
        for spec, value in zip(cell.specs, values, strict=True):
            results.append(
                Result(spec, metrics={"test_accuracy": value / 100}, claimed=0.4, certified=(0.4, 0.4))
            )
    return Filled(TABLE, Archive(results))


def claim(
    *differences: float, paper: float | None = 1.0, p: float | None = None, family: str = "Du et al., a"
) -> Claim:
    return Claim(family, "a above b", "cell", "papers report", paper, Paired(differences), corrected=p)


@pytest.mark.parametrize(
    ("effect", "p", "outcome"),
    [
        (1.0, np.nextafter(LEVEL, 0), "holds"), (1.0, LEVEL, "undecided"), (1.0, np.nextafter(LEVEL, 1), "undecided"),
        (-1.0, np.nextafter(LEVEL, 0), "fails"), (-1.0, LEVEL, "undecided"), (1.0, None, "undecided"),
    ],
)  # fmt: skip
def test_a_claim_is_decided_below_the_level_and_not_on_it(
    effect: float, p: float | None, outcome: str
) -> None:
    assert decide(effect, p) == outcome
    assert claim(effect, p=p).outcome == outcome


def test_without_runs_and_without_chance() -> None:
    assert claim(p=0.01).outcome == "no run"
    assert [Claim("f", "w", "c", "r", certain=certain).outcome for certain in (True, False)] == [
        "holds",
        "fails",
    ]


@pytest.mark.parametrize(
    ("p", "outcome"),
    [
        (np.nextafter(LEVEL, 0), "fails"),
        (LEVEL, "undecided"),
        (np.nextafter(LEVEL, 1), "undecided"),
        (1.0, "undecided"),
    ],
)
def test_a_shape_can_be_refuted_and_never_holds(p: float, outcome: str) -> None:
    (one,) = corrected([Claim("f", "an exponential", "c", "r", against=p)])
    assert (one.p_value, one.corrected, one.outcome) == (p, p, outcome)
    two = corrected([Claim("f", "an exponential", "c", "r", against=p)] * 2)
    assert [other.corrected for other in two] == [min(1.0, 2 * p)] * 2


def test_holm_is_taken_within_a_family_and_among_tests_only() -> None:
    pairs = [(1.0, 1.1, 0.9), (2.0, 2.1, 1.7), (0.5,), (3.0, 3.5, 2.8)]
    found = corrected([claim(*pair, family=name) for pair, name in zip(pairs, "aaab", strict=True)])
    p = [float(stats.ttest_1samp(pair, 0)[1]) for pair in (*pairs[:2], pairs[3])]
    assert [one.corrected for one in found] == [*holm(p[:2]), None, p[2]]


def test_the_claims_of_a_table_are_the_papers_in_its_direction() -> None:
    filled = fill({
        (CLAIMED, "vanilla", 0.4): [90.0, 90.5, 90.2], (CLAIMED, "dynamic", 0.4): [92.0, 92.6, 92.1],
        (CERTIFIED, "vanilla", 0.4): [90.0, 90.0], (CERTIFIED, "tcdp", 0.4): [90.0, 90.0],
        (CLAIMED, "tcdp", 0.4): [20.0, 21.0, 20.0],
    })  # fmt: skip
    found = [one for one in table_claims(filled) if one.cell == "mnist/0.4"]
    words = {(one.family.rsplit(", ", 1)[1], one.words): one for one in found}
    above = words[CLAIMED, "dynamic above vanilla DP-SGD"]
    assert above.paper == pytest.approx(2.0)
    assert above.pair.differences == (2.0, 2.1, 1.9)
    assert words[CLAIMED, f"dynamic above {TCDP.label}"].paper == pytest.approx(72.0)
    # Calibrated by Pld, a decay is not the baseline: the paper says nothing of it.
    assert (CERTIFIED, f"dynamic above {TCDP.label}") not in words
    with_privacy = next(one for one in table_claims(filled) if "smaller epsilon" in one.words)
    assert with_privacy.paper == pytest.approx(3.0)  # 2 points at 0.4, one below at 1.2


@pytest.mark.parametrize(
    ("differences", "alike", "other"), [((0.5, 1.5), 1, 0), ((-0.5, -1.5), 0, 1), ((-1.0, 1.0), 0, 1)]
)
def test_the_sign_is_the_papers_or_not_and_no_difference_is_not(
    differences: tuple[float, ...], alike: int, other: int
) -> None:
    assert same_sign([claim(*differences)]) == (alike, other, 0)
    assert same_sign([claim(*differences, paper=None)]) == (0, 0, 0)


@pytest.mark.parametrize(("paper", "against"), [(0.01, 0), (0.0, 1), (-0.01, 1)])
def test_numbers_of_the_paper_against_its_own_claim_are_counted(paper: float, against: int) -> None:
    assert same_sign([claim(1.0, paper=paper)])[2] == against


def test_a_claim_for_every_column_needs_every_column() -> None:
    below, on = 0.01, LEVEL
    holds, fails, opened = claim(1.0, 1.2, p=below), claim(-1.0, -1.2, p=below), claim(1.0, 1.2, p=on)
    together = claim(-1.0, -1.2, p=below, family="Du et al., a, columns together")
    assert universal([holds, holds]).startswith("holds everywhere. Significantly above in 2 of 2")
    assert universal([holds, opened]).startswith("undecided. Significantly above in 1 of 2")
    assert universal([holds, fails]).startswith("does not hold everywhere. Significantly above in 1 of 2")
    assert universal([holds, together]).startswith("does not hold everywhere. Significantly above in 1 of 1")
    assert "the sign is the paper's in 1 of 2" in universal([holds, fails])


def test_totals_count_each_outcome_and_no_column_twice() -> None:
    found = [claim(1.0, p=0.01), claim(-1.0, p=0.01), claim(1.0, p=LEVEL), claim()]
    found.append(claim(1.0, p=0.01, family="Du et al., a, columns together"))
    assert totals(found)[0] == "**Du et al.**, 4 comparisons: 1 hold, 1 fail, 1 are undecided, 1 have no run."
    assert sum(counts(found).values()) == 5


@pytest.mark.parametrize(
    ("vanilla", "words"),
    [
        (91.0, "1 of 1 cells are within 1.0 point, 0 further below, 0 further above."),
        (91.01, "0 further below, 1 further above (vanilla DP-SGD mnist/0.4 (+1.01))."),
        (89.0, "1 of 1 cells are within 1.0 point"),
        (88.99, "1 further below (vanilla DP-SGD mnist/0.4 (-1.01)), 0 further above."),
    ],
)  # fmt: skip
def test_cells_above_the_papers_are_told_as_those_below(vanilla: float, words: str) -> None:
    assert words in against_paper(fill({(CLAIMED, "vanilla", 0.4): [vanilla]}))[0]


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ([90.0, 89.0, 88.0], "vanilla DP-SGD mnist/0.4: within 1.0 point with other (-1.00, 3 seeds)."),
        ([90.0, 88.0, 88.0], "vanilla DP-SGD mnist/0.4: not explained by other (-1.33, 3 seeds)."),
        ([90.0, 90.0], "vanilla DP-SGD mnist/0.4: not explained by other (+0.00, 2 seeds: too few)."),
        ([], "1: not explained."),
    ],
)  # fmt: skip
def test_a_miss_is_explained_by_three_seeds_within_a_point_only(tried: list[float], words: str) -> None:
    filled = fill({(CLAIMED, "vanilla", 0.4): [80.0], (CLAIMED, "other", 0.4): tried})
    assert against_paper(filled)[1] == f"**Why**: {words}"


@pytest.mark.parametrize(
    ("own", "reached", "ahead"),
    [
        (18.99, "0 of 1", "0 of 1"), (19.0, "1 of 1", "0 of 1"), (25.0, "1 of 1", "0 of 1"),
        (91.99, "1 of 1", "0 of 1"), (92.0, "1 of 1", "1 of 1 (tCDP, own mnist/0.4)"),
    ],
)  # fmt: skip
def test_baselines_with_own_settings_are_held_against_the_papers_number_and_dynamic(
    own: float, reached: str, ahead: str
) -> None:
    scores = {(CLAIMED, "dynamic", 0.4): [92.0], (CLAIMED, "tcdp", 0.4): [20.0]}
    assert own_settings(fill(scores)) == []
    words, learned = own_settings(fill(scores | {(CLAIMED, "tcdp-own", 0.4): [own]}))
    assert learned.endswith(f"settings of their own score {own:.2f} (tCDP, 1 seed).")
    assert f"in {reached} columns searched" in words
    assert words.endswith(f"or above it in {ahead}.")


def test_a_decay_calibrated_by_pld_has_another_name_and_is_not_held_against_the_papers_number() -> None:
    filled = fill({(CERTIFIED, "tcdp", 0.4): [80.0], (CERTIFIED, "vanilla", 0.4): [90.0]})
    assert TCDP.label_in(CERTIFIED) == "time-based noise decay, calibrated by Pld"
    assert TCDP.label_in(CLAIMED) == TCDP.label
    assert "certified**: 1 of 1 cells" in against_paper(filled)[0]


def test_the_orders_of_a_table_are_counted_by_sign_and_by_test() -> None:
    scores: dict[tuple[str, str, float], Sequence[float]] = {
        (CERTIFIED, "vanilla", 0.4): [90.0, 90.2, 90.4], (CERTIFIED, "dynamic", 0.4): [92.0, 92.21, 92.4],
        (CERTIFIED, "vanilla", 1.2): [95.0, 95.0, 95.0], (CERTIFIED, "dynamic", 1.2): [95.0, 95.1, 94.9],
    }  # fmt: skip
    (line,) = orders(fill(scores))
    # The two columns, and whether the gain is larger at 0.4. The paper's number at 1.2 is against its claim.
    assert (
        "certified**: 3 have runs here. Of 3 with numbers in the paper (the paper's own numbers are against"
        in line
    )
    assert "claim in 1), the difference has the paper's sign in 2 and not in 1." in line
    assert "After Holm 2 hold, 0 fail, 1 are undecided" in line


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ([90.0, 90.2, 90.1], "no gain to explain"), ([89.0, 89.2, 89.1], "no gain to explain"),
        ([90.1, 90.3, 90.2], "no significant difference"),
    ],
)  # fmt: skip
def test_what_does_not_beat_vanilla_is_not_praised_for_beating_an_untuned_control(
    dynamic: list[float], words: str
) -> None:
    filled = fill({
        (CERTIFIED, "vanilla", 0.4): [90.0, 90.2, 90.1], (CERTIFIED, "dynamic", 0.4): dynamic,
        (CERTIFIED, "vanilla-linear", 0.4): [85.0, 91.0, 86.0],
    })  # fmt: skip
    assert words in answer(filled)
    assert ": significantly better" not in answer(filled)


@pytest.mark.parametrize(("dynamic", "low"), [(90.01, "none"), (90.0, "mnist/0.4"), (89.99, "mnist/0.4")])
def test_the_index_names_the_columns_that_are_not_above(dynamic: float, low: str) -> None:
    filled = fill({(CERTIFIED, "vanilla", 0.4): [90.0], (CERTIFIED, "dynamic", 0.4): [dynamic]})
    text = what_holds([filled], corrected(list(table_claims(filled))))
    assert f"At or below in {low}. Points: Table 1 " in text


def test_the_index_opens_with_every_method_against_vanilla() -> None:
    filled = fill({
        (CERTIFIED, "vanilla", 0.4): [90.0, 90.2, 90.4], (CERTIFIED, "dynamic", 0.4): [88.0, 88.21, 88.4],
        (CERTIFIED, "vanilla-linear", 0.4): [89.0, 89.2, 89.4],
    })  # fmt: skip
    text = what_holds([filled], corrected(list(table_claims(filled))))
    assert "**Dynamic DP-SGD above vanilla, certified**: does not hold everywhere." in text
    assert "Table 1 -2.00 (together -2.00, p = " in text
    assert "dynamic is -1.00 points against vanilla with a rate falling to zero" in text
    assert "against vanilla, dynamic is -2.00 and the falling rate -1.00" in text


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_what_is_said_of_the_falling_rate_adds_up_whoever_has_more_seeds(seeds: int) -> None:
    scores = {
        "vanilla": [90.0, 91.0, 80.0],
        "dynamic": [91.0, 93.0, 95.0],
        "vanilla-linear": [90.5, 91.9, 99.0],
    }
    filled = fill(
        {(CERTIFIED, key, 0.4): by[: seeds if "linear" in key else 3] for key, by in scores.items()}
    )
    (line,) = against_falling_rate(filled)
    means = {key: float(np.mean(by[:seeds])) for key, by in scores.items()}
    of_vanilla = means["dynamic"] - means["vanilla"], means["vanilla-linear"] - means["vanilla"]
    assert f"dynamic is {of_vanilla[0]:+.2f} and the falling rate {of_vanilla[1]:+.2f}." in line
    assert f"dynamic is {of_vanilla[0] - of_vanilla[1]:+.2f} points against" in line


def test_every_command_of_the_page_means_the_cells_of_its_line(tmp_path: Path) -> None:
    claims = every_claim(
        [Filled(table, Archive([])) for table in TABLES.values()], Sources(Archive([]), tmp_path)
    )
    page = claims_page(claims)
    commands = set(re.findall(r"`(papers reproduce [^`]+)`", page))
    assert len(commands) > 100
    for table, cell in (("table1", "mnist/0.4"), ("table3", "names/8")):
        line = next(one for one in claims if table in one.command and one.cell == cell)
        arguments = [*shlex.split(line.command)[1:], "--dry-run", "--results", str(tmp_path)]
        shown = CliRunner().invoke(app, arguments).stdout.splitlines()
        task, epsilon = cell.split("/")
        runs = [name for name in shown if name.startswith(f"{task}/")]
        assert {name.split("-seed")[0].rsplit("-", 1)[1] for name in runs} == {epsilon}
        assert {name.split("/")[1].split("-")[0] for name in runs} == {"dynamic", "constant"}
