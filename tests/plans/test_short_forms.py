"""Facts: a number is a constant everywhere a curve is taken, and passes over the data are a number of steps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import decrescendo as dc
from decrescendo.accounting import GdpClt
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.plans import (
    BatchSchedule,
    CurveOrValues,
    Plan,
    PoissonSampling,
    RandomAllocation,
    allocate,
    curves,
    noise_cost,
)

SAMPLING = PoissonSampling(1000, 100)
BUDGET = dc.Budget(2.0, 1e-4)


def calibrated(**change: Any) -> Plan:
    given = {"steps": 3, "clip": 1.5, "accountant": GdpClt()} | change
    return dc.calibrate(BUDGET, SAMPLING, **given)


@pytest.mark.parametrize("clip", [1.5, np.float64(1.5), curves.constant(1.5), [1.5, 1.5, 1.5]])
def test_a_number_is_a_constant_clip_norm(clip: CurveOrValues) -> None:
    assert calibrated(clip=clip) == calibrated()


@pytest.mark.parametrize("number", [2, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0)])
def test_a_number_of_any_kind_is_one(number: object) -> None:
    assert curves.as_curve("clip", number)(curves.progress(3)).tolist() == [2.0] * 3


@pytest.mark.parametrize("privacy", ["constant", 1.0, 7, np.float64(2.0), curves.constant(3.0), [1.0] * 3])
def test_constant_noise_need_not_be_said(privacy: CurveOrValues) -> None:
    assert calibrated(privacy=privacy) == calibrated()
    assert np.ptp(calibrated().noise_multiplier) == 0


NOISES = [
    "constant",
    3.0,
    curves.linear(2.0, 0.7),
    [3.0, 1.0, 2.0],
    np.array([1e-3, 1.0, 7.0]),
    torch.tensor([2.0, 1.0, 3.0]),
]


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_a_curve_of_noise_is_one_of_privacy_upside_down_to_the_bit(noise: Any) -> None:
    values = curves.evaluate("noise", noise, 3)
    plan = calibrated(noise=noise)
    assert plan == calibrated(privacy=1 / values)
    assert plan.noise_multiplier == pytest.approx(values / values[0] * plan.noise_multiplier[0])


def test_noise_moves_between_epochs_where_each_record_takes_part_once_in_each() -> None:
    once = RandomAllocation(1000, steps_per_epoch=2)
    z = curves.linear(2.0, 1.0)
    given: dict[str, Any] = {"steps": 4, "clip": 1.0}
    assert dc.calibrate(BUDGET, once, noise=z, **given) == dc.calibrate(
        BUDGET, once, privacy=lambda u: 1 / z(u), **given
    )
    with pytest.raises(InvalidValue, match="noise must be constant within each epoch of 2 steps"):
        dc.calibrate(BUDGET, once, noise=[1.0, 2.0, 2.0, 2.0], **given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": "constant", "noise": 1.0}, "at most one of privacy and noise must be given, got both"),
        ({"noise": [1.0, 0.0, 1.0]}, r"noise must be > 0 at every step, got noise\[1\]=0.0"),
        ({"noise": [1.0, 1e-320, 1.0]}, "privacy must be > 0 and finite at every step"),
        ({"noise": [1.0, 2.0]}, "noise must have"),
        ({"noise": curves.linear(2.0, 1.0), "bands": 2}, "noise must be left out with bands"),
    ],
)  # fmt: skip
def test_noise_that_says_nothing_or_too_much_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        calibrated(**change)


def test_a_number_stands_for_a_curve_in_every_other_place() -> None:
    u = curves.progress(4)
    assert curves.join([1.0, curves.constant(2.0)], [0.5])(u).tolist() == [1, 1, 2, 2]
    assert curves.from_clip(4.0)(u).tolist() == [2.0] * 4
    assert curves.curvature(4.0, 16.0)(u).tolist() == [4.0] * 4
    assert curves.influence(16.0)(u).tolist() == [2.0] * 4
    plan = allocate(BUDGET, SAMPLING, steps=3, influence=1.0, clip=1.5, accountant=GdpClt())
    assert plan.noise_multiplier == pytest.approx(calibrated().noise_multiplier, rel=1e-3)
    assert noise_cost(plan, 2.0) == 2 * noise_cost(plan, [1.0] * 3)
    assert calibrated(batch=100) == calibrated()
    assert Plan.without_privacy(SAMPLING, steps=2, clip=2).clip_norm.tolist() == [2, 2]
    assert math.isinf(Plan.without_privacy(SAMPLING, steps=2).clip_norm[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": "growing-mu"}, r"privacy='growing-mu'. Write curves.growing_mu\(rho_mu\)"),
        ({"privacy": "steep"}, "privacy='steep'. Write the number itself for a constant"),
        ({"clip": "constant"}, "clip='constant'. Write the number itself"),
        ({"clip": True}, "clip must be a curve .*, a number or an array, got bool"),
        ({"clip": None}, "got NoneType"),
    ],
)
def test_a_name_that_says_too_little_says_what_to_write(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidType, match=words):
        calibrated(**change)


@pytest.mark.parametrize(
    ("epochs", "batch", "steps"),
    [
        (2, None, 20), (0.5, None, 5), (0.01, None, 1), (3, 200.0, 15), (3, curves.linear(100, 200), 20),
    ],
)  # fmt: skip
def test_passes_over_the_data_are_a_number_of_steps(epochs: float, batch: CurveOrValues | None, steps: int) -> None:
    plan = calibrated(steps=None, epochs=epochs, batch=batch)
    assert plan.steps == steps
    if epochs >= 0.1:
        assert float(plan.batch_size.sum()) / 1000 == pytest.approx(epochs, abs=0.2)


def test_passes_are_taken_wherever_steps_are() -> None:
    assert Plan.without_privacy(SAMPLING, epochs=3).steps == 30
    assert allocate(BUDGET, SAMPLING, epochs=1, influence=1, clip=1, accountant=GdpClt()).steps == 10
    allocation = RandomAllocation(1000, 4)
    assert Plan.without_privacy(allocation, epochs=3).steps == 12
    with pytest.raises(InvalidValue, match=r"epochs must be a whole number .*got epochs=2.5. Take 3"):
        Plan.without_privacy(allocation, epochs=2.5)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: calibrated(epochs=1), "exactly one of steps and epochs must be given, got both"),
        (lambda: calibrated(steps=None), "exactly one of steps and epochs must be given, got neither"),
        (lambda: calibrated(steps=None, epochs=-1), "epochs must be > 0"),
        (lambda: calibrated(steps=None, epochs=10**9), "epochs must be > 0 and <= 1e.06"),
        (lambda: calibrated(steps=None, epochs=1, batch=[100.0] * 10), "Give steps"),
        (lambda: Plan.without_privacy(BatchSchedule(100, [5.0, 6.0]), epochs=1), "Give steps"),
    ],
)
def test_a_number_of_steps_is_said_once(ask: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        ask()


def test_an_endless_budget_names_the_plan_without_one() -> None:
    with pytest.raises(InvalidValue, match=r"epsilon must be finite.*Plan\.without_privacy"):
        dc.Budget(math.inf, 1e-5)
    with pytest.raises(InvalidValue, match=r"epsilon must be > 0, got epsilon=-1$"):
        dc.Budget(-1, 1e-5)


def test_a_function_of_one_number_is_called_for_each() -> None:
    u = curves.progress(10)
    for one, every in (
        (lambda u: 1.0 if u < 0.8 else 0.5, np.where(u < 0.8, 1.0, 0.5)),
        (lambda u: 1.5 + math.cos(math.pi * u), 1.5 + np.cos(np.pi * u)),
    ):
        assert curves.evaluate("clip", one, 10) == pytest.approx(every, rel=1e-15)
        joined = curves.join([1.0, one], [0.5])  # from its own beginning
        assert curves.evaluate("clip", joined, 20)[10:] == pytest.approx(every, rel=1e-12)
    assert curves.evaluate("clip", lambda u: 1.0 if u < 0.5 else 0.5, 1).tolist() == [0.5]
    late = curves.join([lambda u: 1.0 if u < 0.5 else 0.5, 2.0], [0.1])  # its first piece has no step
    assert curves.evaluate("clip", late, 4).tolist() == [2.0] * 4
    both = curves.curvature(lambda u: 4.0 + 0 * math.cos(u), [1.0, 16.0])
    assert curves.evaluate("privacy", both, 2) == pytest.approx([2.0, 4.0])
    assert curves.evaluate("privacy", curves.influence(lambda u: math.exp(4 * u)), 2) == pytest.approx(
        np.exp(curves.progress(2))
    )
    with pytest.raises(InvalidType, match="array of numbers"):
        dc.calibrate(
            dc.Budget(1.0, 1e-5), SAMPLING, steps=2, privacy=[1.0] * 2,
            clip=lambda u: torch.nn.Parameter(torch.ones(2)),  # type: ignore[arg-type]
        )  # fmt: skip
    with pytest.raises(ValueError, match="of its own"):
        curves.evaluate("clip", lambda u: (_ for _ in ()).throw(ValueError("of its own")), 3)
