"""Private training with schedules: any noise and clip curve, certified exactly, on unmodified PyTorch models.

Values and functions are reached from here, the rest from its room (``dc.accounting``, ``dc.clipping``, ``dc.plans``,
...). Everything loads when it is first touched: the accounting half never loads torch.

>>> import decrescendo as dc
>>> plan = dc.calibrate(
...     dc.Budget(epsilon=1.2, delta=1e-6),
...     dc.PoissonSampling(dataset_size=60_000, expected_batch_size=250),
...     steps=100, privacy=dc.curves.growing_mu(1.25), clip=dc.curves.sensitivity_decay(1.5, rho_c=3.3),
... )
>>> plan.guarantee.epsilon <= 1.2
True
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo import (
        accounting,
        audit,
        base,
        clipping,
        errors,
        federated,
        optim,
        plans,
        report,
        training,
    )
    from decrescendo.accounting import Bound, Budget, Guarantee, Ledger, Release, Unit
    from decrescendo.base import Secure, Streams
    from decrescendo.optim import AdamBC, MomentumBC, NoisyMean, apply, privatise
    from decrescendo.plans import (
        Curve,
        Plan,
        PoissonSampling,
        Schedule,
        calibrate,
        calibrate_selection,
        curves,
    )
    from decrescendo.plans.curves import (
        constant,
        cosine,
        curvature,
        exponential,
        exponential_noise_decay,
        from_clip,
        growing_mu,
        influence,
        join,
        linear,
        polynomial_noise_decay,
        sensitivity_decay,
        step_noise_decay,
        steps,
        time_noise_decay,
        values,
    )
    from decrescendo.training import (
        Checkpoints,
        Conduct,
        Declaration,
        Run,
        Statement,
        Store,
        Task,
        Trainer,
        accuracy,
        steering,
        train,
    )

__version__ = "0.1.0"

_HOMES = {
    "accounting": ("Budget", "Guarantee", "Bound", "Unit", "Release", "Ledger"),
    "base": ("Streams", "Secure"),
    "plans": ("Curve", "PoissonSampling", "Schedule", "Plan", "calibrate", "calibrate_selection", "curves"),
    "plans.curves": (
        "constant", "linear", "exponential", "cosine", "steps", "join", "values", "growing_mu", "sensitivity_decay",
        "from_clip", "curvature", "influence", "exponential_noise_decay", "step_noise_decay", "time_noise_decay",
        "polynomial_noise_decay",
    ),
    "optim": ("NoisyMean", "privatise", "apply", "AdamBC", "MomentumBC"),
    "training": (
        "Run", "train", "Trainer", "Store", "Checkpoints", "Conduct", "Declaration", "Statement", "accuracy", "Task",
        "steering",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "accounting", "audit", "base", "clipping", "errors", "federated", "optim", "plans", "report", "training",
    "curves", "steering",
    "Budget", "Guarantee", "Bound", "Unit", "PoissonSampling",
    "Curve", "constant", "linear", "exponential", "cosine", "steps", "join", "values", "growing_mu",
    "sensitivity_decay", "from_clip", "curvature", "influence", "exponential_noise_decay", "step_noise_decay",
    "time_noise_decay", "polynomial_noise_decay",
    "Schedule", "Release", "Ledger", "Plan", "calibrate", "calibrate_selection", "Streams", "Secure",
    "NoisyMean", "privatise", "apply", "AdamBC", "MomentumBC", "accuracy", "Run", "train", "Trainer", "Store",
    "Checkpoints", "Conduct", "Declaration", "Statement", "Task",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f"decrescendo.{_HOME_OF[name]}"), name)
    if not name.startswith("_") and find_spec(f"decrescendo.{name}") is not None:
        return import_module(f"decrescendo.{name}")  # a room: whatever lies in this folder
    raise AttributeError(f"module 'decrescendo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
