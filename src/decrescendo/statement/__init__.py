"""Privacy statements: what may be said of a trained model, by a program and by people."""

from decrescendo.statement.conduct import SECURE, SEEDED, UNRECORDED, Conduct
from decrescendo.statement.declaration import Declaration
from decrescendo.statement.statement import Statement, state

__all__ = ["SECURE", "SEEDED", "UNRECORDED", "Conduct", "Declaration", "Statement", "state"]
