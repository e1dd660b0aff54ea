"""Noise, and what happens to a noisy mean afterwards: post-processing, which costs no privacy."""

from decrescendo.optim.adam_bc import AdamBC
from decrescendo.optim.apply import apply
from decrescendo.optim.averaging import averaged
from decrescendo.optim.momentum_bc import MomentumBC
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.optim.noise_aware import NoiseAware
from decrescendo.optim.several import Several

__all__ = ["privatise", "NoisyMean", "apply", "AdamBC", "MomentumBC", "NoiseAware", "averaged", "Several"]
