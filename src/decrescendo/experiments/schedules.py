"""The schedules of the papers by name: each is a privacy curve and a clip curve."""

from decrescendo import curves
from decrescendo.curves import Curve
from decrescendo.errors import InvalidValue, check_real

# What each moves; see the table of schedules in the documentation for the formulas.
SCHEDULES: dict[str, str] = {
    "constant": "vanilla DP-SGD: the same noise and clip at every step",
    "growing-mu": "the noise multiplier falls by the factor rho_mu over the run",
    "sensitivity-decay": "the clip norm falls by the factor rho_c over the run",
    "dynamic": "both: Algorithm 2 of Du et al.",
    "optimal": "sensitivity decay with the noise that suits it best, mu_t ~ sqrt(C_t) (Eq. 52-55)",
}


def schedule_curves(name: str, *, clip: float, rho_mu: float, rho_c: float) -> tuple[Curve, Curve]:
    """The (privacy, clip) curves of the schedule called ``name``.

    Args:
        name: a key of `SCHEDULES`.
        clip: C_0 > 0.
        rho_mu: > 0; used by growing-mu and dynamic.
        rho_c: > 0; used by sensitivity-decay, dynamic and optimal.

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
    pairs = {
        "constant": (flat, curves.constant(start)),
        "growing-mu": (growing, curves.constant(start)),
        "sensitivity-decay": (flat, decaying),
        "dynamic": (growing, decaying),
        "optimal": (curves.from_clip(decaying), decaying),
    }
    return pairs[name]
