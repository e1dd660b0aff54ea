"""Privacy loss distributions of many different subsampled Gaussian steps, composed between certified bounds."""

from decrescendo.accounting.pld.accountant import Pld

__all__ = ["Pld"]
