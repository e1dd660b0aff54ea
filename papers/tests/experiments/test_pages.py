"""Facts: a page shows what the results say, computed here the slow way; the same results give the same page; what is
unfinished, refused or tied is said to be; the committed pages are those of the committed results."""

import re
import statistics
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from decrescendo.report import Paired, paired
from decrescendo_papers.experiments import results
from decrescendo_papers.experiments.comparisons import holm, pooled
from decrescendo_papers.experiments.methods import DYNAMIC, LINEAR, TCDP, VANILLA
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.question import comparisons
from decrescendo_papers.experiments.pages.table_page import table_page
from decrescendo_papers.experiments.pages.write import pages
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.table import CERTIFIED, CLAIMED, Column, Table

ROOT = Path(__file__).resolve().parents[2]  # papers
TABLE = Table(
    key="small",
    title="A small table",
    columns=(Column("mnist", 0.4), Column("mnist", 1.2)),
    rows=(VANILLA.reports(91.18, 95.5), DYNAMIC.reports(94.35, 96.34), LINEAR, TCDP.reports(26.93, 92.6)),
    notes=("A note.",),
    tried=(
        DYNAMIC.changed("wide", "dynamic, wide", {"clip": 4.0}, ("mnist/0.4",)),
        VANILLA.changed("slow", "vanilla, slow", {"learning_rate": 0.1}, ("mnist/0.4",)),
        VANILLA.changed("quick", "vanilla, quick", {"learning_rate": 0.3}),
    ),
    plain={"mnist": 98.83},
)
# Of the column 0.4, by block and method, a number a seed. The second column stays unfinished.
SCORES = {
    (CLAIMED, "vanilla"): [0.9012, 0.9087, 0.9133],
    (CLAIMED, "dynamic"): [0.9301, 0.9377, 0.9460],
    (CERTIFIED, "vanilla"): [0.8999, 0.9111, 0.9021],
    (CERTIFIED, "dynamic"): [0.9105, 0.9000, 0.9080],
    (CERTIFIED, "vanilla-linear"): [0.9301, 0.9355, 0.9322],
}
TRIED = {"wide": [0.9340], "slow": [0.9000, 0.9000]}
REASON = "tCDP must have noise above a bound, got less"
BRACKETS = {CLAIMED: (0.404238, 0.404351), CERTIFIED: (0.399801, 0.399999)}


def fill(folder: Path) -> Path:
    for row in TABLE.rows:
        for block in (CLAIMED, CERTIFIED):
            cell = TABLE.cell(row, TABLE.columns[0], block, range(3))
            for spec, score in zip(cell.specs, SCORES.get((block, row.key), []), strict=False):
                results.save(folder, finished(spec, score, block))
            if row is TCDP or (row.key == "tcdp" and block == CLAIMED):
                results.save(folder, Result(cell.specs[0], refused=REASON))
    for row in TABLE.tried:
        cell = TABLE.cell(row, TABLE.columns[0], CLAIMED, range(2))
        for spec, score in zip(cell.specs, TRIED.get(row.key, []), strict=False):
            results.save(folder, finished(spec, score, CLAIMED))
    return folder


