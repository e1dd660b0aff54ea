"""Facts: each sentence that pages make from numbers is tried with made-up results on both sides of its threshold and on
it. (Those about claims are in `test_claims`, about recipes in `test_registered`, `test_strong` and `test_alike`, about
runs that end when the budget is spent in `test_stopped_section`.)"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from decrescendo.report import Paired
from decrescendo_papers.experiments.comparisons import ENOUGH, LEVEL
from decrescendo_papers.experiments.costs import Costs
from decrescendo_papers.experiments.estimate import Exponential, Influence
from decrescendo_papers.experiments.figures import EPSILON, FIGURE1, FIGURE3, TASK, grid_spec
from decrescendo_papers.experiments.methods import DYNAMIC, LINEAR, VANILLA
from decrescendo_papers.experiments.pages import claims, costs_section, hong_verdict
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.grid_section import grid_words
from decrescendo_papers.experiments.pages.hong_cases import ACCURACY, LOSS
from decrescendo_papers.experiments.pages.lengths_section import lengths_words
from decrescendo_papers.experiments.pages.question import Comparison, answer, no_gain
from decrescendo_papers.experiments.pages.table_page import false_alarms
from decrescendo_papers.experiments.pages.verdict import (
    at_the_majority,
    progress,
    promises_kept,
    under_reports,
)
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.table import CERTIFIED, CLAIMED, Column, Table, base_spec

NOWHERE = Path("nowhere")
BELOW, OVER = float(np.nextafter(LEVEL, 0)), float(np.nextafter(LEVEL, 1))
TABLE = Table(
    key="table1", title="Table 1: made up", columns=(Column("mnist", 0.4), Column("mnist", 1.2)),
    rows=(VANILLA.reports(90.0, 95.0), DYNAMIC.reports(92.0, 94.0), LINEAR), majority={"mnist": 11.5},
)  # fmt: skip


def cell(
    key: str, percents: Sequence[float], block: str = CERTIFIED, epsilon: float = 0.4,
    claimed: float = 0.4, bracket: tuple[float, float] = (0.4, 0.4),
) -> list[Result]:  # fmt: skip
    row = next(row for row in TABLE.rows if row.key == key)
    specs = TABLE.cell(row, Column("mnist", epsilon), block, range(len(percents))).specs
    return [
        Result(spec, {"test_accuracy": percent / 100}, claimed=claimed, certified=bracket, clt=claimed)
        for spec, percent in zip(specs, percents, strict=True)
    ]


def filled(*cells: list[Result]) -> Filled:
    return Filled(TABLE, Archive([result for of in cells for result in of]))


# --- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "few"), [(1, True), (2, True), (3, False), (4, False)])
def test_cells_of_few_seeds_are_counted(seeds: int, few: bool) -> None:
    (line, *_) = progress(filled(cell("vanilla", [90.0] * seeds)))
    assert ("1 cells have fewer than 3 seeds: nothing is compared there" in line) is few
    assert f"{seeds} seed{'s' * (seeds > 1)} per cell" in line


def test_a_range_of_seeds_and_what_is_unfinished_are_said() -> None:
    found = progress(filled(cell("vanilla", [90.0] * 3), cell("dynamic", [90.0] * 5)))
    assert "3 to 5 seeds per cell" in found[0]
    assert found[1].startswith("**Unfinished**: 8 cells have no run yet")
    everything = [
        cell(row.key, [90.0] * 3, block, epsilon)
        for row in TABLE.rows for block in (CLAIMED, CERTIFIED) for epsilon in (0.4, 1.2)
        if not (row.control and block == CLAIMED)
    ]  # fmt: skip
    assert len(progress(filled(*everything))) == 1


@pytest.mark.parametrize(("low", "proved"), [(0.41, True), (0.4, False), (0.39, False)])
def test_what_the_clt_leaves_out_is_proved_by_the_lower_end(low: float, proved: bool) -> None:
    other = cell("vanilla", [90.0], CLAIMED, 1.2, 1.2, (1.1, 1.3))
    (line,) = under_reports(filled(cell("vanilla", [90.0], CLAIMED, bracket=(low, 0.42)), other))
    assert ("in 1 of 2 cells" in line) is proved
    assert ("by 2.50 % (vanilla DP-SGD mnist/0.4) to 2.50 %" in line) is proved
    assert ("in none of 2 cells" in line) is not proved
    assert "-" not in line.partition("**:")[2].replace("DP-SGD", "")  # nothing is above by less than nothing


@pytest.mark.parametrize(("high", "kept"), [(np.nextafter(0.4, 0), True), (0.4, True), (np.nextafter(0.4, 1), False)])
def test_a_budget_is_kept_at_it_and_below(high: float, kept: bool) -> None:
    (line,) = promises_kept(filled(cell("vanilla", [90.0], bracket=(0.39, high))))
    assert line.startswith("**Budgets**: in all 1 finished cells" if kept else "**Budgets exceeded")
    assert promises_kept(filled()) == []


@pytest.mark.parametrize(("percent", "learned"), [(11.49, False), (11.5, False), (11.51, True)])
def test_what_scores_no_more_than_the_largest_class_is_named(percent: float, learned: bool) -> None:
    found = at_the_majority(filled(cell("vanilla", [percent], CLAIMED), cell("dynamic", [90.0])))
    words = (
        "**Nothing learned**: at or below the share of the largest class (11.50 % of mnist): vanilla DP-SGD "
        "mnist/0.4 (1 seed)."
    )
    assert found == ([] if learned else [words])


def test_false_alarms_are_those_of_students_law() -> None:
    def rate(seeds: int) -> float:
        within, _ = integrate.quad(lambda t: stats.t.pdf(t, seeds - 1), -2, 2)
        return 100 * (1 - within)

    expected = ", ".join(f"{rate(seeds):.0f} % of {seeds} seeds" for seeds in (3, 5, 10))
    assert false_alarms() == f"without any difference, it sees one in {expected}"


# --- noise or learning rate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "significant"), [(BELOW, True), (LEVEL, False), (OVER, False), (None, False)])
def test_a_difference_is_significant_below_the_level(p: float | None, significant: bool) -> None:
    for sign, words in ((1, "holds"), (-1, "fails")):
        one = Comparison(DYNAMIC, None, Paired((sign * 1.0,) * 3), p)
        assert one.significant is significant
        assert one.outcome == (words if significant else "undecided")


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ((92.0, 92.1, 92.2), "significantly better"), ((90.5, 90.4, 90.6), "significantly worse"),
        ((91.0, 93.0, 89.3), "no significant difference"),
    ],
)  # fmt: skip
def test_the_answer_says_which_way(dynamic: tuple[float, ...], words: str) -> None:
    of = filled(cell("vanilla", [90.0] * 3), cell("dynamic", dynamic), cell("vanilla-linear", [91.0, 91.05, 91.1]))
    text = answer(of)
    assert f" after Holm): {words}. Of single columns" in text
    better, worse = (int(words.endswith(way)) for way in ("better", "worse"))
    assert f"significantly better in {better}, worse in {worse}, undecided in {1 - better - worse}." in text


@pytest.mark.parametrize(("seeds", "words"), [(1, "1 seed is"), (2, "2 seeds are")])
def test_the_answer_compares_nothing_with_few_seeds(seeds: int, words: str) -> None:
    of = filled(*(cell(key, [value] * seeds) for key, value in
                  (("vanilla", 90.0), ("dynamic", 95.0), ("vanilla-linear", 91.0))))  # fmt: skip
    assert answer(of) == (
        f"- dynamic against the falling rate: {words} complete in every column that has runs: too few, nothing "
        "is compared."
    )


@pytest.mark.parametrize(("seeds", "said"), [(3, True), (9, True), (10, False)])
def test_few_seeds_are_said_to_decide_little(seeds: int, said: bool) -> None:
    drift = [0.01 * seed for seed in range(seeds)]
    of = filled(*(cell(key, [value + factor * step for step in drift]) for key, value, factor in
                  (("vanilla", 80.0, 0), ("dynamic", 92.0, 1), ("vanilla-linear", 91.0, 2))))  # fmt: skip
    assert (f"The tests rest on as few as {seeds} seeds." in answer(of)) is said


@pytest.mark.parametrize(
    ("dynamic", "seeds", "nothing"), [(90.01, 3, False), (90.0, 3, True), (89.99, 3, True), (89.99, 2, False)]
)
def test_no_gain_is_a_mean_at_vanilla_or_below(dynamic: float, seeds: int, nothing: bool) -> None:
    of = filled(cell("vanilla", [90.0] * seeds), cell("dynamic", [dynamic] * seeds))
    assert no_gain(of, DYNAMIC) is nothing


# --- figures --------------------------------------------------------------------------------------------------------


def traced(lengths: Sequence[float], accuracies: Sequence[float]) -> str:
    spec = next(spec for spec in FIGURE1.runs.values() if spec.method == "constant")
    trace = {"step": [1.0, 2.0, 4.0], "gradient_norm": list(lengths), "test_accuracy": list(accuracies)}
    sources = Sources(Archive([Result(spec, {"test_accuracy": accuracies[-1]}, trace=trace)]), NOWHERE)
    return next(line for line in lengths_words(FIGURE1, sources).splitlines() if line.startswith("- DP-SGD"))


@pytest.mark.parametrize(
    ("most", "seen"),
    [(1.09, False), (1.1, False), (math.nextafter(1.1, 2), False), (1.11, True), (0.5, False)],
)
def test_a_ramp_up_is_more_than_a_tenth(most: float, seen: bool) -> None:
    assert ("no ramp-up is seen" in traced((1.0, most, 0.4), (0.1, 0.5, 0.9))) is not seen


@pytest.mark.parametrize(("last", "lost"), [(0.46, False), (0.45, False), (0.44, True)])
def test_a_seed_has_lost_what_it_learned_below_half_of_its_best(last: float, lost: bool) -> None:
    assert ("**1 seed lost what was learned**" in traced((1.0, 1.0, 1.0), (0.1, 0.9, last))) is lost


@pytest.mark.parametrize(("point", "better"), [(90.01, 1), (90.0, 0), (89.99, 0)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_points_of_the_grid_are_above_vanilla_or_not(point: float, better: int, seeds: int) -> None:
    vanilla = base_spec(TASK, epsilon=EPSILON, accountant="clt", settings={"method": "constant"})
    found = [
        Result(spec.seeded(seed), {"test_accuracy": percent / 100})
        for spec, percent in ((vanilla, 90.0), (grid_spec(0.2, 0.4), point), (grid_spec(0.4, 0.2), 80.0))
        for seed in range(seeds)
    ]
    sources = Sources(Archive(found), NOWHERE)
    words = f"{better} of 2 points are above vanilla DP-SGD at the same claimed epsilon, compared over the seeds that"
    assert f"{words} both have ({seeds} seed{'s' * (seeds > 1)}; nothing is tested): by -10.00 to" in grid_words(
        FIGURE3, sources
    )
    (claim,) = [one for one in claims.figure_claims(sources) if one.family.endswith("Figure 3")]
    assert claim.pair.seeds == seeds
    assert claim.pair.mean == pytest.approx((point - 100) / 2)
    assert f"{better} of 2 points above vanilla of the same seeds" in claim.effect
    assert claim.outcome == ("too few seeds" if seeds < ENOUGH else "undecided")


@pytest.mark.parametrize(
    ("clt", "renyi", "below", "above"),
    [(0.99, 1.11, 2, 2), (1.0, 1.1, 0, 2), (1.01, 1.09, 0, 0)],
)
def test_the_accountants_lie_where_the_words_say(clt: float, renyi: float, below: int, above: int) -> None:
    costs = Costs([1, 2], [clt] * 2, [1.0] * 2, [1.1] * 2, [renyi] * 2)
    words = costs_section.how_they_lie({"one": costs})
    assert f"At {below} of 2 points the CLT's claim is below" in words
    assert f"at {above} of 2 Renyi accounting is at or above" in words
    way = "above" if renyi >= 1.1 else "below"
    assert f"Renyi accounting {100 * abs(renyi / 1.1 - 1):.2f} % {way} it" in words
    assert "the CLT lies 0.00 % above" not in words
    higher = costs_section.how_they_lie({"one": dataclasses.replace(costs, clt=[1.2] * 2)})
    assert "the CLT lies 9.09 % above the certified upper end" in higher


# --- Hong et al. ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "moves"), [(BELOW, True), (LEVEL, False), (OVER, False), (None, False)])
@pytest.mark.parametrize(("sign", "way"), [(1, "grows"), (-1, "shrinks")])
@pytest.mark.parametrize("metric", [LOSS, ACCURACY])
def test_a_trend_moves_below_the_level(p: float | None, moves: bool, sign: int, way: str, metric: str) -> None:
    words = hong_verdict.moved(metric, Paired((sign * 0.1, sign * 0.2, sign * 0.3)), p)
    assert words.startswith(way if moves else "does not move significantly")


@pytest.mark.parametrize(
    ("better", "worse", "words"),
    [
        (3, 0, "holds everywhere here"), (2, 0, "holds in some cases"), (0, 0, "cannot be seen here"),
        (0, 1, "is reversed here"), (2, 1, "holds in some cases and is reversed in others"),
    ],
)  # fmt: skip
def test_where_the_exponential_wins(better: int, worse: int, words: str) -> None:
    assert hong_verdict.standing(better, worse, 3) == words


@pytest.mark.parametrize(("p", "decided"), [(BELOW, True), (LEVEL, False), (OVER, False)])
def test_a_case_is_decided_below_the_level(p: float, decided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def corrected(pairs: Sequence[Paired]) -> list[float]:
        return [p for _ in pairs]

    monkeypatch.setattr(hong_verdict, "corrected_p", corrected)
    found = hong_verdict.decided_cases(["up", "down"], [Paired((1.0, 1.1, 1.2)), Paired((-1.0, -1.1, -1.2))])
    assert found == ((["up"], ["down"]) if decided else ([], []))


AT = np.array([1, 50, 100])


@pytest.mark.parametrize(("low", "rising"), [(1e-9, 1), (0.0, 0), (-1e-9, 0)])
def test_growth_is_above_one_with_its_whole_interval(low: float, rising: int) -> None:
    fit = Exponential(1.0, 0.02, (low, 0.04), 100)
    assert hong_verdict.rises(fit) == bool(rising)


@pytest.mark.parametrize(("first", "last", "later"), [(0.9, 1.0, True), (1.0, 1.0, False), (1.1, 1.0, False)])
def test_the_last_step_matters_more_than_the_first_or_not(first: float, last: float, later: bool) -> None:
    assert hong_verdict.later_matters_more(Influence(100, AT, np.array([[first, 0.5, last]] * 3))) is later


@pytest.mark.parametrize(("middle", "below"), [(-1.01, True), (-1.0, False), (-0.99, False), (1.0, False)])
def test_the_first_influence_is_below_zero_with_its_whole_interval(middle: float, below: bool) -> None:
    reach = float(stats.t.ppf(0.975, 2)) / math.sqrt(3)  # of three seeds one apart
    first = np.array([-1.0, 0.0, 1.0]) / reach + middle
    slopes = np.stack([first, np.ones(3), np.ones(3)], axis=1)
    assert hong_verdict.starts_below_zero(Influence(100, AT, slopes)) is below
