"""Evaluates the curve that a calibration scales, and checks it if each record takes part once an epoch."""

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Accountant, Allocated, Truncated
from decrescendo.accounting.truncated import of_epochs
from decrescendo.errors import InvalidValue
from decrescendo.plans.curves import evaluate
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.sampling import PoissonSampling, RandomAllocation
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling


def check_epochs(
    sampling: PoissonSampling | RandomAllocation | StratifiedPoissonSampling,
    given: Accountant,
    batch: CurveOrValues | None,
) -> None:
    """If each record takes part once an epoch, require the accountant with a theorem for it, and equal batch sizes."""
    if isinstance(sampling, RandomAllocation) and not isinstance(of_epochs(given), Allocated | Truncated):
        raise InvalidValue(
            "accountant must be Allocated for records that each take part once an epoch, got "
            f"{given.name}, which accounts Poisson batches only. Leave it out"
        )
    if isinstance(sampling, RandomAllocation) and batch is not None:
        raise InvalidValue(
            "batches of records that each take part once an epoch must have one expected size, got batch=. The "
            "theorem is for equal chances of all steps of an epoch: leave batch out, or take PoissonSampling"
        )


def relative_privacy(
    privacy: CurveOrValues | str | None,
    noise: CurveOrValues | str | None,
    sampling: PoissonSampling | RandomAllocation | StratifiedPoissonSampling,
    steps: int,
) -> Float[np.ndarray, " steps"]:
    """Relative mu_t at every step, from the one curve that was given."""
    if noise is None:
        return _at_steps("privacy", "constant" if privacy is None else privacy, sampling, steps)
    if privacy is not None:
        raise InvalidValue("at most one of privacy and noise must be given, got both: each is 1 over the other")
    with np.errstate(over="ignore"):  # evaluated again: of noise near zero 1/z is no number
        return evaluate("privacy", 1 / _at_steps("noise", noise, sampling, steps), steps)


def _at_steps(
    name: str,
    curve: CurveOrValues | str,
    sampling: PoissonSampling | RandomAllocation | StratifiedPoissonSampling,
    steps: int,
) -> Float[np.ndarray, " steps"]:
    """A curve at every step; where records are allocated, constant within each epoch, or an error."""
    if not isinstance(sampling, RandomAllocation):
        return evaluate(name, curve, steps)
    each = sampling.steps_per_epoch
    epochs = steps // each
    if callable(curve):
        return np.repeat(evaluate(name, curve, epochs), each)
    found = evaluate(name, curve, steps)
    moving = np.flatnonzero((found.reshape(epochs, each) != found[::each, None]).any(1))
    if moving.size:
        raise InvalidValue(
            f"{name} must be constant within each epoch of {each} steps, got values that move within epoch "
            f"{moving[0] + 1}. The theorem is for equal noise in all steps of an epoch: change it between epochs, "
            "or take PoissonSampling"
        )
    return found