def finished(spec: results.Spec, score: float, block: str) -> Result:
    return Result(
        spec, metrics={"test_accuracy": score}, claimed=0.39999, certified=BRACKETS[block], clt=0.3957,
        noise_multiplier=(2.9, 2.9), clip_norm=(1.5, 1.5), seconds=100.0 + 2 * spec.seed, machine={"device": "cpu"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return table_page(Filled(TABLE, Archive.read(folder)))


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by their first cell."""
    lines = page.split(f"{heading}\n")[1].lstrip("\n").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| "))
    found: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("| "):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0]] = cells[1:]
    return found


@pytest.mark.parametrize(("block", "words"), [(CLAIMED, "as the paper counts"), (CERTIFIED, "certified")], ids=str)
def test_every_cell_is_the_mean_and_deviation_of_its_results(page: str, block: str, words: str) -> None:
    rows = rows_of(page, f"### mnist/0.4, {words}")
    labels = {row.key: row.label for row in TABLE.rows}
    for (where, key), scores in SCORES.items():
        if where != block:
            continue
        percent = [100 * score for score in scores]
        accuracy, seeds, paper, gap, claim, bracket, _ = rows[labels[key]]
        assert accuracy == f"{statistics.mean(percent):.2f} ± {statistics.stdev(percent):.2f}"
        assert seeds == "3"
        reported = {"vanilla": 91.18, "dynamic": 94.35}.get(key)
        assert paper == ("-" if reported is None else f"{reported:.2f}")
        assert gap == ("-" if reported is None else f"{statistics.mean(percent) - reported:+.2f}")
        assert claim == ("0.4000" if block == CLAIMED else "0.3957")
        low, high = map(float, bracket.split(" .. "))
        assert low <= BRACKETS[block][0] <= BRACKETS[block][1] <= high < low + 3e-4


def test_differences_are_over_paired_seeds_and_small_ones_are_ties(page: str) -> None:
    for block, words, verdict in (
        (CLAIMED, "as the paper counts", "better"),
        (CERTIFIED, "certified", "tie"),
    ):
        pairs = zip(SCORES[block, "dynamic"], SCORES[block, "vanilla"], strict=True)
        differences = [100 * (one - other) for one, other in pairs]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / 3**0.5
        assert (abs(mean) <= 2 * error) == (verdict == "tie")
        shown = rows_of(page, f"### mnist/0.4, {words}")["dynamic"][-1]
        assert shown == f"{mean:+.2f} ± {error:.2f} {verdict}"


def test_what_is_unfinished_is_said_and_shown(page: str) -> None:
    assert all(row[0] == "-" for row in rows_of(page, "### mnist/1.2, certified").values())
    # Two columns of three methods as the paper counts and of four certified: 14 cells, of which 6 have a result.
    assert "6 of 14 private cells have a result" in page
    assert "8 cells have no run yet" in page


def test_a_refused_cell_says_so_with_its_reason(page: str) -> None:
    assert rows_of(page, "### mnist/0.4, as the paper counts")[TCDP.label][0] == "refused [1]"
    assert f"[1] {REASON}" in page
    assert rows_of(page, "### mnist/0.4, certified")[TCDP.certified_label][0] == "-"


def test_the_verdict_is_made_from_the_numbers(page: str) -> None:
    assert (
        "numbers, as the paper counts**: 2 of 2 cells are within 1.0 point, 0 further below, 0 further above." in page
    )
    assert "numbers, certified**: 1 of 2 cells are within 1.0 point, 1 further below, 0 further above." in page
    assert rows_of(page, "## Cells further than 1.0 point from the paper's numbers")["dynamic"] == [
        "mnist/0.4", "-0.56", "-3.73", "within 1.0 point with less noise, as the paper counts (-0.56)",
    ]  # fmt: skip
    excess = 100 * (BRACKETS[CLAIMED][0] / 0.39999 - 1)
    assert "in 2 of 2 cells calibrated by it" in page
    assert f"by {excess:.2f} %" in page
    assert "in all 3 finished cells of the certified block" in page


def test_what_was_tried_stands_beside_the_method_that_it_changes(page: str) -> None:
    rows = rows_of(page, "## What was tried")
    mean = {key: f"{100 * statistics.mean(SCORES[CLAIMED, key]):.2f} ± " for key in ("vanilla", "dynamic")}
    assert rows["dynamic, wide"][1:3] == ["93.40", "1"]
    assert rows["dynamic, wide"][3].startswith(mean["dynamic"])
    assert rows["dynamic, wide"][4] == "94.35"
    assert rows["vanilla, slow"][3].startswith(mean["vanilla"])
    assert rows["vanilla, slow"][4] == "91.18"
    assert "vanilla, quick" not in page.split("## Noise schedule")[0]  # no run of it


def test_a_broken_budget_is_said(tmp_path: Path) -> None:
    spec = TABLE.cell(TABLE.rows[0], TABLE.columns[0], CERTIFIED, [0]).specs[0]
    over = Result(spec, metrics={"test_accuracy": 0.9}, claimed=0.4, certified=(0.4, 0.4001), clt=0.39)
    results.save(tmp_path, over)
    assert "Budgets exceeded" in table_page(Filled(TABLE, Archive.read(tmp_path)))


def test_the_same_results_give_the_same_page_in_any_order(page: str, folder: Path) -> None:
    assert table_page(Filled(TABLE, Archive.read(folder))) == page
    loaded = [result for path in folder.glob("*.jsonl") for result in results.read_all(path)[0]]
    assert table_page(Filled(TABLE, Archive(reversed(loaded)))) == page


def test_a_damaged_result_is_left_out_and_named(tmp_path: Path) -> None:
    (path,) = fill(tmp_path).glob("*.jsonl")
    lines = path.read_text().splitlines()
    at = next(
        number for number, line in enumerate(lines)
        if "0.9301" in line and '"method": "dynamic"' in line and '"accountant": "clt"' in line
    )  # fmt: skip
    lines[at] = lines[at].replace("0.9301", "0.9999")
    path.write_text("\n".join(lines) + "\n")
    archive = Archive.read(tmp_path)
    assert len(archive.damaged) == 1
    assert f"{path.name}, line {at + 1}" in archive.damaged[0]
    assert rows_of(table_page(Filled(TABLE, archive)), "### mnist/0.4, as the paper counts")["dynamic"][1] == "2"


def test_the_question_is_tested_on_paired_seeds(folder: Path) -> None:
    filled = Filled(TABLE, Archive.read(folder))
    single, together = comparisons(filled)
    one, other = (100 * np.array(SCORES[CERTIFIED, key]) for key in ("dynamic", "vanilla-linear"))
    assert single[0].pair.p_value == pytest.approx(stats.ttest_rel(one, other).pvalue)
    # One test only: the second column has no runs, and Holm changes nothing. One column: pooled is the same.
    assert single[0].p_value == together[0].p_value == single[0].pair.p_value
    assert single[1].p_value is None
    assert "significantly" in table_page(filled)


def test_holm_corrects_by_how_many_are_left() -> None:
    assert holm([]) == []

    @settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
    def check(values: list[float]) -> None:
        # The slow way: a p value may be called small at a level if all smaller ones may, each at its share of it.
        found = holm(values)
        for i, value in enumerate(values):
            before = [j for j, other in enumerate(values) if (other, j) <= (value, i)]
            expected = 0.0
            for j in before:
                rank = sum((other, k) < (values[j], j) for k, other in enumerate(values))
                expected = max(expected, min(1.0, values[j] * (len(values) - rank)))
            assert found[i] == pytest.approx(expected)

    check()


def test_pairs_without_spread_have_no_test_and_equal_ones_are_a_tie() -> None:
    assert paired({0: 90.1, 1: 80.2}, {0: 90.0, 1: 80.1}).p_value is None
    assert paired({0: 90.1, 1: 80.2}, {0: 90.1, 1: 80.2}).verdict == "tie"
    assert Paired(()).verdict == "none"
    assert pooled([], []).differences == ()


def test_a_page_without_results_is_unfinished_not_broken(tmp_path: Path) -> None:
    found = pages(Sources(Archive([]), tmp_path, tmp_path / "none", tmp_path, tmp_path))
    for name, text in found.items():
        assert "nan" not in text, name
        assert (
            "no run yet" in text
            or "have no run" in text
            or "No run is finished" in text
            or "not evaluated yet" in text
            or "Unfinished" in text
            or name == "README.md"
        )


def test_the_committed_pages_are_those_of_the_committed_results() -> None:
    runs, folder = ROOT / "results/runs", ROOT / "docs/reproduction"
    files = committed(runs)
    if not files:
        pytest.skip("no results")
    results = ROOT / "results"
    expected = pages(
        Sources(
            Archive.of_files(files),
            results / "figures",
            results / "recipes.jsonl",
            results / "influence",
            results / "registered",
        )
    )
    for name, text in expected.items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"{name}: run papers report"
    for link in re.findall(r"\(([^)]+\.png)\)", expected["figures.md"] + expected["hong.md"]):
        assert (folder / link).is_file()


def committed(folder: Path) -> list[Path]:
    """What git follows, so that runs that finish meanwhile do not count; everything where there is no git."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return list(folder.glob("*.jsonl"))
    return [ROOT / name for name in done.stdout.split("\0") if name.endswith(".jsonl")]
