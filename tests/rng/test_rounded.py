"""Noise that is an exact Gaussian, rounded: against many digits, by its law, and where rounding is open."""

import math
from collections.abc import Callable, Iterator
from itertools import chain

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from decrescendo.base.rng import SecureStream, settling
from decrescendo.base.rng.rounded import add_gaussian, grid
from decrescendo.errors import InvalidValue

KEY = bytes(range(32))


class Said:
    """The words of one coordinate: the first, those after it, and how many of these were asked for."""

    def __init__(self, first: int, *more: int) -> None:
        self.first, self.more, self.asked = first, more, 0

    def reader(self, most: int) -> Callable[[int, int], np.ndarray]:
        return lambda start, count: np.array([self.first] * count, dtype=np.uint64)

    def further(self, index: int) -> Iterator[int]:
        for word in chain(self.more):
            self.asked += 1
            yield word


def exact(value: float, std: float, word: int, more: list[int]) -> int:
    """The slow obvious way: 512 digits, all random bits at once; in units of the grid."""
    with mpmath.workprec(512):
        tail, bits = word % 2**63, 64
        for extra in more:
            tail, bits = tail * 2**64 + extra, bits + 64
        size = mpmath.findroot(
            lambda x: mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - mpmath.log(mpmath.mpf(tail) / 2**bits),
            -float(ndtri(max(tail / 2**bits, 1e-300))),
        )
        sign = -1 if word >> 63 else 1
        return int(mpmath.nint((mpmath.mpf(value) + sign * std * size) / grid(std)))


@given(
    value=st.floats(-1e6, 1e6),
    std=st.floats(1e-3, 1e3),
    words=st.lists(st.integers(2**40, 2**64 - 1), min_size=5, max_size=5),
    shift=st.integers(0, 40),
)
def test_equals_many_digits(value: float, std: float, words: list[int], shift: int) -> None:
    """Also far out in the tail, where the first word says little."""
    first = (words[0] >> 63 << 63) | (words[0] % 2**63 >> shift)
    found = add_gaussian(np.array([value]), std, Said(first, *words[1:]))
    assert int(found[0] / grid(std)) == exact(value, std, first, words[1:])


@given(
    std=st.floats(0.1, 10),
    words=st.lists(st.integers(1, 2**64 - 1), min_size=3, max_size=3),
    multiple=st.integers(-(10**6), 10**6),
    nudge=st.integers(-3, 3),
)
def test_open_coordinates_are_decided(std: float, words: list[int], multiple: int, nudge: int) -> None:
    """A value that puts the sum on the edge between two multiples, but for what float64 cannot tell."""
    source = Said(*words)
    size = -float(ndtri((words[0] % 2**63 + 0.5) * 2.0**-64))
    sign = -1 if words[0] >> 63 else 1
    value = (multiple + 0.5) * grid(std) - sign * std * size
    value += nudge * math.ulp(value)
    found = add_gaussian(np.array([value]), std, source)
    assert source.asked == 2
    assert int(found[0] / grid(std)) == exact(value, std, words[0], words[1:])


@pytest.mark.slow
def test_the_quantile_is_as_near_as_is_assumed() -> None:
    random = np.random.default_rng(0)
    tails = np.concatenate([random.random(1500) / 2, 2.0 ** -random.uniform(1, 65, 1500)])
    with mpmath.workprec(256):
        for tail in tails:
            size = -float(ndtri(tail))
            error = abs(settling._quantile(int(mpmath.ldexp(mpmath.mpf(float(tail)), 200)), 200) - size)
            assert error <= settling.QUANTILE_ERROR / 16 * (1 + size)


def test_only_multiples_whatever_the_sum() -> None:
    """The attack: with plain float64 the last bits of a result tell the sum; here they are the grid's."""
    stream = SecureStream(KEY)
    values = np.random.default_rng(0).normal(size=20_000) * 2.0 ** np.arange(-70, 30).repeat(200)
    result = stream.add_gaussian(values, 0.7)
    assert np.array_equal(np.rint(result / grid(0.7)) * grid(0.7), result)
    # What it does not happen to without protection:
    plain = values + 0.7 * np.random.default_rng(1).normal(size=values.size)
    assert np.mean(np.rint(plain / grid(0.7)) * grid(0.7) == plain) < 0.5


def test_far_tails_exist() -> None:
    """A word of zeros says only that |N| is beyond 8.9: the bits after it say where."""
    near = add_gaussian(np.zeros(1), 1.0, Said(0, 2**63, 0))[0]
    far = add_gaussian(np.zeros(1), 1.0, Said(2**63, 1, 0))[0]
    assert 8.9 < near < 9.3
    assert -13.5 < far < -12.5


