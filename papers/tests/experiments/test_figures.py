"""Facts: figures are requested like tables; cost curves are what the accountants say, are kept, and are not believed
when damaged; drawings are the same twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decrescendo import accounting
from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments import costs, results
from decrescendo_papers.experiments.figures import COARSE, FIGURE3, FIGURE3_WHOLE
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.figures_page import draw_figures, figures_page
from decrescendo_papers.experiments.perform import plan_of
from decrescendo_papers.experiments.reproduce import FIGURES, requested, requested_curves
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import base_spec

SMALL = base_spec("digits", epsilon=2.0, accountant="clt", settings={"method": "dynamic", "rho_mu": 1.5, "steps": 4})


def test_figures_are_requested_beside_tables() -> None:
    specs = requested(["figure1"], 3)
    assert len(specs) == len(set(specs)) == 9
    assert {(spec.steps, spec.trace, spec.delta) for spec in specs} == {(5000, 50, 1e-5)}
    assert {spec.epsilon for spec in specs} == {0.0, 0.4}
    assert requested(["figure1"], 1, blocks=["certified"]) == []
    assert [spec.method for spec in requested(["figure5"], 1, cells=["*/*/dynamic DP-SGD"])] == ["dynamic"]
    assert len(requested(["table1", "figure3"], 1)) > len(requested(["figure3"], 1)) == len(COARSE) ** 2
    assert set(FIGURE3.runs.values()) < set(FIGURE3_WHOLE.runs.values())
    assert requested(["figure2"], 3) == []
    assert len(requested_curves(["figure2", "table1"])) == len(FIGURES["figure2"].curves)


@pytest.mark.parametrize(("name", "cells"), [("figure9", ()), ("figure1", ("mnist/7",))])
def test_what_there_is_not_is_refused_with_what_there_is(name: str, cells: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValue, match=r"figure1|mnist/0/SGD"):
        requested([name], 1, cells=cells)


@pytest.mark.slow
def test_costs_are_what_the_accountants_say_of_the_first_steps(tmp_path: Path) -> None:
    found = costs.compute(SMALL, 2)
    assert found.steps == [2, 4]
    ledger, delta = plan_of(SMALL).ledger, SMALL.delta
    for i, step in enumerate(found.steps):
        first = type(ledger).of(ledger.noise_multiplier[:step], float(ledger.sample_rate[0]))
        assert (found.lower[i], found.upper[i]) == accounting.Pld().bracket(first, delta)
        assert found.clt[i] == accounting.GdpClt().epsilon(first, delta).value
        assert found.renyi[i] == accounting.Rdp().epsilon(first, delta).value
    assert costs.find(tmp_path, SMALL, 2) is None
    path = costs.save(tmp_path, SMALL, 2, found)
    assert costs.find(tmp_path, SMALL, 2) == found
    path.write_text(path.read_text().replace("[", "[0.5,", 1))
    assert costs.find(tmp_path, SMALL, 2) is None


@pytest.mark.slow
def test_pages_and_drawings_are_the_same_twice(tmp_path: Path) -> None:
    sources = Sources(Archive(traced("figure1", "figure3", "figure5", "convergence")), tmp_path / "curves")
    for spec, points in requested_curves(["figure2", "figure4"]):
        line = [0.1 * i + 0.01 * spec.rho_mu for i in range(1, points + 1)]
        steps = [300 * i for i in range(1, points + 1)]
        costs.save(sources.curves, spec, points, costs.Costs(steps, line, line, line, line))
    assert len(draw_figures(sources, tmp_path / "one")) == 6
    some = Sources(Archive(traced("figure3", "figure5")), tmp_path)
    again = draw_figures(some, tmp_path / "two")
    assert again.pop().name == "convergence.png"  # of which it has some of the runs
    assert len(again) == 2
    assert [path.read_bytes() for path in again] == [(tmp_path / "one" / path.name).read_bytes() for path in again]
    page = figures_page(sources)
    assert page == figures_page(sources)
    assert "Unfinished" not in page
    # Lengths 1, 2, .., 50 of the private runs ramp up, the falling ones of plain SGD do not.
    assert page.count("a ramp-up is seen (factor 50.00)") == 4
    assert page.count("no ramp-up is seen (factor 1.00)") == 2
    assert "16 of 16 points are finished, with 1 seed a point" in page


def test_a_seed_that_loses_what_it_learned_is_named(tmp_path: Path) -> None:
    runs = [recorded(spec) for spec in requested(["figure1"], 2)]
    page = figures_page(Sources(Archive(runs), tmp_path))
    assert "lost what was learned" not in page
    index = next(i for i, run in enumerate(runs) if run.spec.private)
    trace = runs[index].trace
    runs[index] = replace(runs[index], trace={**trace, "test_accuracy": [*trace["test_accuracy"][:-1], 0.3]})
    page = figures_page(Sources(Archive(runs), tmp_path))
    assert page.count("**1 seed lost what was learned**") == 1
    assert "60.00 % (30.00 .. 90.00) at the end" in page


def traced(*names: str) -> list[Result]:
    return [recorded(spec) for spec in requested(names, 1)]


def recorded(spec: Spec) -> Result:
    lengths = np.arange(1.0, 51.0) if spec.private else np.arange(50.0, 0.0, -1.0)
    if not spec.trace:
        return Result(spec, metrics={"test_accuracy": 0.9})
    trace = {
        "step": np.arange(100.0, 5001.0, 100.0).tolist(),
        "gradient_norm": lengths.tolist(),
        "test_accuracy": np.linspace(0.1, 0.9, 50).tolist(),
    }
    return Result(spec, metrics={"test_accuracy": 0.9}, trace=trace, seconds=1.0, machine={"device": "cpu"})


def test_only_the_points_of_the_grid_that_are_there_are_drawn(tmp_path: Path) -> None:
    point = FIGURE3_WHOLE.runs["mnist/0.4/0.1x0.8"]
    results.save(tmp_path, Result(point, metrics={"test_accuracy": 0.93}))
    page = figures_page(Sources(Archive.read(tmp_path), tmp_path))
    assert "1 of 64 points are finished" in page
    assert "The best score is 93.00 at 1/rho_mu = 0.1, 1/rho_c = 0.8" in page
    assert "papers reproduce figure3 --seeds 1" in page
    results.save(tmp_path, Result(point.seeded(1), metrics={"test_accuracy": 0.91}))
    page = figures_page(Sources(Archive.read(tmp_path), tmp_path))
    assert "The best mean is 92.00 ± 1.41 at 1/rho_mu = 0.1, 1/rho_c = 0.8" in page
    assert "papers reproduce figure3 --seeds 2" in page
