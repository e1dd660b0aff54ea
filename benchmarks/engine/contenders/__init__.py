"""One private training step by each library, on the same model and batch."""

from benchmarks.engine.contenders.base import Missing, Refused, Setting, Step
from benchmarks.engine.contenders.table import CONTENDERS, Contender

__all__ = ["CONTENDERS", "Contender", "Missing", "Refused", "Setting", "Step"]
