"""A plan in words, for people."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import rounded, row_of
from decrescendo.accounting.truncated import spent_on_the_cap
from decrescendo.plans.sampling import RandomAllocation
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan


def line_of(plan: "Plan") -> str:
    """The plan in one line."""
    z, c = span(plan.noise_multiplier), span(plan.clip_norm)
    b = f" · B {span(plan.batch_size)}" if isinstance(plan.sampling.expected_batch_size, np.ndarray) else ""
    b += f" · {plan.bands} bands" if plan.bands > 1 else ""
    cap = plan.sampling.max_batch_size
    b += "" if cap is None else f" · at most {cap} a batch"
    return f"{plan.guarantee.promise} · z {z} · C {c}{b} · {plan.steps} steps"


def described(plan: "Plan") -> str:
    """The plan in a few lines, see `Plan.describe`."""
    sampling, noise = plan.sampling, plan.noise_std
    z = "multiplier" if plan.bands == 1 else "1 over the norms of the strategy's columns"
    std = "z_t C_t" if plan.bands == 1 else "standard deviation"
    epsilon, delta = (rounded(part, "up", 6) for part in (plan.budget.epsilon, plan.budget.delta))
    unit = row_of(plan.budget)
    rows = [
        (
            "Promise",
            f"({epsilon}, {delta})-DP for adding or removing one {plan.budget.protected}"
            if plan.private
            else "none: there is NO PRIVACY without noise",
        ),
        *_large_delta(plan),
        ("Certified", str(plan.guarantee)),
        ("Sampling", f"each of {sampling.dataset_size} {unit}s {_drawn(plan)}"),
        *_cut(plan),
        ("Steps", str(plan.steps)),
        (
            "Noise",
            f"z_t {span(plan.noise_multiplier)} ({z}); {std} {span(noise)} on the sum; "
            f"{span(noise / plan.batch_size)} on the mean",
        ),
        *_correlated(plan),
        ("Clipping", f"C_t {span(plan.clip_norm)}"),
    ]
    return "\n".join(f"{name:<11}{text}" for name, text in rows)


def _drawn(plan: "Plan") -> str:
    size = f"({span(plan.batch_size, 6)} expected a batch)"
    if isinstance(plan.sampling, StratifiedPoissonSampling):
        rates = ", ".join(f"{name} {rate:.6g}" for name, rate in plan.sampling.stratum_rates.items())
        return f"with the probability of its stratum a step: {rates} {size}; accounted at the largest"
    if isinstance(plan.sampling, RandomAllocation):
        return f"once an epoch of {plan.sampling.steps_per_epoch} steps, in one drawn evenly {size}"
    if plan.bands > 1:
        rates = span(plan.sampling.rates(plan.steps), 6)
        return f"in one of {plan.bands} secret groups, which take turns, with probability {rates} at its turn {size}"
    return f"with probability {span(plan.sampling.rates(plan.steps), 6)} a step {size}"


def _correlated(plan: "Plan") -> list[tuple[str, str]]:
    if plan.bands == 1:
        return []
    return [
        (
            "Correlated",
            f"{plan.bands} bands: each step takes off part of the noise of the {plan.bands - 1} before it",
        )
    ]


def _large_delta(plan: "Plan") -> list[tuple[str, str]]:
    """A warning if delta is large: a mechanism that exposes a record with probability delta keeps the promise."""
    times = plan.budget.delta * plan.sampling.dataset_size
    many = f"times the {plan.sampling.dataset_size} {row_of(plan.budget)}s is {rounded(times, 'up', 3)}"
    told = f"{many}: some may be laid open, and it should be well below 1"
    return [("Delta", told)] if plan.private and times >= 1 else []


def _cut(plan: "Plan") -> list[tuple[str, str]]:
    cap = plan.sampling.max_batch_size
    if cap is None:
        return []
    share = spent_on_the_cap(plan.ledger, plan.guarantee) / plan.guarantee.delta if plan.private else 0.0
    cost = f"costs {rounded(share, 'up', 2)} of delta" if plan.private else "no privacy to pay for it with"
    return [("Cut", f"to {cap} of a batch that has more, by an even choice: {cost}")]


def span(values: Float[np.ndarray, " steps"], digits: int = 4) -> str:
    first, last, low, high = values[0], values[-1], values.min(), values.max()
    if low == high:
        return f"{first:.{digits}g}"
    monotone = {first, last} == {low, high}
    ends = f"{first:.{digits}g} -> {last:.{digits}g}"
    return ends if monotone else f"{ends} (from {low:.{digits}g} to {high:.{digits}g})"
