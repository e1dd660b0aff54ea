"""Runs: what was planned, what happened, what it cost, and the weights; in memory and as a folder."""

from decrescendo.run.files import PLAN, check_free
from decrescendo.run.history import History
from decrescendo.run.judged import judged
from decrescendo.run.record import Run
from decrescendo.run.versions import versions
from decrescendo.run.weights import check_published, cpu_weights

__all__ = ["PLAN", "History", "Run", "check_free", "check_published", "cpu_weights", "judged", "versions"]
