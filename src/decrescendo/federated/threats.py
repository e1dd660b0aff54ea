"""What one client's replies are protected by where no trusted server stands between it and the reader."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Gaussian, Guarantee, Ledger, Unit
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.plans.plan import Plan


def local_guarantee(plan: Plan, rounds: int | None = None) -> Guarantee:
    """LOCAL: the exact guarantee for a client's records against a reader of its replies, by its own noise alone.

    Each reply is one un-subsampled Gaussian release of noise multiplier z_t: nothing is amplified, because who reads
    the reply knows that the client took part.

    Args:
        plan: its z_t and its delta.
        rounds: the most rounds that the client answers (`Policy.max_rounds`); the bound takes those with the least
            noise. ``None`` for all rounds of the plan.

    >>> from decrescendo.plans.plan import _EXAMPLE
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> print(local_guarantee(plan, rounds=1))
    (4.378, 1e-05)-DP per client, Gaussian exact
    >>> local_guarantee(plan).epsilon > local_guarantee(plan, rounds=1).epsilon
    True
    """
    return _gaussian(plan.noise_multiplier, rounds, plan.budget.delta)


def server_guarantee(plan: Plan, attendance: Sequence[tuple[int, int]], rounds: int | None = None) -> Guarantee:
    """DISTRIBUTED: the exact guarantee for a client's records against a curious server that knows the cohort.

    In a round with k members of which j replied, the sum that the server sees holds the noise of j shares:
    N(0, s_t^2 j / k), its own top-up protects nobody against itself, and it knows who took part. That is one
    un-subsampled Gaussian release of noise multiplier z_t sqrt(j / k). With h colluding members count j - h instead.

    Args:
        plan: its z_t and its delta.
        attendance: (k, j) of each round so far, the first round first; rounds with j = 0 showed nothing.
        rounds: the most rounds that the client answers; ``None`` for all.

    Raises:
        InvalidValue: more replies than members, or more rounds than the plan has.

    >>> from decrescendo.plans.plan import _EXAMPLE
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> full, half = (server_guarantee(plan, [(4, j), (4, j)]).epsilon for j in (4, 2))
    >>> full == local_guarantee(plan).epsilon, half > full
    (True, True)
    """
    if len(attendance) > plan.steps:
        raise InvalidValue(f"attendance must have at most the plan's {plan.steps} rounds, got {len(attendance)}")
    noise: list[float] = []
    for number, (members, replies) in enumerate(attendance):
        if not 0 <= replies <= members:
            raise InvalidValue(
                f"each round must have 0 <= replies <= members, got {replies} of {members} in round {number + 1}"
            )
        if replies:
            noise.append(float(plan.noise_multiplier[number]) * (replies / members) ** 0.5)
    return _gaussian(np.array(noise), rounds, plan.budget.delta)


def _gaussian(noise: Float[np.ndarray, " n"], rounds: int | None, delta: float) -> Guarantee:
    if rounds is not None:
        noise = np.sort(noise)[: check_integer("rounds", rounds)]
    accountant = Gaussian()
    bound = accountant.epsilon(Ledger.of(noise, 1.0), delta)
    return Guarantee(bound.value, delta, Unit.CLIENT, accountant.name, bound.kind)
