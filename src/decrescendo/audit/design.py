"""What to guess, decided before the run from public facts alone: the plan, simulated."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from decrescendo.audit.curve import PrivacyCurve
from decrescendo.audit.likelihood import participation_evidence
from decrescendo.audit.one_run_bound import one_run_epsilon
from decrescendo.audit.threshold import choose_threshold
from decrescendo.plans.plan import Plan

_SHARES = 24
# A training that does what its plan says is within its curve at any threshold: chosen for records that pull harder.
_SUSPECTED = 1.5
Canaries: TypeAlias = Float[np.ndarray, " canaries"]


@dataclass(frozen=True, slots=True)
class Design:
    """How many canaries are guessed to be in (those with most evidence) and out, and a threshold on the evidence.

    Args:
        included: guessed in.
        excluded: guessed out.
        threshold: for the errors that are compared with the privacy curve.
    """

    included: int
    excluded: int
    threshold: float

    def right(self, evidence: Canaries, coins: Canaries) -> int:
        """How many guesses are right; ``coins`` are 1 for canaries that were included."""
        order = np.argsort(-evidence, kind="stable")
        return int(coins[order[: self.included]].sum() + (1 - coins[order[len(order) - self.excluded :]]).sum())


def design(plan: Plan, canaries: int, confidence: float) -> Design:
    """What would be best for a training that does exactly what ``plan`` says, by one simulation with a fixed seed.

    >>> import decrescendo as dc
    >>> budget, sampling = dc.Budget(4.0, 1e-5), dc.PoissonSampling(900, 90)
    >>> plan = dc.calibrate(budget, sampling, steps=4, privacy=[1.0] * 4, clip=[1.0] * 4)
    >>> made = design(plan, 200, 0.95)
    >>> 0 < made.included + made.excluded <= 200
    True
    """
    coins, evidence = _simulated(plan, canaries, 1.0)
    order = np.argsort(-evidence, kind="stable")
    # Right guesses among the first k, and among the last k.
    first, last = np.cumsum(coins[order]), np.cumsum(1 - coins[order[::-1]])
    sizes = np.unique(np.geomspace(1, canaries / 2, _SHARES).astype(np.int64))
    pairs = [(k, 0) for k in sizes] + [(0, k) for k in sizes] + [(k, k) for k in sizes]
    worth = [
        one_run_epsilon(
            canaries, int(i + o), int((first[i - 1] if i else 0) + (last[o - 1] if o else 0)),
            plan.budget.delta, confidence,
        )
        for i, o in pairs
    ]  # fmt: skip
    included, excluded = pairs[int(np.argmax(worth))]
    curve = PrivacyCurve(plan.ledger)
    coins, evidence = _simulated(plan, canaries, _SUSPECTED)
    threshold = choose_threshold(
        evidence[coins == 0], evidence[coins == 1], lambda rates: curve.excess(*rates.upper(0.5))
    )
    return Design(int(included), int(excluded), threshold)


def _simulated(plan: Plan, canaries: int, pull: float) -> tuple[Canaries, Canaries]:
    """Coins and evidence of a run by the plan with records that pull by ``pull`` C; always the same."""
    rng = np.random.default_rng(0)
    coins = rng.integers(2, size=canaries).astype(np.float64)
    evidence = np.zeros(canaries)
    rates = plan.sampling.rates(plan.steps).tolist()
    for p, z in zip(rates, plan.noise_multiplier.tolist(), strict=True):
        drawn = coins * (rng.random(canaries) < p)
        evidence += participation_evidence(pull * drawn + z * rng.standard_normal(canaries), p, z)
    return coins, evidence
