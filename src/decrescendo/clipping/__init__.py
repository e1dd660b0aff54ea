"""Clipping: makes a `ClippedSum` of a model, a loss and a batch, to which `decrescendo.optim` adds noise."""

from decrescendo.clipping.clipped import Batch, ClippedSum, Clipper, Diagnostics, Loss
from decrescendo.clipping.engine import Engine
from decrescendo.clipping.engine_settings import EngineSettings
from decrescendo.clipping.reference import Reference
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.row_independence import register_rule

__all__ = [
    "Batch", "ClippedSum", "Clipper", "Diagnostics", "Engine", "EngineSettings", "Loss", "Reference", "Telemetry",
    "register_rule",
]  # fmt: skip
