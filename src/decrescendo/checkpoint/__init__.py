"""Trainings that survive a crash: everything a run needs to go on, in one folder, bit by bit as it was."""

from decrescendo.checkpoint.checkpoints import Checkpoint, Checkpoints, Stateful

__all__ = ["Checkpoint", "Checkpoints", "Stateful"]
