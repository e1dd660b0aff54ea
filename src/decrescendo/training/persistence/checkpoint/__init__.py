"""Trainings that survive a crash: everything a run needs to go on, in one folder, bit by bit as it was."""

from decrescendo.training.persistence.checkpoint.checkpoints import Checkpoint, Checkpoints, Stateful
from decrescendo.training.persistence.checkpoint.releases import Releases

__all__ = ["Checkpoint", "Checkpoints", "Releases", "Stateful"]
