"""The noise on a sum is that of one process, whatever the number of ranks; with the power of the test."""

import math

import pytest
from often import some
from ranks import run_ranks

# Coordinates that one life of `rank_life.noises` sees: four steps of 30,000.
COUNT = 4 * 30_000
# Of a mean of COUNT squares of standard normal numbers. 3 % of noise are 6 % of variance: 14 standard errors.
ERROR = math.sqrt(2 / COUNT)


def suits(variance: float) -> bool:
    return abs(variance - 1) < 4.5 * ERROR


@pytest.mark.parametrize(
    ("size", "shard"), some([(1, ""), (2, ""), (4, ""), (2, "all"), (4, "all"), (4, "copies")], 2)
)
def test_the_noise_of_a_sum_has_variance_z_c_squared(size: int, shard: str) -> None:
    """Less than one row is expected in a batch: nearly all shares are empty. Each rank adds noise to its parts."""
    outcomes, _ = run_ranks("noises", size, seed=size, shard=shard)
    steps = outcomes[0].value
    assert [outcome.value for outcome in outcomes] == [steps] * size, outcomes
    assert suits(sum(steps) / len(steps)), steps


@pytest.mark.parametrize(("scale", "shard"), some([(0.97, ""), (1.03, ""), (1.03, "all")], 1))
def test_noise_that_is_three_percent_off_would_be_seen(scale: float, shard: str) -> None:
    outcomes, _ = run_ranks("noises", 2, seed=5, scale=scale, shard=shard)
    steps = outcomes[0].value
    assert not suits(sum(steps) / len(steps)), steps
    assert suits(sum(steps) / len(steps) / scale**2), steps
