"""`Release`: one line of a ledger."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from decrescendo.errors import InvalidValue, check_integer, check_real

# Counts add up exactly, as whole numbers and as floats, up to here.
LARGEST_COUNT = 2**53


@final
@dataclass(frozen=True, slots=True)
class Release:
    """``count`` noisy sums, each over a Poisson sample (or a step of an epoch, see ``steps_per_epoch``) and each with
    Gaussian noise of ``noise_multiplier`` times its sensitivity.

    Args:
        sample_rate: in (0, 1]; 1 means every record takes part.
        noise_multiplier: z >= 0: standard deviation of the noise over the sensitivity of the sum. Zero is a
            release without noise: its epsilon is infinite.
        count: how often, 1 to 2^53.
        overflow: in [0, sample_rate]: of truncated batches the probability that a record is drawn into a batch that is
            full without it, and may push another one out (`Ledger.cut`). 0: none is truncated.
        steps_per_epoch: t >= 2 where each record takes part in one of t such releases in a row, by a fair draw of its
            own (random allocation); the sample rate then is 1/t. 0: Poisson.
        bands: b >= 2 where records take turns (cyclic Poisson sampling, correlated noise): only those of group
            ``step`` mod b take part, ``sample_rate`` is of these, and ``noise_multiplier`` is 1 over the norm of the
            strategy's column. 1: everybody may take part.
        step: with several bands, the position of the release in its run, from 0; else 0.

    >>> Release(sample_rate=0.01, noise_multiplier=1.1, count=3)
    Release(sample_rate=0.01, noise_multiplier=1.1, count=3, overflow=0.0, steps_per_epoch=0, bands=1, step=0)
    >>> Release(sample_rate=0.04, noise_multiplier=1.1, bands=4, step=6).group
    2
    """

    sample_rate: float
    noise_multiplier: float
    count: int = 1
    overflow: float = 0.0
    steps_per_epoch: int = 0
    bands: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", check_real("sample_rate", self.sample_rate, above=0, at_most=1))
        object.__setattr__(self, "noise_multiplier", check_real("noise_multiplier", self.noise_multiplier, at_least=0))
        object.__setattr__(self, "count", check_integer("count", self.count, at_least=1))
        if self.count > LARGEST_COUNT:
            raise InvalidValue(f"count must be <= {LARGEST_COUNT}, got count={self.count}. Is it a number of releases?")
        overflow = check_real("overflow", self.overflow, at_least=0, at_most=self.sample_rate)
        object.__setattr__(self, "overflow", overflow)
        check_epoch(self.steps_per_epoch, np.array([self.sample_rate]))
        check_integer("bands", self.bands, at_least=1)
        check_integer("step", self.step)
        check_turn(self)

    @property
    def group(self) -> int:
        """The group of records whose turn it was; 0 where there is one."""
        return self.step % self.bands


def check_epoch(steps: object, rates: Float[np.ndarray, " n"]) -> None:
    """A number of steps an epoch that fits the sample rates, or an error."""
    count = check_integer("steps_per_epoch", steps)
    if count == 1:
        raise InvalidValue("steps_per_epoch must be >= 2, got 1. A batch of everybody is Poisson at sample_rate 1")
    if count and (odd := rates[rates != 1 / count]).size:
        raise InvalidValue(
            f"records that take part once in {count} steps must have sample_rate=1/{count}, got {odd[0]:g}"
        )


def check_turn(release: "Release") -> None:
    """Refuse a release of one group that is more than one, or is of another kind of sampling, besides."""
    if release.bands == 1 and release.step:
        raise InvalidValue(f"a release must have step=0 where there is one band, got step={release.step}")
    if release.bands > 1 and (release.count > 1 or release.overflow or release.steps_per_epoch):
        raise InvalidValue(
            f"a release of one of {release.bands} groups must be one Poisson sum, not truncated, got "
            f"count={release.count}, overflow={release.overflow:g}, steps_per_epoch={release.steps_per_epoch}"
        )
