"""The same gate with noise that nobody can predict."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from decrescendo.base.rng import Keystream, SecureStream, Streams
from decrescendo.base.rng.rounded import grid
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType
from decrescendo.optim import noise_drawing
from decrescendo.optim.noise import NoisyMean, complete, privatise
from decrescendo.plans.sampling import PoissonSampling

KEY = bytes(range(32))
SAMPLING = PoissonSampling(dataset_size=1000, expected_batch_size=8)


def noised(stream: SecureStream | Keystream, z: float = 1.5, c: float = 0.5, **gradients: torch.Tensor) -> NoisyMean:
    return privatise(ClippedSum(gradients, c, Diagnostics(8, 0, 0, 0.0)), z, SAMPLING, stream)


def std_p_value(noise: np.ndarray) -> float:
    statistic, n = float((noise**2).sum()), noise.size
    return 2 * min(float(stats.chi2.cdf(statistic, n)), float(stats.chi2.sf(statistic, n)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_is_the_exact_gaussian_of_each_parameter_in_the_order_of_names(dtype: torch.dtype) -> None:
    b, a = torch.arange(6.0).reshape(2, 3).to(dtype), torch.tensor(3.0, dtype=dtype)
    found = noised(SecureStream(KEY), b=b, a=a).gradients
    sums = torch.cat([a.flatten(), b.flatten()]).double().numpy()
    expected = torch.from_numpy(SecureStream(KEY).add_gaussian(sums, 1.5 * 0.5) / 8)
    for name, part, shape in (("a", expected[:1], ()), ("b", expected[1:], (2, 3))):
        assert torch.equal(found[name], part.reshape(shape).to(found[name].dtype))
        assert found[name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_seed_gives_the_same_law_and_parameters_of_float64_come_last() -> None:
    wide, small = torch.ones(3, dtype=torch.float64), torch.ones(20)
    found = noised(Streams(1).keyed("noise"), a=wide, b=small).gradients
    stream = Streams(1).keyed("noise")
    first, last = (stream.add_gaussian(part.numpy(), 1.5 * 0.5, divisor=8) for part in (small, wide))
    assert torch.equal(found["b"], torch.from_numpy(first))
    assert torch.equal(found["a"], torch.from_numpy(last))
    again = noised(Streams(1).keyed("noise"), a=wide, b=small).gradients
    assert all(torch.equal(found[name], again[name]) for name in found)
    other = noised(Streams(2).keyed("noise"), a=wide, b=small).gradients
    assert not torch.equal(found["b"], other["b"])


def test_the_sum_is_left_as_it_was() -> None:
    sums, others = torch.ones(5), torch.ones(2, 3).T
    noised(SecureStream(KEY), w=sums)
    noised(SecureStream(KEY), w=sums, v=others)
    assert torch.equal(sums, torch.ones(5))
    assert torch.equal(others, torch.ones(3, 2))


@pytest.mark.parametrize("together", [0, 1, 5, 7, 20])
def test_bits_do_not_depend_on_what_is_laid_side_by_side(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in any layout, alone or beside others: the noise of a coordinate is that of its place in the whole."""
    sums = {
        "p_a": torch.arange(3.0), "p_b": torch.tensor(2.0), "p_c": torch.arange(12.0).reshape(3, 4).T,
        "p_d": torch.zeros(0), "p_e": torch.arange(10.0)[::2], "p_f": torch._neg_view(torch.arange(4.0)),
        "p_g": torch.ones(1).expand(6),
    }  # fmt: skip
    expected = noised(SecureStream(KEY), **sums).gradients
    monkeypatch.setattr(noise_drawing, "_TOGETHER", {"cpu": together})
    found = noised(SecureStream(KEY), **sums).gradients
    whole = torch.cat([sums[name].flatten() for name in sorted(sums)]).numpy()
    exact = torch.from_numpy(SecureStream(KEY).add_gaussian(whole, 1.5 * 0.5, divisor=8))
    for name, part in zip(sorted(sums), exact.split([sums[name].numel() for name in sorted(sums)]), strict=True):
        assert torch.equal(found[name], expected[name])
        assert torch.equal(found[name].flatten(), part)
    assert torch.equal(sums["p_e"], torch.arange(10.0)[::2])


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
            bare(first, 1.0, SAMPLING, np.random.default_rng(0)) if gate is privatise else bare(first, SAMPLING, 0)
