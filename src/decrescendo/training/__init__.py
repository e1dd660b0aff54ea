"""Differentially private training by a plan, from raw rows to released weights, and the files that a run
leaves.

==========================  ================================================================================
`train`                     the loop most people want
`Trainer`, `StepResult`     its steps, for people who keep their own loop
`Run`, `Statement`          what came out: a folder of it, and what may be said of it
`Assumption`                what must be true for its guarantee to hold, beside what was checked
`Store`, `Checkpoints`      a ledger on disk for one data set; trainings that survive a crash
`Adaptive`, `steering`      noise and clipping decided as the run goes
`Reading`, `smoothed`       what a run's telemetry says of loss, accuracy and gradient norms, with standard errors
`Task`, `find_task`, `fit`  what the command line trains, by name
`compare`                   plans compared on public data
`tune`, `search_privately`  settings found on public data, or on the task's own at a price
==========================  ================================================================================

Names are imported on first use: a store and a statement need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo.training import digits, steering
    from decrescendo.training.data.by_person import by_person, person_loss
    from decrescendo.training.data.rows import Rows, rows
    from decrescendo.training.loop.frozen_state import FrozenStateGuard
    from decrescendo.training.loop.loop import train
    from decrescendo.training.loop.progress import Callback, Progress
    from decrescendo.training.loop.source import check_promise
    from decrescendo.training.loop.step_result import StepResult
    from decrescendo.training.loop.trainer import Trainer
    from decrescendo.training.persistence.checkpoint import Checkpoint, Checkpoints, Releases, Stateful
    from decrescendo.training.run import Run, cpu_weights, versions
    from decrescendo.training.search.comparing import compare
    from decrescendo.training.search.comparison import Comparison
    from decrescendo.training.search.comparison_runs import ComparedRun
    from decrescendo.training.search.private_search import PrivateSearch, parse_trials
    from decrescendo.training.search.private_tuning import search_privately
    from decrescendo.training.search.recipe import Recipe
    from decrescendo.training.search.settings import Settings
    from decrescendo.training.search.space import (
        Among,
        Between,
        Space,
        default_space,
        free_space,
        parse_fixed,
        parse_moving,
    )
    from decrescendo.training.search.tuning import tune
    from decrescendo.training.search.winner import save_winner
    from decrescendo.training.statement import Assumption, Declaration, Provenance, Statement
    from decrescendo.training.steering import Adaptive
    from decrescendo.training.steering.reading import Estimate, Reading, smoothed
    from decrescendo.training.store import Store
    from decrescendo.training.tasks.batch_norm import without_batch_norm
    from decrescendo.training.tasks.evaluate import accuracy, mean_loss
    from decrescendo.training.tasks.fitting import (
        OPTIMIZERS,
        Decay,
        cross_entropy,
        cross_entropy_and_accuracy,
        decay_scheduler,
        fit,
        initialised,
        make_optimizer,
        train_task,
    )
    from decrescendo.training.tasks.task import Task, find_task

_HOMES = {
    "persistence.checkpoint": ("Checkpoint", "Checkpoints", "Releases", "Stateful"),
    "search.comparing": ("compare",),
    "search.comparison": ("Comparison",),
    "search.comparison_runs": ("ComparedRun",),
    "tasks.evaluate": ("accuracy", "mean_loss"),
    "tasks.fitting": (
        "OPTIMIZERS", "Decay", "cross_entropy", "cross_entropy_and_accuracy", "decay_scheduler", "fit", "initialised",
        "make_optimizer", "train_task",
    ),
    "loop.loop": ("train",),
    "loop.progress": ("Callback", "Progress"),
    "data.by_person": ("by_person", "person_loss"),
    "data.rows": ("Rows", "rows"),
    "run": ("Run", "cpu_weights", "versions"),
    "search.private_search": ("PrivateSearch", "parse_trials"),
    "search.private_tuning": ("search_privately",),
    "search.recipe": ("Recipe",),
    "search.winner": ("save_winner",),
    "search.settings": ("Settings",),
    "search.space": ("Among", "Between", "Space", "default_space", "free_space", "parse_fixed", "parse_moving"),
    "search.tuning": ("tune",),
    "loop.source": ("check_promise",),
    "statement": ("Assumption", "Provenance", "Declaration", "Statement"),
    "steering": ("Adaptive",),
    "steering.reading": ("Estimate", "Reading", "smoothed"),
    "store": ("Store",),
    "tasks.task": ("Task", "find_task"),
    "loop.step_result": ("StepResult",),
    "loop.trainer": ("Trainer",),
    "loop.frozen_state": ("FrozenStateGuard",),
    "tasks.batch_norm": ("without_batch_norm",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("digits", "steering")

__all__ = [
    "train", "Trainer", "StepResult", "Progress", "Callback", "Run", "Store", "Checkpoint", "Checkpoints",
    "Releases", "Stateful", "Statement", "Assumption", "Provenance", "Declaration", "Adaptive", "steering", "Task",
    "find_task", "fit", "train_task", "make_optimizer", "OPTIMIZERS", "decay_scheduler", "Decay", "initialised",
    "cross_entropy", "digits", "Rows", "rows", "by_person", "person_loss", "accuracy", "mean_loss", "cpu_weights",
    "versions", "FrozenStateGuard", "check_promise", "Settings", "Space", "Between", "Among", "default_space",
    "free_space", "compare", "Comparison", "ComparedRun", "tune", "Recipe", "PrivateSearch", "search_privately",
    "save_winner", "parse_trials", "parse_fixed", "parse_moving", "without_batch_norm", "Reading", "Estimate",
    "smoothed", "cross_entropy_and_accuracy",
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
