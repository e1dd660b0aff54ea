"""Runs: plan, steps, privacy cost and weights of a finished training; in memory and as a folder."""

from decrescendo.training.run.certify import certified_epsilon, certify
from decrescendo.training.run.entries import PLAN
from decrescendo.training.run.folder import check_free
from decrescendo.training.run.history import History
from decrescendo.training.run.record import Run
from decrescendo.training.run.versions import versions
from decrescendo.training.run.weights import (
    assumed_of,
    check_published,
    cpu_weights,
    entries_of_frozen_layers,
)

__all__ = [
    "PLAN",
    "History",
    "Run",
    "check_free",
    "assumed_of",
    "check_published",
    "entries_of_frozen_layers",
    "cpu_weights",
    "certified_epsilon",
    "certify",
    "versions",
]
