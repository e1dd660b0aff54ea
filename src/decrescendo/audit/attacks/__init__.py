"""Data sets on which something would show. Each is legal input; privacy must hold on the worst of them."""

from decrescendo.audit.attacks.batch_size import batch_size
from decrescendo.audit.attacks.counted import counted
from decrescendo.audit.attacks.crowded import crowded
from decrescendo.audit.attacks.once import once
from decrescendo.audit.attacks.one_canary import one_canary
from decrescendo.audit.attacks.opposed import opposed
from decrescendo.audit.attacks.padded import padded
from decrescendo.audit.attacks.told import told

__all__ = ["batch_size", "counted", "crowded", "once", "one_canary", "opposed", "padded", "told"]
