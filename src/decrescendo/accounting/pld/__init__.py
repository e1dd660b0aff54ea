"""Privacy loss distributions of many different subsampled Gaussian steps, composed between certified bounds."""

from decrescendo.accounting.pld.accountant import Pld
from decrescendo.accounting.pld.allocation import Allocated

__all__ = ["Allocated", "Pld"]
