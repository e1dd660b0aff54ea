"""The gate: what noise is added, to what, and what it is divided by."""

import math

import pytest
import torch
from scipy import stats

from decrescendo.accounting.release import Release
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.sampling import PoissonSampling

# Without the run-time type checker of the test run, which would raise before the library does.
bare = getattr(privatise, "__wrapped__", privatise)
SAMPLING = PoissonSampling(dataset_size=1000, expected_batch_size=8)


def clipped(sensitivity: float = 1.0, examples: int = 8, **gradients: torch.Tensor) -> ClippedSum:
    return ClippedSum(gradients, sensitivity, Diagnostics(examples, 0, 0, 0.0))


def draw(seed: int, z: float, c: float, size: int = 40_000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The noise alone, in units of its declared standard deviation."""
    zeros = clipped(c, a=torch.zeros(size, dtype=dtype), b=torch.zeros(size, dtype=dtype))
    noisy = privatise(zeros, z, SAMPLING, torch.Generator().manual_seed(seed)).gradients
    return torch.cat([noisy["a"], noisy["b"]]).double() * SAMPLING.expected_batch_size / (z * c)


def std_p_value(noise: torch.Tensor) -> float:
    """Two-sided chi-square test that the standard deviation is one."""
    n = noise.numel()
    statistic = float(noise.square().sum())
    return 2 * min(stats.chi2.cdf(statistic, n), stats.chi2.sf(statistic, n))


@pytest.mark.parametrize(("z", "c"), [(1.0, 1.0), (0.7, 3.0), (4.0, 0.01)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_noise_is_gaussian_of_standard_deviation_z_times_c(z: float, c: float, dtype: torch.dtype) -> None:
    noise = draw(1, z, c, dtype=dtype)
    assert std_p_value(noise) > 1e-4
    assert abs(float(noise.mean())) < 4 / math.sqrt(noise.numel())
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_the_standard_deviation_test_sees_three_percent(factor: float) -> None:
    assert std_p_value(draw(1, 1.0, 1.0) * factor) < 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_of_float32_sums_is_a_rounded_float64_draw(dtype: torch.dtype) -> None:
    """A float32 draw ends at 5.77 deviations: at z = 1, rate 250/60000 and 5,000 steps that adds 2e-5 to delta."""
    z, c, shape = 1.5, 0.5, (3, 7)
    total = torch.arange(21.0).reshape(shape).to(dtype)
    noisy = privatise(clipped(c, a=total), z, SAMPLING, torch.Generator().manual_seed(9)).gradients["a"]
    drawn = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected = (total.double() + drawn * (z * c)) / SAMPLING.expected_batch_size
    assert torch.equal(noisy, expected.float())


def test_noise_is_independent_over_coordinates_parameters_and_steps() -> None:
    generator = torch.Generator().manual_seed(3)
    size = 40_000
    zeros = clipped(1.0, a=torch.zeros(size), b=torch.zeros(size))
    first = privatise(zeros, 1.0, SAMPLING, generator).gradients
    second = privatise(zeros, 1.0, SAMPLING, generator).gradients
    pairs = [
        (first["a"], first["b"]),
        (first["a"], second["a"]),
        (first["a"][1:], first["a"][:-1]),
    ]
    limit = 4.5 / math.sqrt(size)
    for left, right in pairs:
        assert abs(float(torch.corrcoef(torch.stack([left, right]))[0, 1])) < limit
    # Power: a tenth of the noise shared between two parameters is seen.
    shared = first["a"] + 0.1 * first["b"]
    assert abs(float(torch.corrcoef(torch.stack([shared, first["b"]]))[0, 1])) > limit


def test_the_noise_of_a_parameter_does_not_depend_on_the_order_of_the_mapping() -> None:
    a, b = torch.zeros(3), torch.zeros(4)
    one = privatise(clipped(a=a, b=b), 1.0, SAMPLING, torch.Generator().manual_seed(5))
    other = privatise(clipped(b=b, a=a), 1.0, SAMPLING, torch.Generator().manual_seed(5))
    assert all(torch.equal(one.gradients[name], other.gradients[name]) for name in "ab")
    assert list(other.gradients) == ["b", "a"]


@pytest.mark.parametrize("examples", [0, 1, 8, 500])
def test_the_divisor_is_the_declared_batch_size_whatever_the_realised_one(examples: int) -> None:
    noisy = privatise(clipped(a=torch.full((2,), 4.0), examples=examples), 0.0, SAMPLING, torch.Generator())
    assert noisy.gradients["a"].tolist() == [0.5, 0.5]


def test_an_empty_batch_gets_the_same_noise_as_any_other() -> None:
    full = privatise(clipped(a=torch.ones(5)), 1.5, SAMPLING, torch.Generator().manual_seed(0)).gradients["a"]
    empty = clipped(a=torch.zeros(5), examples=0)
    noise = privatise(empty, 1.5, SAMPLING, torch.Generator().manual_seed(0)).gradients["a"]
    torch.testing.assert_close(full - noise, torch.full((5,), 1 / 8))
    assert bool((noise != 0).all())


def test_the_release_says_rate_and_multiplier_and_not_the_clip_norm() -> None:
    noisy = privatise(clipped(7.0, a=torch.ones(1)), 1.25, SAMPLING, torch.Generator().manual_seed(0))
    assert noisy.release == Release(sample_rate=0.008, noise_multiplier=1.25, count=1)


def test_half_precision_sums_are_noised_and_kept_in_float32() -> None:
    tiny = privatise(clipped(1e-6, a=torch.zeros(1000).bfloat16()), 1.0, SAMPLING, torch.Generator().manual_seed(0))
    values = tiny.gradients["a"]
    assert values.dtype == torch.float32
    assert values.unique().numel() > 990  # bfloat16 has 8 bits: it would repeat values


def test_zero_noise_draws_nothing_and_the_sum_is_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    source = torch.full((2,), 4.0)
    noisy = privatise(clipped(math.inf, a=source), 0.0, SAMPLING, generator)
    assert torch.equal(generator.get_state(), before)
    noisy.gradients["a"].zero_()
    assert source.tolist() == [4.0, 4.0]


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    privatise(clipped(a=torch.zeros(3)), 1.0, SAMPLING, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_for_an_unbounded_sum_is_refused() -> None:
    with pytest.raises(InvalidValue, match="finite sensitivity"):
        privatise(clipped(math.inf, a=torch.zeros(1)), 0.1, SAMPLING, torch.Generator())


@pytest.mark.parametrize("z", [-1.0, math.inf, math.nan])
def test_a_multiplier_out_of_range_is_refused(z: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        privatise(clipped(a=torch.zeros(1)), z, SAMPLING, torch.Generator())


def test_noise_that_would_vanish_by_underflow_is_refused() -> None:
    with pytest.raises(InvalidValue, match="normal number"):
        privatise(clipped(1e-12, a=torch.zeros(1)), 1e-320, SAMPLING, torch.Generator())


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, 1e-13])
def test_a_sensitivity_that_is_not_positive_is_refused(sensitivity: float) -> None:
    with pytest.raises(InvalidValue, match="sensitivity"):
        clipped(sensitivity, a=torch.zeros(1))


def test_values_are_private_and_not_printed() -> None:
    value = clipped(a=torch.tensor([123.456]))
    assert "123" not in repr(value)
    assert "123" not in repr(NoisyMean({"a": torch.tensor([123.456])}, Release(0.1, 1.0)))


def test_a_sum_cannot_be_changed_by_key() -> None:
    with pytest.raises(TypeError):
        clipped(a=torch.zeros(1)).gradients["a"] = torch.ones(1)  # type: ignore[index]


def test_only_a_clipped_sum_is_privatised() -> None:
    noisy = NoisyMean({"a": torch.zeros(1)}, Release(0.1, 1.0))
    with pytest.raises(InvalidType, match="ClippedSum"):
        bare(noisy, 1.0, SAMPLING, torch.Generator())
