"""The privacy ledger on disk: what each run on one data set has spent, and what is left."""

from decrescendo.training.store.account import Account
from decrescendo.training.store.composition import Composition
from decrescendo.training.store.entry import Entry, check_name, new_id
from decrescendo.training.store.store import Store

__all__ = ["Account", "Composition", "Entry", "Store", "check_name", "new_id"]
