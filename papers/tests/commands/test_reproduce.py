"""Facts: what would run is listed without running, and the report is written from what is there or refused."""

from pathlib import Path

from decrescendo_papers.experiments import results
from decrescendo_papers.experiments.reproduce import requested
from decrescendo_papers.experiments.results import Result

from .conftest import Invoke


def test_a_dry_run_lists_runs_and_curves_that_are_missing(invoke: Invoke, tmp_path: Path) -> None:
    spec = requested(["figure1"], 1)[0]
    results.save(tmp_path / "runs", Result(spec, metrics={"test_accuracy": 0.9}))
    result = invoke("reproduce", "figure1", "figure2", "--seeds", 1, "--results", "runs", "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:2] == ["3 runs, 2 missing", "4 cost curves, 4 missing"]
    assert spec.name not in lines
    assert len(lines) == 2 + 2 + 4


def test_a_dry_run_where_no_results_are_warns(invoke: Invoke, tmp_path: Path) -> None:
    """Outside of the folder papers everything would seem to be missing."""
    result = invoke("reproduce", "figure1", "--seeds", 1, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("warning: there is no folder results/runs here, so no run counts as finished.")
    (tmp_path / "results/runs").mkdir(parents=True)
    assert "warning" not in invoke("reproduce", "figure1", "--seeds", 1, "--dry-run").stderr


def test_names_that_are_not_there_are_refused_in_one_line(invoke: Invoke) -> None:
    result = invoke("reproduce", "table99", "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: table or figure must be one of table1")


def test_blocks_that_are_not_there_are_refused_in_one_line(invoke: Invoke) -> None:
    result = invoke("reproduce", "table1", "--block", "certifed", "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --block must be one of claimed, certified, got 'certifed'")


def test_the_report_is_written_and_names_what_it_left_out(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "curves").mkdir()
    arguments = ("report", "--results", "runs", "--curves", "curves", "--out", "pages")
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert "--results must name a folder that exists" in refused.stderr
    results.save(tmp_path / "runs", Result(requested(["table1"], 1)[0], metrics={"test_accuracy": 0.9876}))
    (tmp_path / "runs" / "cut.jsonl").write_text("{")
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "cut.jsonl" in result.stderr
    assert "98.76" in (tmp_path / "pages" / "table1.md").read_text()
    assert {path.name for path in (tmp_path / "pages").iterdir()} >= {"README.md", "figures.md"}
