"""Facts: lines are run again, and one that says another number than its run gives is found."""

from dataclasses import replace
from pathlib import Path

import pytest

from decrescendo_papers.experiments import recheck, results
from decrescendo_papers.experiments.perform import perform
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.table import base_spec

from .conftest import Invoke

SPEC = base_spec("digits", epsilon=2.0, accountant="pld", settings={"method": "constant", "steps": 3})


def test_a_line_that_is_true_is_equal_and_one_that_is_not_is_found(invoke: Invoke, tmp_path: Path) -> None:
    made = perform(SPEC)
    results.save(tmp_path / "runs", made)
    good = invoke("check", "--results", "runs")
    assert good.exit_code == 0, good.output
    assert good.stdout.splitlines()[0] == f"equal  {SPEC.name}"
    results.save(tmp_path / "runs", replace(made, metrics={"test_accuracy": made.metrics["test_accuracy"] + 0.1}))
    bad = invoke("check", "--results", "runs")
    assert bad.exit_code == 1
    assert bad.stdout.splitlines()[0] == f"off by 0.1000  {SPEC.name}"


def test_lines_of_other_noise_are_not_drawn(invoke: Invoke, tmp_path: Path) -> None:
    results.save(tmp_path / "runs", Result(SPEC, metrics={"test_accuracy": 0.5}))
    assert recheck.sample(tmp_path / "runs", 5, 0) == []
    assert invoke("check", "--results", "runs").exit_code == 2


def test_a_damaged_line_and_a_tolerance_that_is_no_number_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    results.save(tmp_path / "runs", Result(SPEC, metrics={"test_accuracy": 0.5}))
    assert "--tolerance must be" in invoke("check", "--results", "runs", "--tolerance", "nan").output
    path = tmp_path / "runs" / "digits.jsonl"
    path.write_text(path.read_text().replace("metrics", "matrix"))
    assert "Take the line out" in " ".join(invoke("check", "--results", "runs").output.split())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["imdb", "names", "mnist-pca"])
def test_a_line_of_a_file_again(task: str) -> None:
    folder = Path(__file__).parents[2] / "results" / "runs"
    for line in recheck.sample(folder, 1, 3, [task]):
        assert recheck.repeat(line).difference <= 0.002, line.spec.name
