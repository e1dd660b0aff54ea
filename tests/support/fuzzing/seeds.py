"""A small plan, an adaptive plan, and other values that files are made of; nothing is calibrated."""

from functools import cache

from decrescendo.accounting import Pld
from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule

ROWS = 500


@cache
def plan(unit: Unit = Unit.EXAMPLE) -> Plan:
    """Four steps, judged."""
    sampling, schedule = PoissonSampling(ROWS, 10), Schedule([2.0, 1.5, 1.25, 1.0], [1.0, 0.75, 0.5, 0.5])
    lower, upper = Pld().bracket(Ledger.of(schedule.noise_multiplier, sampling.sample_rate), 1e-6)
    return Plan(Budget(2.0, 1e-6, unit), sampling, schedule, Guarantee(upper, 1e-6, unit, "Pld", "upper", lower))


@cache
def plain() -> Plan:
    """Without privacy, clipped at the second step only."""
    made = Plan.without_privacy(PoissonSampling(ROWS, 10), steps=2)
    return Plan(made.budget, made.sampling, Schedule([0.0, 0.0], [float("inf"), 0.5]), made.guarantee)


@cache
def adaptive_plan(rule: str = "RenyiFilter(order=12)") -> AdaptivePlan:
    """Of a run whose noise is decided during the run."""
    return AdaptivePlan(Budget(2.0, 1e-6), PoissonSampling(ROWS, 10), rule, 10, "halve at a plateau")
