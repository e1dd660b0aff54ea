"""Opacus' names over this library: the user's loop stays as it is, and is trained, noised and accounted by ours.

=======================  =====================================================================================
`PrivacyEngine`          `make_private`, `make_private_with_epsilon`, `get_epsilon`, checkpoints
`BatchMemoryManager`     large batches in parts, for little memory
`schedulers`             `ExponentialNoise`, `LambdaNoise`, `StepNoise`; the same of ``GradClip``
=======================  =====================================================================================

What means something else here is refused in a sentence; docs/how-to/from-opacus.md lists it.
"""

from decrescendo.integrations.opacus import schedulers as schedulers
from decrescendo.integrations.opacus.engine import PrivacyEngine
from decrescendo.integrations.opacus.wrapped import BatchMemoryManager

__all__ = ["PrivacyEngine", "BatchMemoryManager", "schedulers"]
