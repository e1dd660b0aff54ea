"""Noise and clipping decided during the run: a policy proposes each step, a privacy filter grants it or ends
the training.

=================  ====================================================================================
`Adaptive`         sampling, filter, policy and the most steps: given to `train` where a plan would be
`Settings`         one step's noise multiplier and clip norm: what a policy answers
`PolicyContext`    what a policy may look at: releases and weights, nothing of the data
`ValidationDecay`  less noise when a score on public data stops improving (Yu et al. 2019)
`FromSchedule`     a given schedule, ended by the filter (Hong et al., Algorithm 1)
`Plateau`          ends a training by its released loss or accuracy
`ClipController`   a plan's noise, with a clip norm that follows released norms of the gradients, by one of three rules
=================  ====================================================================================
"""

from decrescendo.training.steering.adaptive import Adaptive
from decrescendo.training.steering.context import Policy, PolicyContext, Settings
from decrescendo.training.steering.controller import ClipController
from decrescendo.training.steering.plateau import Plateau
from decrescendo.training.steering.policies import FromSchedule, ValidationDecay

__all__ = [
    "Adaptive",
    "ClipController",
    "FromSchedule",
    "Plateau",
    "Policy",
    "PolicyContext",
    "Settings",
    "ValidationDecay",
]
