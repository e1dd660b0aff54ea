"""Training by a plan, the only way from raw rows to weights; and everything that a run leaves behind.

==========================  ================================================================================
`train`                     the loop most people want
`Trainer`, `StepResult`     its steps, for people who keep their own loop
`Run`, `Statement`          what came out: a folder of it, and what may be said of it
`Assumption`                what must be true for its guarantee to hold, beside what was checked
`Store`, `Checkpoints`      a ledger on disk for one data set; trainings that survive a crash
`Adaptive`, `steering`      noise and clipping decided as the run goes
`Task`, `find_task`, `fit`  what the command line trains, by name
`compare`                   plans compared on public data
`tune`, `search_privately`  settings found on public data, or on the task's own at a price
==========================  ================================================================================

Names load when they are first touched: a store and a statement need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo.training import digits, steering
    from decrescendo.training.batch_norm import without_batch_norm
    from decrescendo.training.checkpoint import Checkpoint, Checkpoints, Releases, Stateful
    from decrescendo.training.comparing import Comparison, compare
    from decrescendo.training.data import Rows, rows
    from decrescendo.training.evaluate import accuracy, mean_loss
    from decrescendo.training.fitting import (
        OPTIMIZERS,
        Decay,
        cross_entropy,
        decay_scheduler,
        fit,
        initialised,
        make_optimizer,
        train_task,
    )
    from decrescendo.training.frozen_state import FrozenStateGuard
    from decrescendo.training.loop import train
    from decrescendo.training.private_tuning import PrivateSearch, parse_trials, save_winner, search_privately
    from decrescendo.training.progress import Callback, Progress
    from decrescendo.training.run import Run, cpu_weights, versions
    from decrescendo.training.settings import Settings
    from decrescendo.training.source import check_promise
    from decrescendo.training.space import (
        Among,
        Between,
        Space,
        default_space,
        free_space,
        parse_fixed,
        parse_moving,
    )
    from decrescendo.training.statement import Assumption, Declaration, Provenance, Statement
    from decrescendo.training.steering import Adaptive
    from decrescendo.training.store import Store
    from decrescendo.training.task import Task, find_task
    from decrescendo.training.trainer import StepResult, Trainer
    from decrescendo.training.tuning import Recipe, tune

_HOMES = {
    "checkpoint": ("Checkpoint", "Checkpoints", "Releases", "Stateful"),
    "comparing": ("Comparison", "compare"),
    "evaluate": ("accuracy", "mean_loss"),
    "fitting": (
        "OPTIMIZERS", "Decay", "cross_entropy", "decay_scheduler", "fit", "initialised", "make_optimizer", "train_task",
    ),
    "loop": ("train",),
    "progress": ("Callback", "Progress"),
    "data": ("Rows", "rows"),
    "run": ("Run", "cpu_weights", "versions"),
    "private_tuning": ("PrivateSearch", "parse_trials", "save_winner", "search_privately"),
    "settings": ("Settings",),
    "space": ("Among", "Between", "Space", "default_space", "free_space", "parse_fixed", "parse_moving"),
    "tuning": ("Recipe", "tune"),
    "source": ("check_promise",),
    "statement": ("Assumption", "Provenance", "Declaration", "Statement"),
    "steering": ("Adaptive",),
    "store": ("Store",),
    "task": ("Task", "find_task"),
    "trainer": ("StepResult", "Trainer"),
    "frozen_state": ("FrozenStateGuard",),
    "batch_norm": ("without_batch_norm",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("digits", "steering")

__all__ = [
    "train", "Trainer", "StepResult", "Progress", "Callback", "Run", "Store", "Checkpoint", "Checkpoints", "Releases",
    "Stateful", "Statement", "Assumption", "Provenance", "Declaration", "Adaptive", "steering", "Task", "find_task",
    "fit", "train_task", "make_optimizer", "OPTIMIZERS", "decay_scheduler", "Decay", "initialised", "cross_entropy",
    "digits", "Rows", "rows", "accuracy", "mean_loss", "cpu_weights", "versions", "FrozenStateGuard", "check_promise",
    "Settings", "Space", "Between", "Among", "default_space", "free_space", "compare", "Comparison", "tune", "Recipe",
    "PrivateSearch", "search_privately", "save_winner", "parse_trials", "parse_fixed", "parse_moving",
    "without_batch_norm",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = found
        return found
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
