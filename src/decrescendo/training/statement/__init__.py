"""Privacy statements about a trained model, for programs and for people."""

from decrescendo.base.assumption import Assumption
from decrescendo.training.statement.declaration import Declaration
from decrescendo.training.statement.provenance import FLOAT32, FLOAT64, SECURE, SEEDED, UNRECORDED, Provenance
from decrescendo.training.statement.statement import Statement, state

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "SECURE",
    "SEEDED",
    "UNRECORDED",
    "Assumption",
    "Provenance",
    "Declaration",
    "Statement",
    "state",
]
