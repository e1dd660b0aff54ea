"""Private training with schedules: any noise and clip curve, with a certified epsilon, on unmodified PyTorch models.

The nouns of a run are named here. Everything else is reached through its room: ``dc.curves.growing_mu``,
``dc.accounting.Pld``, ``dc.clipping.Engine``, ``dc.optim.AdamBC``, ``dc.training.Statement``. Rooms and names load when
they are first touched: the accounting half never loads torch.

>>> import decrescendo as dc
>>> plan = dc.calibrate(
...     dc.Budget(epsilon=1.2, delta=1e-6),
...     dc.PoissonSampling(dataset_size=60_000, expected_batch_size=250),
...     steps=100, privacy=dc.curves.growing_mu(1.25), clip=dc.curves.sensitivity_decay(1.5, rho_c=3.3),
... )
>>> plan.guarantee.epsilon <= 1.2
True
"""

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo import accounting as accounting
    from decrescendo import audit as audit
    from decrescendo import base as base
    from decrescendo import clipping as clipping
    from decrescendo import distributed as distributed
    from decrescendo import doctor as doctor
    from decrescendo import errors as errors
    from decrescendo import federated as federated
    from decrescendo import integrations as integrations
    from decrescendo import optim as optim
    from decrescendo import plans as plans
    from decrescendo import report as report
    from decrescendo import row_independence as row_independence
    from decrescendo import training as training
    from decrescendo.accounting import Budget, Guarantee, Ledger, Release, Unit
    from decrescendo.base import Secure, Streams
    from decrescendo.clipping import Telemetry
    from decrescendo.integrations import hf as hf
    from decrescendo.optim import NoisyMean, apply, privatise
    from decrescendo.plans import (
        Plan,
        PoissonSampling,
        RandomAllocation,
        StratifiedPoissonSampling,
        calibrate,
        curves,
    )
    from decrescendo.training import Checkpoints, Run, Store, Trainer, train
    from decrescendo.training import steering as steering

__version__ = "0.1.0"

_HOMES = {
    "accounting": ("Budget", "Unit", "Release", "Ledger", "Guarantee"),
    "base": ("Streams", "Secure"),
    "clipping": ("Telemetry",),
    "plans": (
        "PoissonSampling",
        "RandomAllocation",
        "StratifiedPoissonSampling",
        "curves",
        "calibrate",
        "Plan",
    ),
    "optim": ("privatise", "NoisyMean", "apply"),
    "training": ("train", "Trainer", "Run", "Store", "Checkpoints", "steering"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = (
    "accounting", "audit", "base", "clipping", "distributed", "doctor", "errors", "federated", "hf", "integrations",
    "optim", "plans", "report", "row_independence", "steering", "training",
)  # fmt: skip

__all__ = [
    "Budget", "Unit", "PoissonSampling", "RandomAllocation", "StratifiedPoissonSampling", "curves", "calibrate", "Plan",
    "Release", "Ledger", "Guarantee", "Streams", "Secure", "privatise", "NoisyMean", "apply", "train", "Trainer", "Run",
    "Store", "Checkpoints", "Telemetry",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f"decrescendo.{_HOME_OF[name]}"), name)
    if name == "hf":
        return import_module("decrescendo.integrations.hf")
    if not name.startswith("_") and find_spec(f"decrescendo.{name}") is not None:
        return import_module(f"decrescendo.{name}")  # a room: whatever lies in this folder
    raise AttributeError(f"module 'decrescendo' has no attribute {name!r}{_elsewhere(name)}")


def _elsewhere(name: str) -> str:
    """Where a name is that lies in a room, and not at the top."""
    for room in () if name.startswith("_") else _ROOMS:
        place = "decrescendo.integrations.hf" if room == "hf" else f"decrescendo.{room}"
        with suppress(ImportError):
            if name in getattr(import_module(place), "__all__", ()):
                return f". It is dc.{room}.{name}"
    return ""


def __dir__() -> list[str]:
    return sorted((*__all__, *_ROOMS))
