"""What a test of membership finds is one number: in the statement, on the studio's page and on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from often import some
from scipy.stats import norm
from typer.testing import CliRunner

from decrescendo import calibrate, curves
from decrescendo.accounting import (
    Budget,
    Gaussian,
    GdpClt,
    Guarantee,
    Ledger,
    Pld,
    Rdp,
    RenyiFilter,
    Unit,
    trade_off,
)
from decrescendo.accounting.membership import ALARMS, membership, most_power, percent
from decrescendo.cli import app
from decrescendo.errors import AccountingError
from decrescendo.plans import Plan, PoissonSampling, RandomAllocation
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.studio.facts import Subject, assess
from decrescendo.training.statement import state

ONE = curves.constant(1.0)


def made(
    budget: Budget, sampling: PoissonSampling | RandomAllocation, steps: int, **more: object
) -> Callable[[], Plan]:
    return lambda: calibrate(budget, sampling, steps=steps, privacy=ONE, clip=ONE, **more)  # type: ignore[arg-type]


POISSON, BUDGET = PoissonSampling(1_000, 50), Budget(2.0, 1e-5)
PLANS: dict[str, Callable[[], Plan]] = {
    "poisson": made(BUDGET, POISSON, 20),
    "much epsilon": made(Budget(8.0, 1e-5), POISSON, 20),
    "truncated": made(BUDGET, PoissonSampling(1_000, 50, max_batch_size=70), 20),
    "by another accountant": made(BUDGET, POISSON, 20, accountant=Rdp()),
    "an estimate": made(BUDGET, POISSON, 20, accountant=GdpClt()),
    "people": made(Budget(8.0, 1e-5, Unit.PERSON, 2), POISSON, 20),
    "everybody": made(BUDGET, PoissonSampling(1_000, 1_000), 5, accountant=Gaussian()),
    "once an epoch": made(BUDGET, RandomAllocation(1_000, steps_per_epoch=10), 10),
    "little noise": made(Budget(500.0, 1e-5), PoissonSampling(1_000, 1_000), 2, accountant=Gaussian()),
}


@pytest.mark.parametrize("kind", some(PLANS, 5))
def test_statement_studio_and_command_line_say_one_number(kind: str, tmp_path: Path) -> None:
    plan = PLANS[kind]()
    statement = state(plan, plan.ledger, plan.guarantee, provenance=None)
    reading, page = statement.facts["reading"], statement.to_markdown()
    shown = assess(Subject.of("plan", plan), "attack")["attack"]
    plan.save(tmp_path / "plan.json")
    printed = CliRunner().invoke(app, ["account", str(tmp_path / "plan.json")])
    answered = CliRunner().invoke(app, ["account", str(tmp_path / "plan.json"), "--json"])
    said = json.loads(answered.stdout)
    assert said["power_at_false_alarms"] == reading["power_at_false_alarms"]
    assert said["power_by"] == reading["by"] == shown["by"]
    for alarms, (share, found) in zip(ALARMS, shown["shown"], strict=True):
        own = f"{percent(reading['power_at_false_alarms'][f'{alarms:g}'])} %"
        assert found == own
        assert (
            f"At a false-positive rate of {share}, any test of whether somebody took part finds at most {own}" in page
        )
        assert f"false-positive rate of {share}, a membership test finds at most {own}" in " ".join(
            printed.stdout.split()
        )


def test_for_one_plan_at_a_tenth_of_false_alarms_the_page_and_the_statement_agree() -> None:
    """It was 27.34 % on one and, by epsilon and delta alone, 95 % in the other."""
    plan = calibrate(Budget(4.0, 1e-5), PoissonSampling(60_000, 250), steps=1_000, privacy=ONE, clip=ONE)
    found = membership(plan.ledger, plan.guarantee, [0.1]).power[0]
    assert found <= 1 - trade_off(plan.ledger, [0.1])[0]
    assert found < 0.5 < 0.9 < most_power(4.0, 1e-5, 0.1)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_the_exact_curve_of_a_gaussian_release_is_never_undercut(mu: float) -> None:
    ledger, alarms = Ledger.of([1 / mu], 1.0), np.array([1e-4, 1e-3, 0.01, 0.1, 0.5])
    found = membership(ledger, Gaussian().certify(ledger, Budget(1.0, 1e-6)), alarms)
    exact = norm.cdf(norm.ppf(alarms) + mu)
    assert (found.power >= exact).all()
    assert (found.power <= exact * 1.1 + 1e-3).all()
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)
    assert found.advantage >= 2 * norm.cdf(mu / 2) - 1


def test_where_only_epsilon_and_delta_hold_they_are_taken_and_named() -> None:
    ledger = Ledger.of([1.0] * 20, 0.05)
    search = Guarantee(3.0, 1e-5, Unit.EXAMPLE, "Selection(mean=10)", "upper")
    disjoint = Guarantee(3.0, 1e-5, Unit.EXAMPLE, "Zcdp(batches_per_epoch=10)", "upper")
    for whole, guarantee, why in (
        (ledger, search, "accounts something else"),
        (ledger, disjoint, "accounts something else"),
        (None, Pld().certify(ledger, BUDGET), "decided during the run"),
    ):
        found = membership(whole, guarantee, ALARMS)
        assert found.power.tolist() == [most_power(guarantee.epsilon, 1e-5, alarms) for alarms in ALARMS]
        assert "epsilon and delta alone" in found.by
        assert why in found.by


def test_from_an_estimate_without_a_curve_nothing_follows() -> None:
    guess = Guarantee(0.1, 1e-5, Unit.EXAMPLE, "GdpClt", "estimate")
    found = membership(None, guess, ALARMS)
    assert found.power.tolist() == [1.0] * 3
    assert found.advantage == 1.0
    assert "nothing follows" in found.by
    with pytest.raises(AccountingError, match="a guarantee must be given"):
        membership(None, None, ALARMS)


def test_an_estimate_that_is_too_small_does_not_make_the_numbers_smaller() -> None:
    ledger = Ledger.of([0.8] * 50, 0.05)
    guess = Guarantee(0.01, 1e-5, Unit.EXAMPLE, "GdpClt", "estimate")
    right = membership(ledger, Pld().certify(ledger, BUDGET), ALARMS)
    assert (membership(ledger, guess, ALARMS).power >= right.power).all()


def test_of_noise_decided_on_the_way_the_page_shows_the_filters_promise_and_not_its_releases() -> None:
    """The releases alone would say less than the filter was ready to grant."""
    agreed = AdaptivePlan(BUDGET, POISSON, RenyiFilter(BUDGET, 16).name, 20, "a rule")
    told = agreed.guarantee
    subject = Subject("run", Ledger.of([5.0] * 3, 0.05), 1e-5, guarantee=told, adaptive=True)
    shown = assess(subject, "attack")["attack"]
    assert [found for _, found in shown["shown"]] == [
        f"{percent(most_power(told.epsilon, told.delta, alarms))} %" for alarms in ALARMS
    ]
