"""The same gate with noise that nobody can predict."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from decrescendo.base.rng import SecureStream
from decrescendo.base.rng.rounded import grid
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType
from decrescendo.optim.noise import NoisyMean, complete, privatise
from decrescendo.plans.sampling import PoissonSampling

KEY = bytes(range(32))
SAMPLING = PoissonSampling(dataset_size=1000, expected_batch_size=8)


def noised(stream: SecureStream, z: float = 1.5, c: float = 0.5, **gradients: torch.Tensor) -> NoisyMean:
    return privatise(ClippedSum(gradients, c, Diagnostics(8, 0, 0, 0.0)), z, SAMPLING, stream)


def std_p_value(noise: np.ndarray) -> float:
    statistic, n = float((noise**2).sum()), noise.size
    return 2 * min(float(stats.chi2.cdf(statistic, n)), float(stats.chi2.sf(statistic, n)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_is_the_exact_gaussian_of_each_parameter_in_the_order_of_names(dtype: torch.dtype) -> None:
    b, a = torch.arange(6.0).reshape(2, 3).to(dtype), torch.tensor(3.0, dtype=dtype)
    found = noised(SecureStream(KEY), b=b, a=a).gradients
    stream = SecureStream(KEY)
    for name, total in (("a", a), ("b", b)):
        sums = total.double().flatten().numpy()
        expected = torch.from_numpy(stream.add_gaussian(sums, 1.5 * 0.5) / 8).reshape(total.shape)
        assert torch.equal(found[name], expected.to(found[name].dtype))
        assert found[name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(("z", "c"), [(1.0, 1.0), (0.7, 3.0), (4.0, 0.01)])
def test_noise_has_the_planned_deviation(z: float, c: float) -> None:
    mean = noised(SecureStream(KEY), z, c, w=torch.zeros(80_000, dtype=torch.float64))
    noise = mean.gradients["w"].numpy() * 8 / (z * c)
    assert std_p_value(noise) > 1e-4
    assert min(std_p_value(noise * 0.97), std_p_value(noise * 1.03)) < 1e-8
    assert mean.noise_std == pytest.approx(z * c / 8)
    # Every sum is a multiple of the grid, whatever the data were.
    sums = mean.gradients["w"].numpy() * 8
    assert np.array_equal(np.rint(sums / grid(z * c)) * grid(z * c), sums)


def test_steps_do_not_repeat() -> None:
    stream, zeros = SecureStream(KEY), torch.zeros(40_000)
    first, second = (noised(stream, w=zeros).gradients["w"] for _ in range(2))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 4.5 / math.sqrt(40_000)


def test_zero_noise_draws_nothing() -> None:
    stream = SecureStream(KEY)
    assert torch.equal(noised(stream, 0.0, w=torch.ones(3)).gradients["w"], torch.ones(3) / 8)
    assert stream.position == 0


def test_other_sources_are_refused() -> None:
    for gate in (privatise, complete):
        bare = getattr(gate, "__wrapped__", gate)
        first = ClippedSum({"w": torch.zeros(1)}, 1.0, Diagnostics(0, 0, 0, 0.0))
        with pytest.raises(InvalidType):
            bare(first, 1.0, SAMPLING, np.random.default_rng(0)) if gate is privatise else bare(
                first, SAMPLING, 0
            )
