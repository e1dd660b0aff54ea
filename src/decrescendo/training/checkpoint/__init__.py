"""Trainings that survive a crash: everything a run needs to go on, in one folder, bit by bit as it was."""

from decrescendo.training.checkpoint.checkpoints import Checkpoint, Checkpoints, Stateful
from decrescendo.training.checkpoint.releases import Releases

__all__ = ["Checkpoint", "Checkpoints", "Releases", "Stateful"]
