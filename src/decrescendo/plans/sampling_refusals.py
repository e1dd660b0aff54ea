"""Checks that refuse forms of sampling which a caller (a filter, an accountant) does not support."""

from typing import cast

from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, RandomAllocation, Sampling
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling


def poisson(sampling: Sampling, what: str) -> PoissonSampling | BatchSchedule:
    """``sampling`` if its batches are drawn by independent coins; else a refusal by ``what``.

    >>> poisson(RandomAllocation(100, 10), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must have Poisson batches, got RandomAllocation(...). There is ...
    """
    independent(sampling, what)
    if isinstance(sampling, RandomAllocation):
        raise InvalidValue(
            f"{what} must have Poisson batches, got {sampling}. There is no theorem here for records that each take "
            "part once an epoch. Take PoissonSampling"
        )
    if isinstance(sampling, StratifiedPoissonSampling):
        raise InvalidValue(
            f"{what} must have one sample rate for all records, got strata at {sampling.stratum_rates}. Take "
            "PoissonSampling"
        )
    return cast("PoissonSampling | BatchSchedule", sampling)


def independent(sampling: Sampling, what: str) -> None:
    """Refuse, for ``what``, records that take turns and noise that is correlated.

    >>> independent(CyclicPoissonSampling(100, 10, bands=4), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must have independent noise, got 4 bands. There is no theorem here ...
    """
    if isinstance(sampling, CyclicPoissonSampling):
        raise InvalidValue(
            f"{what} must have independent noise, got {sampling.bands} bands. There is no theorem here for noise that "
            "is correlated: take bands=1"
        )


def uncut(sampling: Sampling, what: str) -> None:
    """Refuse, for ``what``, truncated batches.

    >>> uncut(PoissonSampling(100, 10, max_batch_size=30), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must have batches of any size, got max_batch_size=30. Leave it out
    """
    if sampling.max_batch_size is not None:
        raise InvalidValue(
            f"{what} must have batches of any size, got max_batch_size={sampling.max_batch_size}. Leave it out"
        )


def check_person(examples_per_person: int, sampling: Sampling) -> None:
    """Refuse more examples per person than there are examples: accounting for them may take all memory.

    >>> check_person(200, PoissonSampling(100, 10))
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: examples_per_person must be at most the 100 examples that there are, got 200
    """
    if examples_per_person > sampling.dataset_size:
        raise InvalidValue(
            f"examples_per_person must be at most the {sampling.dataset_size} examples that there are, got "
            f"{examples_per_person}"
        )


def check_sampling(value: object) -> None:
    """Raise if ``value`` is not one of the forms of sampling."""
    if not isinstance(value, Sampling):
        raise InvalidType(
            "sampling must be a PoissonSampling or another form of sampling (decrescendo.plans), got "
            f"{type(value).__name__}. Give calibrate a PoissonSampling and a curve of batch sizes, or bands"
        )


def only_constant(sampling: Sampling, what: str) -> PoissonSampling:
    """``sampling`` if all its batches are drawn alike; else a refusal by ``what``, which needs one rate.

    >>> only_constant(BatchSchedule(100, [10, 20]), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must have one expected batch size for all steps, got 10 to 20. ...
    """
    if isinstance(sampling, BatchSchedule):
        low, high = sampling.expected_batch_size.min(), sampling.expected_batch_size.max()
        raise InvalidValue(
            f"{what} must have one expected batch size for all steps, got {low:g} to {high:g}. Calibrate without batch="
        )
    return cast("PoissonSampling", poisson(sampling, what))