def test_bits_are_drawn_until_nothing_is_open() -> None:
    """Zeros without end have no finite quantile: the first one decides."""
    zeros = Said(0, 0, 0, 0, 0, 1, 1)
    assert add_gaussian(np.zeros(1), 1.0, zeros)[0] > 20
    assert zeros.asked == 6


def test_odd_values() -> None:
    stream = SecureStream(KEY)
    values = np.array([np.inf, -np.inf, np.nan, 1e300, -1.7e308, 5e-324])
    result = stream.add_gaussian(values, 1e-3)
    assert result[:2].tolist() == [np.inf, -np.inf]
    assert math.isnan(result[2])
    assert result[3:5].tolist() == pytest.approx([1e300, -1.7e308], rel=1e-15)
    assert 0 < abs(result[5]) < 0.01
    assert stream.add_gaussian(np.zeros(0), 1.0).shape == (0,)


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan, 2.0**-901, 2.0**901])
def test_refused_deviations(std: float) -> None:
    with pytest.raises(InvalidValue, match="std must be"):
        SecureStream(KEY).add_gaussian(np.zeros(1), std)


def test_refused_values() -> None:
    for values in (np.zeros(1, dtype=np.float16), np.zeros((1, 1)), np.zeros(4)[::2]):
        with pytest.raises(InvalidValue, match="vectors of float64"):
            add_gaussian(values, 1.0, Said(1))
    with pytest.raises(InvalidValue, match="vectors of float64"):
        add_gaussian(np.zeros(3), 1.0, Said(1), out=np.zeros(2))
    with pytest.raises(InvalidValue, match="divisor must be"):
        add_gaussian(np.zeros(3), 1.0, Said(1), divisor=0)


SAMPLE = 2**20


def samples(std: float = 1.0) -> np.ndarray:
    return SecureStream(KEY).add_gaussian(np.zeros(SAMPLE), std)


def ks(found: np.ndarray) -> float:
    return float(stats.kstest(found, "norm").pvalue)


def moments(found: np.ndarray) -> float:
    """The least p of the first four moments, which are nearly normal themselves; times four."""
    n = len(found)
    means = [found.mean(), (found**2).mean() - 1, (found**3).mean(), (found**4).mean() - 3]
    deviations = [math.sqrt(v / n) for v in (1, 2, 15, 96)]
    return 4 * min(2 * float(stats.norm.sf(abs(m) / d)) for m, d in zip(means, deviations, strict=True))


def tails(found: np.ndarray) -> float:
    """Counts beyond 1, 2, 3, 4 deviations on each side."""
    edges = np.array([-np.inf, -4, -3, -2, -1, 1, 2, 3, 4, np.inf])
    counts = np.histogram(found, np.clip(edges, -1e9, 1e9))[0]
    return float(stats.chisquare(counts, np.diff(stats.norm.cdf(edges)) * len(found)).pvalue)


def neighbours(found: np.ndarray) -> float:
    """Correlation of a draw, and of its square, with the next."""
    pairs = [(found[:-1], found[1:]), (found[:-1] ** 2 - 1, found[1:] ** 2 - 1)]
    return 2 * min(float(stats.pearsonr(a, b).pvalue) for a, b in pairs)


TESTS = (ks, moments, tails, neighbours)


@pytest.mark.parametrize("test", TESTS)
def test_the_law_is_normal(test: Callable[[np.ndarray], float]) -> None:
    assert test(samples()) > 1e-4


# What is wrong by how much, and which test must see it with the same million draws.
WRONG: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], float]]] = {
    "half a percent too narrow": (lambda x: x * 0.995, moments),
    "half a percent too wide": (lambda x: x * 1.005, moments),
    "shifted by a hundredth": (lambda x: x + 0.01, ks),
    "no tails beyond 4": (lambda x: np.clip(x, -3.999, 3.999), tails),
    "sum of twelve uniforms": (
        lambda x: np.random.default_rng(0).random((12, len(x)), dtype=np.float32).sum(0) - 6.0,
        tails,
    ),
    "each draw used twice": (lambda x: np.repeat(x[: len(x) // 2], 2), neighbours),
    "sign alternates": (lambda x: np.where(np.arange(len(x)) % 2, 1, -1) * np.abs(x), neighbours),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_tests_have_power(name: str) -> None:
    spoil, test = WRONG[name]
    assert test(spoil(samples())) < 1e-6
