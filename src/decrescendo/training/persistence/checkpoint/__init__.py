"""Checkpoints: everything that a run needs to resume bit for bit after a crash, in one folder."""

from decrescendo.training.persistence.checkpoint.checkpoints import Checkpoint, Checkpoints, Stateful
from decrescendo.training.persistence.checkpoint.releases import Releases

__all__ = ["Checkpoint", "Checkpoints", "Releases", "Stateful"]
