"""Facts: figures are whole PNG files of a readable size; the demonstration's words fit its numbers."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import decrescendo as dc
from decrescendo.cli import demo
from decrescendo.cli.demo import CONSTANT, CONTROL, DYNAMIC, NOT_PRIVATE, Outcome
from decrescendo.errors import InvalidValue, MissingExtra
from decrescendo.plans.plan import Plan
from decrescendo.report.figure import Scores, draw_schedules, draw_scores


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.mark.slow
def test_schedules_are_drawn_and_drawn_the_same_again(plan_file: Path, tmp_path: Path) -> None:
    plan = Plan.load(plan_file)
    for name in ("one.png", "deep/two.png"):
        draw_schedules({"one": plan, "two": plan}, tmp_path / name, checkpoints=3)
    width, height = png_size(tmp_path / "one.png")
    assert width > 1200
    assert height > 400
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "deep" / "two.png").read_bytes()
    assert sorted(p.name for p in tmp_path.rglob("*.p*")) == ["one.png", "two.png"]


@pytest.mark.parametrize(("growth", "scale"), [(1.0, "linear"), (300.0, "log")])
def test_noise_that_moves_far_has_a_logarithmic_axis_and_the_noise_on_the_sum_is_drawn(
    growth: float, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("decrescendo.report.figure.save", lambda figure, path: drawn.append(figure))
    plan = dc.calibrate(
        dc.Budget(2.0, 1e-3), dc.PoissonSampling(50, 10), steps=5,
        privacy=dc.curves.growing_mu(growth), clip=dc.curves.sensitivity_decay(2.0, rho_c=1.5),
    )  # fmt: skip
    draw_schedules({"one": plan}, tmp_path / "a.png", checkpoints=1)
    clips, noises, sums, spent = drawn[0].axes
    assert [panel.get_yscale() for panel in (clips, noises, sums, spent)] == [
        "linear",
        scale,
        scale,
        "linear",
    ]
    assert sums.lines[0].get_ydata() == pytest.approx(plan.noise_multiplier * plan.schedule.clip_norm)


@pytest.mark.slow
def test_scores_are_drawn(tmp_path: Path) -> None:
    scores = Scores([1, 2, 3], [[0.1, 0.5, 0.7], [0.3, 0.5, 0.9]])
    draw_scores({"a": scores, "b": Scores([1, 3], [[0.2, 0.4]])}, tmp_path / "s.png", title="toy")
    assert png_size(tmp_path / "s.png")[0] > 800
    assert scores.spread[0].tolist() == [0.1, 0.5, 0.7]
    others = {"a": scores, "b": Scores([1, 2, 3], [[0.2, 0.4, 0.6]] * 2)}
    draw_scores(others, tmp_path / "two.png", title="toy", compared=("a", "b"))
    assert png_size(tmp_path / "two.png")[0] > 1.5 * png_size(tmp_path / "s.png")[0]
    with pytest.raises(InvalidValue, match="among a, b, got 'c'"):
        draw_scores(others, tmp_path / "three.png", title="toy", compared=("a", "c"))
    assert scores.spread[1].tolist() == [0.3, 0.5, 0.9]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue):
        draw_schedules({}, tmp_path / "a.png")
    with pytest.raises(InvalidValue):
        draw_scores({}, tmp_path / "a.png", title="")


def test_without_matplotlib_the_command_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'matplotlib.*pip install "decrescendo\[plots\]"'):
        draw_scores({"a": Scores([1], [[0.5]])}, tmp_path / "a.png", title="")


def test_the_demonstration_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    found = demo.demonstrate(tmp_path, console, seeds=(0,), steps=2)
    console.file.close()
    assert len(found) == 4
    assert "No figures: matplotlib must be installed" in console.export_text()
    assert list(tmp_path.iterdir()) == []


def outcomes(dynamic: list[float], constant: list[float], control: list[float]) -> list[Outcome]:
    given = {CONSTANT: constant, CONTROL: control, DYNAMIC: dynamic}
    return [Outcome(name, tuple((x,) for x in final), None, None) for name, final in given.items()]


def test_a_tie_is_called_a_tie() -> None:
    # Paired differences of +1, -1, +1 points: mean 0.33, standard error 0.67.
    first, second = demo.conclusion(outcomes([0.91, 0.89, 0.91], [0.90, 0.90, 0.90], [0.80, 0.79, 0.805])).splitlines()
    assert first == f"{DYNAMIC} against {CONSTANT}: +0.3 points, standard error 0.7 over 3 paired seeds: a tie"
    assert second.endswith("better here")


def test_a_loss_is_called_a_loss_and_one_seed_decides_nothing() -> None:
    assert "worse here" in demo.conclusion(outcomes([0.80, 0.81], [0.90, 0.905], [0.8, 0.81]))
    assert demo.conclusion(outcomes([0.8], [0.9], [0.9])).count("decides nothing") == 2
    assert "a tie" in demo.conclusion(outcomes([0.9, 0.9], [0.9, 0.9], [0.9, 0.9]))


@pytest.mark.slow
def test_the_demonstration_runs_end_to_end(tmp_path: Path) -> None:
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    found = demo.demonstrate(tmp_path, console, seeds=(0, 1), steps=4, jobs=2)
    console.file.close()
    text = console.export_text()
    assert [outcome.name for outcome in found] == [NOT_PRIVATE, CONSTANT, CONTROL, DYNAMIC]
    assert all(len(outcome.curves) == 2 for outcome in found)
    for outcome in found[1:]:
        assert outcome.run is not None
        assert outcome.run.guarantee.epsilon <= demo.BUDGET.epsilon
        assert outcome.run.ledger == outcome.plan.ledger
    # Same sampling stream: every private run of a seed saw batches of the same sizes.
    sizes = {outcome.run.diagnostics.examples for outcome in found[1:]}
    assert len(sizes) == 1
    assert "not private" in text
    assert "not a bound" in text
    alone = demo.train_private(demo.digits(), found[3].plan, 1)[0]  # in this process, with the same numbers
    assert found[3].curves[1] == alone
    assert png_size(tmp_path / "schedules.png")
    assert png_size(tmp_path / "accuracy.png")


def test_plain_sgd_of_the_demonstration_learns() -> None:
    curve = demo.train_plain(demo.digits(), 60, 0)
    assert curve[-1] > 0.85
