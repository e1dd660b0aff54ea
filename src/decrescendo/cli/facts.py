"""Plans as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan


def plan_facts(plan: "Plan") -> dict[str, Any]:
    """A plan for JSON, with the ends of its schedules; the arrays are in the saved file."""
    from decrescendo.accounting.budget import guarantee_facts
    from decrescendo.plans import StratifiedPoissonSampling, sampling

    schedule, moving = plan.schedule, plan.batch_size.min() < plan.batch_size.max()
    return {
        "budget": {
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "unit": str(plan.budget.unit),
            **({"examples_per_person": several} if (several := plan.budget.examples_per_person) > 1 else {}),
        },
        "dataset_size": plan.sampling.dataset_size,
        "expected_batch_size": [float(plan.batch_size[0]), float(plan.batch_size[-1])]
        if moving
        else plan.sampling.expected_batch_size,
        "max_batch_size": plan.sampling.max_batch_size,
        **(
            {"steps_per_epoch": plan.sampling.steps_per_epoch}
            if isinstance(plan.sampling, sampling.RandomAllocation)
            else {}
        ),
        **(
            {"strata": {name: list(numbers) for name, numbers in plan.sampling.strata.items()}}
            if isinstance(plan.sampling, StratifiedPoissonSampling)
            else {}
        ),
        **({"bands": plan.bands} if plan.bands > 1 else {}),
        "steps": plan.steps,
        "noise_multiplier": [float(schedule.noise_multiplier[0]), float(schedule.noise_multiplier[-1])],
        "clip_norm": [float(schedule.clip_norm[0]), float(schedule.clip_norm[-1])],
        "guarantee": guarantee_facts(plan.guarantee),
    }
