"""One long text among short ones: padding to the longest of the batch lets it change the others' gradients."""

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import binom
from torch import Tensor, nn

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums
from decrescendo.audit.probe import STEEPNESS
from decrescendo.clipping import Batch
from decrescendo.plans import Plan, PoissonSampling, calibrate
from decrescendo.plans.sampling_refusals import only_constant

PADDING, SHORT, LONG = 0, 1, 2
_LENGTH, _ROWS = 8, 40


class MeanWeight(nn.Module):
    """The mean weight of a text's tokens, padding included.

    >>> MeanWeight()(torch.tensor([[1, 0]])).tolist()
    [0.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(3, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """One mean a row."""
        return nn.functional.embedding(tokens, self.probe)[..., 0].mean(dim=1)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A steep loss, so that every gradient is clipped."""
    return STEEPNESS * _LENGTH * model(batch)


def padded(budget: Budget, *, steps: int = 4) -> Attack:
    """39 texts of one token, padded to the public length of 8, and a record of 8 tokens.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 1.

    >>> padded(Budget(2.0, 1e-5)).plan.sampling.dataset_size
    40
    """
    plan = calibrate(budget, PoissonSampling(_ROWS, _ROWS / 2), steps=steps, privacy=[1.0] * steps, clip=[1.0] * steps)
    data = torch.full((_ROWS, _LENGTH), PADDING)
    data[:, 0] = SHORT
    data[-1] = LONG
    return Attack("one long text", plan, data, MeanWeight, mean_loss, _evidence)


def _evidence(sums: Sums, plan: Plan) -> float:
    """log of the likelihood ratio if short texts were padded to the longest that was drawn."""
    p = only_constant(plan.sampling, "this attack").sample_rate
    alone, beside, record = np.eye(3)[SHORT], np.zeros(3), np.eye(3)[LONG]
    beside[[SHORT, PADDING]] = 1, _LENGTH - 1
    beside /= np.linalg.norm(beside)
    others = np.arange(_ROWS)
    weights = binom.logpmf(others, _ROWS - 1, p)
    found = 0.0
    for seen, z in zip(sums, plan.noise_multiplier, strict=True):

        def log_density(mean: np.ndarray, seen: np.ndarray = seen, z: float = float(z)) -> float:
            squares = np.sum((seen - mean) ** 2, axis=1)
            return float(logsumexp(weights - squares / (2 * z * z)))

        without = log_density(others[:, None] * alone)
        drawn = log_density(others[:, None] * beside + record)
        found += float(np.logaddexp(np.log1p(-p), np.log(p) + drawn - without))
    return found
