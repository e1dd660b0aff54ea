"""The schedules of the papers by name: each is a privacy curve and a clip curve."""

import math

from decrescendo.errors import InvalidValue, check_integer, check_real
from decrescendo.plans import curves
from decrescendo.plans.progress import Curve

# What each schedule changes over time; for the formulas see the table of schedules in the documentation.
SCHEDULES: dict[str, str] = {
    "constant": "vanilla DP-SGD: the same noise and clip at every step",
    "growing-mu": "the noise multiplier falls by the factor rho_mu over the run",
    "sensitivity-decay": "the clip norm falls by the factor rho_c over the run",
    "dynamic": "both: Algorithm 2 of Du et al.",
    "optimal": "sensitivity decay with the noise that suits it best, mu_t ~ sqrt(C_t) (Eq. 52-55)",
    "exponential-decay": "the noise falls by the factor rho_mu, exponentially in the epoch (Yu et al.)",
    "time-decay": "the noise falls by the factor rho_mu, as 1/(1 + k epoch) (Yu et al.)",
    "step-decay": "the noise falls by the factor rho_mu in three steps (Yu et al.)",
    "polynomial-decay": "the noise falls by the factor rho_mu, as a cubic in the epoch (Yu et al.)",
}


def schedule_curves(name: str, *, clip: float, rho_mu: float, rho_c: float, epochs: int = 1) -> tuple[Curve, Curve]:
    """The (privacy, clip) curves of the schedule called ``name``.

    The noise decays of Yu et al. 2019 have parameters of their own; here they are set such that the noise of the
    last epoch is that of the first over ``rho_mu``, so that all of them can be compared with growing mu.

    Args:
        name: a key of `SCHEDULES`.
        clip: C_0 > 0.
        rho_mu: > 0; used by growing-mu and dynamic, and by the noise decays, where it must be above 1.
        rho_c: > 0; used by sensitivity-decay, dynamic and optimal.
        epochs: >= 1; used by the noise decays, which move once an epoch (with one epoch they cannot move).

    Raises:
        InvalidValue: an unknown name, or a number outside its range.

    >>> import numpy as np
    >>> privacy, clip = schedule_curves("dynamic", clip=1.5, rho_mu=1.25, rho_c=3.0)
    >>> clip(np.array([0.5, 1.0])).round(3)
    array([0.866, 0.5  ])
    """
    if name not in SCHEDULES:
        raise InvalidValue(f"schedule must be one of {', '.join(SCHEDULES)}, got schedule={name!r}")
    start = check_real("clip", clip, above=0)
    growing = curves.growing_mu(check_real("rho_mu", rho_mu, above=0))
    decaying = curves.sensitivity_decay(start, check_real("rho_c", rho_c, above=0))
    flat = curves.constant(1.0)
    if name.endswith("-decay") and name != "sensitivity-decay":
        return _noise_decay(name, check_real("rho_mu", rho_mu, above=1), epochs), curves.constant(start)
    pairs = {
        "constant": (flat, curves.constant(start)),
        "growing-mu": (growing, curves.constant(start)),
        "sensitivity-decay": (flat, decaying),
        "dynamic": (growing, decaying),
        "optimal": (curves.from_clip(decaying), decaying),
    }
    return pairs[name]


def _noise_decay(name: str, fall: float, epochs: int) -> Curve:
    moves = max(1, check_integer("epochs", epochs, at_least=1) - 1)
    if name == "exponential-decay":
        return curves.exponential_noise_decay(math.log(fall) / moves, epochs=epochs)
    if name == "time-decay":
        return curves.time_noise_decay((fall - 1) / moves, epochs=epochs)
    if name == "step-decay":
        period = max(1, -(-epochs // 4))
        drops = max(1, (epochs - 1) // period)
        return curves.step_noise_decay(fall ** (-1 / drops), period=period, epochs=epochs)
    return curves.polynomial_noise_decay(3.0, z_0=fall, z_end=1.0, period=moves, epochs=epochs)
