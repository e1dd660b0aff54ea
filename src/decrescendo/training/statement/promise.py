"""The guarantee of a training, its accounting and how it is spent, as facts of a statement."""

import math
from typing import Any

from decrescendo.accounting import GdpClt
from decrescendo.accounting.budget import Guarantee
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.membership import ALARMS, membership
from decrescendo.accounting.overflow import overflow_of
from decrescendo.accounting.truncated import spent_on_the_cap
from decrescendo.errors import AccountingError
from decrescendo.plans.agreement import Agreement

NEIGHBOURS = "two data sets are neighbours if one has one {unit} more than the other (add or remove)"


OF_PEOPLE = (
    "two data sets are neighbours if one has all examples of one person more than the other, at most {examples} (add "
    "or remove); ids declare whose each row is, and a person with more rows is refused before the first step"
)


def promise_facts(agreed: Agreement, guarantee: Guarantee) -> dict[str, Any]:
    unit, several = str(guarantee.unit), guarantee.examples_per_person
    return {
        "epsilon": or_none(guarantee.epsilon),
        "epsilon_lower": or_none(guarantee.epsilon_lower),
        "delta": guarantee.delta,
        "unit": unit,
        **({"examples_per_person": several} if several > 1 else {}),
        "neighbours": OF_PEOPLE.format(examples=several) if several > 1 else NEIGHBOURS.format(unit=unit),
        "kind": guarantee.kind,
        "accountant": guarantee.accountant,
        "asked_epsilon": or_none(agreed.budget.epsilon),
        **({"estimated_by": agreed.guarantee.accountant} if agreed.guarantee.kind == "estimate" else {}),
        "delta_times_units": guarantee.delta * agreed.sampling.dataset_size,
        "output": "all models released during the training, the final one, and anything computed from them",
    }


def or_none(value: float | None) -> float | None:
    """``value`` for JSON: ``None`` in place of infinity."""
    return None if value is None or math.isinf(value) else value


def reading_facts(ledger: Ledger, planned: Ledger | None, guarantee: Guarantee) -> dict[str, Any]:
    covered = planned if planned is None or ledger.steps < planned.steps else ledger
    found = membership(covered, guarantee, ALARMS)
    return {
        "power_at_false_alarms": {
            f"{alarms:g}": power for alarms, power in zip(ALARMS, found.power.tolist(), strict=True)
        },
        "advantage": found.advantage,
        "by": found.by,
    }


def accounting_facts(ledger: Ledger, planned: Ledger | None, guarantee: Guarantee) -> dict[str, Any]:
    lower = guarantee.epsilon_lower
    width = (
        None
        if lower is None or ledger.is_banded or not guarantee.epsilon or math.isinf(guarantee.epsilon)
        else (guarantee.epsilon - lower) / guarantee.epsilon
    )
    facts: dict[str, Any] = {
        "accountant": guarantee.accountant,
        "certified": "all releases of the run",
        "error_budget": width,
        "assumption": (
            "random allocation with independent draws"
            if ledger.is_allocated
            else "a secret, uniform and independent group of each record, Poisson sampling of the group whose turn it "
            "is, a mean over groups by convexity,"
            if ledger.is_banded
            else "Poisson sampling with independent coins"
        )
        + " and Gaussian noise, both made by the library",
        "clt": None,
    }
    covered = ledger if planned is None or ledger.steps == planned.steps else planned
    if covered.is_cut and math.isfinite(guarantee.epsilon):
        spent = spent_on_the_cap(covered, guarantee)
        facts["cut"] = {"overflow": overflow_of(covered), "delta": spent}
    if planned is None:
        return facts | {"certified": "everything that its filter would have allowed"}
    if ledger.steps < planned.steps:
        facts["certified"] = "the whole plan, for the run ended before it"
    try:
        claimed = GdpClt().epsilon(planned.cut(1, None), guarantee.delta).value
    except AccountingError:
        return facts
    if guarantee.examples_per_person > 1:  # the central limit theorem's estimate is for one example
        return facts
    return facts | {"clt": {"epsilon": claimed, "kind": "an estimate, not a bound"} if math.isfinite(claimed) else None}


def spent_facts(ledger: Ledger, guarantee: Guarantee, points: int) -> list[dict[str, float]]:
    if not points or not len(ledger) or math.isinf(guarantee.epsilon):
        return []
    if ledger.is_allocated:  # of whole epochs only
        ledger = ledger.first(len(ledger) - len(ledger) % int(ledger.steps_per_epoch[0]))
    spent = EpsilonCurve(ledger, guarantee.delta, checkpoints=points, group=guarantee.examples_per_person)
    return [{"step": int(step), "epsilon": spent.at_step(int(step))} for step in spent.steps]
