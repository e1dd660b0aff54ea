"""Who is in a batch: each record alone, with the declared probability, at every step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from often import some
from scipy import stats

from decrescendo.plans.sampling import PoissonSampling, planned


@given(st.integers(1, 10**6), st.floats(1e-6, 1), st.floats(0, 1e6), st.sampled_from([None, 1, 50]))
def test_a_release_is_that_of_a_plan(records: int, part: float, z: float, cap: int | None) -> None:
    sampling = PoissonSampling(records, records * part, max_batch_size=cap)
    assert [sampling.release(z)] == list(planned(sampling, np.array([z])))


def presence(sampling: PoissonSampling, steps: int, seed: int) -> np.ndarray:
    """Whether record j is in batch t, (steps, records)."""
    found = np.zeros((steps, sampling.dataset_size), dtype=bool)
    for step, batch in enumerate(sampling.batches(steps, np.random.default_rng(seed))):
        assert np.all(np.diff(batch) > 0)  # ascending, nobody twice
        found[step, batch] = True
    return found


def rate_p_value(present: np.ndarray, rate: float) -> float:
    """Chi-square over records of how often each took part: all of them at ``rate``, none more than another."""
    steps, records = present.shape
    statistic = float(np.sum((present.sum(0) - steps * rate) ** 2) / (steps * rate * (1 - rate)))
    return 2 * min(stats.chi2.sf(statistic, records), stats.chi2.cdf(statistic, records))


def mean_p_value(present: np.ndarray, rate: float) -> float:
    """Two-sided test of how often anybody took part."""
    deviation = (present.sum() - present.size * rate) / math.sqrt(present.size * rate * (1 - rate))
    return 2 * float(stats.norm.sf(abs(deviation)))


@pytest.mark.parametrize(("records", "batch"), some([(20, 1.0), (20, 10.5), (20, 19.0), (400, 3.0)], 2))
def test_every_record_takes_part_at_the_declared_rate(records: int, batch: float) -> None:
    sampling = PoissonSampling(records, batch)
    present = presence(sampling, 20_000, seed=1)
    assert rate_p_value(present, sampling.sample_rate) > 1e-4
    assert mean_p_value(present, sampling.sample_rate) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("factor", some([0.97, 1.03], 1))
def test_a_rate_three_percent_off_is_seen(factor: float) -> None:
    present = presence(PoissonSampling(400, 8.0 * factor), 20_000, seed=2)
    assert mean_p_value(present, 8.0 / 400) < 1e-8


def test_batch_sizes_are_binomial_the_empty_ones_included() -> None:
    sampling = PoissonSampling(30, 2.0)
    sizes = presence(sampling, 20_000, seed=3).sum(1)
    law = stats.binom(30, sampling.sample_rate)
    seen = np.bincount(np.minimum(sizes, 7), minlength=8)
    expected = 20_000 * np.r_[law.pmf(np.arange(7)), law.sf(6)]
    assert seen[0] > 2_000
    assert stats.chisquare(seen, expected).pvalue > 1e-4


@pytest.mark.slow
def test_records_are_independent_of_each_other_and_over_steps() -> None:
    """Batches of a fixed size would give a correlation of -1/19 between records: seen at once."""
    records, steps = 20, 20_000
    present = presence(PoissonSampling(records, 8.0), steps, seed=4).astype(float)
    limit = 5 / math.sqrt(steps)
    between = np.corrcoef(present.T)[~np.eye(records, dtype=bool)]
    assert np.abs(between).max() < limit < 1 / (records - 1)
    centred = present - present.mean(0)
    later = (centred[1:] * centred[:-1]).mean(0) / centred.var(0)
    assert np.abs(later).max() < limit


def test_a_full_rate_takes_everybody_every_time() -> None:
    assert presence(PoissonSampling(7, 7.0), 50, seed=5).all()
