"""Schedules of somebody's own, from a file, beside those of the paper."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from decrescendo import Plan
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo_papers.experiments.methods import DYNAMIC, VANILLA
from decrescendo_papers.experiments.perform import plan_of
from decrescendo_papers.experiments.table import base_spec


def beside(task: str, epsilon: float, steps: int | None = None) -> tuple[Plan, Plan]:
    """The plans of vanilla DP-SGD and of the dynamic method, for rows, with the paper's settings of ``task``.

    >>> vanilla, dynamic = beside("digits", 1.2, steps=20)
    >>> vanilla.budget == dynamic.budget, vanilla.steps, float(vanilla.clip_norm[0])
    (True, 20, 1.0)
    """
    # One image a client is one row: no cohort is simulated for it.
    changed = {"records": 0} if steps is None else {"records": 0, "steps": steps}
    vanilla, dynamic = (
        plan_of(base_spec(task, epsilon=epsilon, accountant="pld", settings={**row.settings, **changed}))
        for row in (VANILLA, DYNAMIC)
    )
    return vanilla, dynamic


def plans_of(name: str, vanilla: Plan) -> dict[str, Plan]:
    """What the function ``name``, FILE.py:FUNCTION, makes of the budget, sampling and steps of ``vanilla``.

    Raises:
        InvalidValue: no such file or function, no plan, a name that is taken, a plan for other rows or with less
            privacy than the budget allows.
        InvalidType: something else than plans by name.
    """
    path, colon, function = name.rpartition(":")
    if not (colon and Path(path).is_file()):
        raise InvalidValue(f"--curve must be FILE.py:FUNCTION with a file that is there, got {name!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise InvalidValue(f"--curve must name a file of Python, got {path!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Any = getattr(module, function, None)
    if not callable(made):
        raise InvalidValue(f"--curve must name a function of {path}, got {function!r}")
    found: Any = made(vanilla.budget, vanilla.sampling, vanilla.steps)
    if not isinstance(found, Mapping) or not all(isinstance(plan, Plan) for plan in found.values()):
        raise InvalidType(f"{name} must return plans by name, got {type(found).__name__}")
    plans = {str(key): plan for key, plan in cast("Mapping[object, Plan]", found).items()}
    if not plans or plans.keys() & {"vanilla", "dynamic"}:
        raise InvalidValue(
            f"{name} must return a plan or more, and none called vanilla or dynamic, got {', '.join(plans) or 'none'}"
        )
    for key, plan in plans.items():
        _check_fair(key, plan, vanilla)
    return plans


def _check_fair(name: str, plan: Plan, vanilla: Plan) -> None:
    """A comparison is under one budget, for the same rows; batches and steps may be others."""
    budget, given = vanilla.budget, plan.guarantee
    rows = plan.sampling.dataset_size, vanilla.sampling.dataset_size
    if rows[0] != rows[1]:
        raise InvalidValue(f"plan {name!r} must be for {rows[1]} rows, got dataset_size={rows[0]}")
    if (given.unit, given.kind) != (budget.unit, vanilla.guarantee.kind) or not (
        given.epsilon <= budget.epsilon and given.delta <= budget.delta
    ):
        raise InvalidValue(f"plan {name!r} must be within {budget}, by a certified bound, got {given}")
