"""Facts: what the page says of runs that ended when the budget was spent changes where the means do."""

import dataclasses

import pytest

from decrescendo_papers.experiments.methods import DYNAMIC, STOPPED, ZCDP
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.stopped_section import sentences, stopped_section
from decrescendo_papers.experiments.pages.table_page import table_page
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import CERTIFIED, CLAIMED, Column, Table

COLUMN = Column("mnist", 0.4)
ROW = dataclasses.replace(STOPPED, only=("mnist/0.4",))
TABLE = Table(
    key="table1", title="Table 1: made up", columns=(COLUMN, Column("mnist", 1.2)),
    rows=(DYNAMIC.reports(92.0, 94.0), ZCDP.reports(60.0, 70.0)), stopped=(ROW,),
)  # fmt: skip


def result(spec: Spec, percent: float, steps: int = 0) -> Result:
    return Result(
        spec, {"test_accuracy": percent / 100}, claimed=0.4, certified=(0.399, 0.4), clt=0.39,
        noise_multiplier=(10.0, 9.0), steps=steps,
    )  # fmt: skip


def fill(block: str, stopped: float | str | None, dynamic: float | None = 92.0, seeds: int = 3) -> Filled:
    found: list[Result] = []
    specs = TABLE.cell(ROW, COLUMN, block, range(seeds)).specs
    if isinstance(stopped, str):
        found.append(Result(specs[0], refused=stopped))
    elif stopped is not None:
        found += [result(spec, stopped, 1_440) for spec in specs]
    if dynamic is not None:
        found += [result(spec, dynamic) for spec in TABLE.cell(DYNAMIC, COLUMN, block, range(seeds)).specs]
    return Filled(TABLE, Archive(found))


@pytest.mark.parametrize(
    ("mean", "near", "ahead"),
    [(58.99, 0, 0), (59.0, 1, 0), (59.01, 1, 0), (91.99, 1, 0), (92.0, 1, 1), (92.01, 1, 1)],
)
def test_means_are_held_against_the_papers_and_dynamics(mean: float, near: int, ahead: int) -> None:
    assert [line for line in sentences(fill(CLAIMED, mean)) if line.startswith("**Against")] == [
        f"**Against the paper's rho-zCDP-SGD**: within 1.0 point of its number, or above it, in {near} of 1 columns "
        "that have seeds enough.",
        f"**Against dynamic DP-SGD, as the paper counts**: level with its mean or above it in {ahead} of 1 columns "
        "that have seeds enough; nothing is tested.",
    ]
    # Ended by Pld it is not the paper's baseline.
    (line,) = [line for line in sentences(fill(CERTIFIED, mean)) if line.startswith("**Against")]
    assert line.startswith(f"**Against dynamic DP-SGD, certified**: level with its mean or above it in {ahead} of 1 ")


def test_without_runs_nothing_is_said_and_without_a_first_step_that() -> None:
    absent = [f"**Unfinished**, {words}: no run yet in mnist/0.4." for words in ("as the paper counts", "certified")]
    assert sentences(fill(CLAIMED, None)) == absent
    assert sentences(fill(CLAIMED, "too much")) == [
        "**No run**, as the paper counts: the first epoch alone costs more than the budget in mnist/0.4.",
        absent[1],
    ]
    alone = sentences(fill(CLAIMED, 60.0, dynamic=None))
    assert [line.partition("**:")[0] for line in alone if line.startswith("**Against")] == [
        "**Against the paper's rho-zCDP-SGD"
    ]


@pytest.mark.parametrize(("seeds", "few"), [(1, True), (2, True), (3, False)])
def test_few_seeds_are_named(seeds: int, few: bool) -> None:
    specs = TABLE.cell(ROW, COLUMN, CERTIFIED, range(seeds)).specs
    found = sentences(Filled(TABLE, Archive([result(spec, 60.0, 10) for spec in specs])))
    assert (f"**Fewer than 3 seeds**, certified, so not compared: mnist/0.4 ({seeds})." in found) is few
    assert any(line.startswith("**Fewer") for line in found) is few
    compared = [line for line in sentences(fill(CERTIFIED, 60.0, seeds=seeds)) if line.startswith("**Against")]
    assert bool(compared) is not few


def test_the_section_shows_both_blocks_and_their_steps() -> None:
    filled = fill(CLAIMED, 61.0)
    lines = [" ".join(line.split()) for line in stopped_section(filled).splitlines() if "mnist/0.4 |" in line]
    assert lines == [
        "| as the paper counts | mnist/0.4 | 61.00 ± 0.00 | 3 | 1,440 | 10 -> 9 | 0.399 .. 0.4 | - | 92.00 ± 0.00 | "
        "60.00 |",
        "| certified | mnist/0.4 | - | - | - | - | - | - | - | - |",
    ]
    assert "no first step" in stopped_section(fill(CLAIMED, "too much"))
    assert stopped_section(filled) in table_page(filled)
    assert len(filled.all_results()) == 6
    assert stopped_section(Filled(dataclasses.replace(TABLE, stopped=()), Archive([]))) == ""
