"""A ledger on disk: what was spent, by which run, on one data set, and what is left."""

from decrescendo.training.store.composition import COMPOSITIONS, Composition
from decrescendo.training.store.store import Account, Entry, Store, new_id

__all__ = ["Account", "COMPOSITIONS", "Composition", "Entry", "Store", "new_id"]
