"""Facts of a privacy statement: how a run samples, clips, adds noise."""

from typing import Any

import numpy as np

from decrescendo.accounting import Ledger, Unit
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import RandomAllocation, Sampling
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training.statement.provenance import Provenance

FOLLOWED = (
    ". C_t followed the norms of the gradients, as their distribution was released in one vector with the sums of "
    "earlier steps"
)


def mechanism_facts(agreed: Agreement, ledger: Ledger, row: str, unit: str, clipping: str) -> dict[str, Any]:
    """How batches are drawn, gradients are clipped and noise is added."""
    sampling = agreed.sampling
    return {
        "sampling": f"{_how(sampling, row)}; batches of any size, the empty ones too, are noised and "
        "counted; " + _cut(sampling),
        **_drawn(sampling, ledger.steps),
        "max_batch_size": sampling.max_batch_size,
        "units": sampling.dataset_size,
        **({"row": row} if row != unit else {}),
        "clipping": clipping,
        "noise": _noise(agreed)
        if any(release.noise_multiplier for release in ledger for _ in range(release.count))
        else "NONE: z_t is 0, and nothing is protected; the sum is divided by the expected batch size",
    }


def _noise(agreed: Agreement) -> str:
    own = (
        "Gaussian of standard deviation z_t C_t on each coordinate of the sum, which is divided by the expected batch "
        "size"
    )
    if not isinstance(agreed.sampling, CyclicPoissonSampling):
        return own
    return (
        f"Gaussian, correlated over {agreed.sampling.bands} steps: C_t n_t on each coordinate of the sum, which is "
        "divided by the expected batch size, with S n independent standard normal, S the banded strategy of the plan, "
        "and z_t one over the norm of its column t"
    )


def clipping_text(row: str, provenance: Provenance | None) -> str:
    told = "update" if row == Unit.CLIENT else "gradient"
    how = f"each {row}'s {told} to C_t in the joint L2 norm of all trained parameters"
    if provenance is not None and provenance.gamma:
        how = (
            f"automatic: each {row}'s {told} g counts as C_t g / (|g| + {provenance.gamma:g}), with |g| the joint L2 "
            "norm over all trained parameters"
        )
    return f"{how}; one that is not finite counts as zero"


def _how(sampling: Sampling, row: str) -> str:
    if isinstance(sampling, RandomAllocation):
        return (
            f"random allocation: each {row} takes part once an epoch of {sampling.steps_per_epoch} steps, in one that "
            "a fair and independent draw of its own chooses, not by the place in a shuffled list"
        )
    if isinstance(sampling, CyclicPoissonSampling):
        return (
            f"cyclic Poisson: each {row} draws one of {sampling.bands} groups once, in secret and by a fair coin of "
            f"its own; at step t each {row} of group t mod {sampling.bands} takes part by an independent coin"
        )
    if isinstance(sampling, StratifiedPoissonSampling):
        rates = ", ".join(f"{name} {rate:.6g}" for name, rate in sampling.stratum_rates.items())
        return (
            f"stratified Poisson: each {row} takes part in each step by an independent coin of its stratum's "
            f"probability ({rates}); all are accounted at the largest. Assumed: the stratum of each {row} follows from "
            "it alone"
        )
    return f"Poisson: each {row} takes part in each step by an independent coin"


def _cut(sampling: Sampling) -> str:
    cap = sampling.max_batch_size
    if cap is None:
        return "batches are not truncated"
    return f"of a batch with more than {cap} units, {cap} are kept, chosen uniformly"


def _drawn(sampling: Sampling, steps: int) -> dict[str, Any]:
    """One sample rate and batch size if they are constant, else one per step."""
    if isinstance(sampling.expected_batch_size, np.ndarray):
        return {
            "sample_rate": sampling.rates(steps).tolist(),
            "expected_batch_size": sampling.sizes(steps).tolist(),
        }
    return {"sample_rate": sampling.sample_rate, "expected_batch_size": sampling.expected_batch_size}
