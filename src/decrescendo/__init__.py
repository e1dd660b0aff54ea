"""Private training with schedules: any noise and clip curve, certified exactly, on unmodified PyTorch models.

Values and functions are reached from here, the rest from its room (``dc.accounting``, ``dc.clipping``, ``dc.data``,
...). Everything loads when it is first touched: the accounting half never loads torch.

>>> import decrescendo as dc
>>> plan = dc.calibrate(
...     dc.Budget(epsilon=1.2, delta=1e-6),
...     dc.PoissonSampling(dataset_size=60_000, expected_batch_size=250),
...     steps=100, privacy=dc.growing_mu(1.25), clip=dc.sensitivity_decay(1.5, rho_c=3.3),
... )
>>> plan.guarantee.epsilon <= 1.2
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo import accounting, audit, clipping, curves, data, errors, models, report
    from decrescendo.budget import Bound, Budget, Guarantee, Unit
    from decrescendo.calibration import calibrate, calibrate_selection
    from decrescendo.checkpoint import Checkpoints
    from decrescendo.curves import (
        Curve,
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
    from decrescendo.evaluate import accuracy
    from decrescendo.ledger import Ledger, Release
    from decrescendo.noise import NoisyMean, privatise
    from decrescendo.optim import AdamBC, MomentumBC, apply
    from decrescendo.plan import Plan
    from decrescendo.rng import Secure, Streams
    from decrescendo.run import Run
    from decrescendo.sampling import PoissonSampling
    from decrescendo.schedule import Schedule
    from decrescendo.statement import Conduct, Declaration, Statement
    from decrescendo.store import Store
    from decrescendo.training import Trainer, train

__version__ = "0.1.0"

_ROOMS = ("accounting", "audit", "clipping", "curves", "data", "errors", "models", "report")
_HOMES = {
    "budget": ("Budget", "Guarantee", "Bound", "Unit"),
    "sampling": ("PoissonSampling",),
    "curves": (
        "Curve", "constant", "linear", "exponential", "cosine", "steps", "join", "values", "growing_mu",
        "sensitivity_decay", "from_clip", "curvature", "influence", "exponential_noise_decay", "step_noise_decay",
        "time_noise_decay", "polynomial_noise_decay",
    ),
    "schedule": ("Schedule",),
    "ledger": ("Release", "Ledger"),
    "plan": ("Plan",),
    "calibration": ("calibrate", "calibrate_selection"),
    "rng": ("Streams", "Secure"),
    "noise": ("NoisyMean", "privatise"),
    "optim": ("apply", "AdamBC", "MomentumBC"),
    "evaluate": ("accuracy",),
    "run": ("Run",),
    "statement": ("Conduct", "Declaration", "Statement"),
    "training": ("train", "Trainer"),
    "store": ("Store",),
    "checkpoint": ("Checkpoints",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "accounting", "audit", "clipping", "curves", "data", "errors", "models", "report",
    "Budget", "Guarantee", "Bound", "Unit", "PoissonSampling",
    "Curve", "constant", "linear", "exponential", "cosine", "steps", "join", "values", "growing_mu",
    "sensitivity_decay", "from_clip", "curvature", "influence", "exponential_noise_decay", "step_noise_decay",
    "time_noise_decay", "polynomial_noise_decay",
    "Schedule", "Release", "Ledger", "Plan", "calibrate", "calibrate_selection", "Streams", "Secure",
    "NoisyMean", "privatise", "apply", "AdamBC", "MomentumBC", "accuracy", "Run", "train", "Trainer", "Store",
    "Checkpoints", "Conduct", "Declaration", "Statement",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"decrescendo.{name}")
    if name in _HOME_OF:
        return getattr(import_module(f"decrescendo.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'decrescendo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
