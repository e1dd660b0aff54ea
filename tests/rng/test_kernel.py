"""The compiled noise (gaussian.c): its polynomials proven, its bits those of the form without it, within its memory."""

import functools
import hashlib
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from unittest import mock

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from scipy.special import ndtri

from decrescendo.base import native
from decrescendo.base.rng import Keystream, Streams, rounded
from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import CHUNK, KERNEL_ERROR, SOURCE, add_gaussian, grid

KEY = bytes(range(32))
OCTAVES, DEGREE = 16, 16
built = pytest.mark.skipif(rounded.kernel() is None, reason="not built on this machine")
compiler = next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)


@pytest.mark.skipif(
    compiler is None
    or not sys.platform.startswith(("linux", "darwin"))
    or os.environ.get("DECRESCENDO_COMPILED") == "0",
    reason="no C compiler when this was installed",
)
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert rounded.kernel() is not None


def without_kernel() -> mock._patch:
    return mock.patch.object(rounded, "kernel", return_value=None)


@functools.cache
def table() -> list[list[float]]:
    """As in gaussian.c: a list of coefficients for each octave."""
    inside = SOURCE.read_text().split("power[DEGREE + 1][OCTAVES] = {")[1].split("};")[0]
    numbers = [float.fromhex(found) for found in re.findall(r"-?0x1\.[0-9a-f]+p[-+][0-9]+", inside)]
    assert len(numbers) == (DEGREE + 1) * OCTAVES
    return [numbers[octave::OCTAVES] for octave in range(OCTAVES)]


def interpolated(octave: int, degree: int) -> list[mpmath.mpf]:
    """Chebyshev coefficients of the quantile N(u) between 2^-(octave+2) and twice that."""
    low, count = mpmath.mpf(2) ** (-octave - 2), degree + 1
    angles = [mpmath.pi * (2 * j + 1) / (2 * count) for j in range(count)]
    values = [mpmath.sqrt(2) * mpmath.erfinv(1 - low * (3 + mpmath.cos(angle))) for angle in angles]
    sums = (
        mpmath.fsum(y * mpmath.cos(i * angle) for y, angle in zip(values, angles, strict=True)) for i in range(count)
    )
    return [total * (2 if i else 1) / count for i, total in enumerate(sums)]


def as_powers(chebyshev: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """The same polynomial in powers of m - 3/2, half of Chebyshev's variable."""
    before, this = [mpmath.mpf(1)], [mpmath.mpf(0), mpmath.mpf(1)]
    found = [mpmath.mpf(0)] * len(chebyshev)
    for coefficient in chebyshev:
        for i, value in enumerate(before):
            found[i] += coefficient * value * 2**i
        following = [mpmath.mpf(0), *(2 * value for value in this)]
        for i, value in enumerate(before):
            following[i] -= value
        before, this = this, following
    return found


def as_chebyshev(powers: list[float]) -> list[mpmath.mpf]:
    """Back again: x^n = 2^(1-n) sum_k C(n, k) T_{n-2k}(x)."""
    found = [mpmath.mpf(0)] * len(powers)
    for n, value in enumerate(powers):
        for k in range(n // 2 + 1):
            part = mpmath.mpf(value) / 2**n * mpmath.binomial(n, k) * mpmath.mpf(2) ** (1 - n)
            found[n - 2 * k] += part / 2 if n == 2 * k else part
    return found


def derivative(order: int, tail: mpmath.mpf) -> mpmath.mpf:
    """|d^order N / du^order| at u = tail <= 1/2, where it falls in u: P_order(N) / phi(N)^order, with P_1 = 1 and
    P_{n+1} = P_n' + n x P_n, whose coefficients are all >= 0."""
    polynomial = [1]
    for n in range(1, order):
        following = [0, *(n * value for value in polynomial)]
        for i, value in enumerate(polynomial[1:]):
            following[i] += (i + 1) * value
        polynomial = following
    x = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
    return mpmath.polyval(polynomial[::-1], x) / mpmath.npdf(x) ** order


def test_the_table_is_chebyshevs_interpolation() -> None:
    with mpmath.workprec(256):
        for octave in range(OCTAVES):
            assert table()[octave] == [float(value) for value in as_powers(interpolated(octave, DEGREE))]


@pytest.mark.parametrize("octave", some(range(OCTAVES), 6))
def test_the_error_of_the_kernel_is_proven(octave: int) -> None:
    """Everything between the ideal N of a word and s N as it is computed is within KERNEL_ERROR s:
    polynomial against quantile, rounding in Horner's scheme and of u, half of the word's interval, and the rest."""
    many = 40
    with mpmath.workprec(256):
        low, unit = mpmath.mpf(2) ** (-octave - 2), mpmath.mpf(2) ** -53
        # The quantile is within `rest` of its interpolation of degree `many` (the remainder of interpolation), and that
        # one's distance from the table's polynomial is at most the sum of the Chebyshev coefficients of the difference.
        rest = 2 * (low / 4) ** (many + 1) * derivative(many + 1, low) / mpmath.factorial(many + 1)
        exact, ours = interpolated(octave, many), as_chebyshev(table()[octave])
        polynomial = rest + mpmath.fsum(
            abs(a - b) for a, b in itertools.zip_longest(exact, ours, fillvalue=mpmath.mpf(0))
        )
        # Higham, Accuracy and Stability, section 5.1, with or without fused steps; |m - 3/2| <= 1/2.
        sizes = [abs(mpmath.mpf(value)) / 2**n for n, value in enumerate(table()[octave])]
        horner = mpmath.fsum((2 * n + 1) * size for n, size in enumerate(sizes)) * unit * 1.001
        slope = derivative(1, low)
        interval = slope * mpmath.mpf(2) ** -65  # half a unit of the last bit drawn
        converted = 2 * slope * 2 * low * unit  # tail to double, and + 1/2
        # s N, and the sum (beyond 2^-53 of itself, which is counted twice in the kernel).
        following = (mpmath.fsum(sizes) + 1) * unit
        error = polynomial + horner + interval + converted + following
    assert error < 0.98 * KERNEL_ERROR
    assert error > KERNEL_ERROR / 30  # and it is no bound of something else


class Given:
    """Words from an array; after them those of a `Keystream`."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def reader(self, most: int) -> Callable[[int, int], np.ndarray]:
        return lambda start, count: self.words[start : start + count]

    def further(self, index: int) -> Iterator[int]:
        stream = Keystream(KEY, 2**60 + 2**20 * index)
        while True:
            yield int(stream.words(1)[0])


def hard(random: np.random.Generator, count: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Values and words of all sizes: far tails, both ends of octaves, sums on an edge, sums that swamp the noise."""
    words = random.integers(0, 2**64, count, dtype=np.uint64)
    shift = random.integers(0, 64, count, dtype=np.uint64)
    words = np.where(random.random(count) < 0.5, words, words >> shift)
    ends = (np.uint64(1) << shift) + random.integers(-2, 3, count).astype(np.uint64)
    words = np.where(random.random(count) < 0.1, ends, words)
    values = random.normal(size=count) * 2.0 ** random.integers(-60, 30, count)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**31, 1e-45])
    values = np.where(random.random(count) < 0.05, random.choice(special, count), values)
    return values.astype(dtype), words


@built
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 80),
    std=st.floats(1e-6, 1e6),
    divisor=st.floats(1e-3, 1e5),
    dtype=st.sampled_from([np.float32, np.float64]),
    best=st.sampled_from([0, 1, 2]),
    in_place=st.booleans(),
)
def test_the_same_bits_with_and_without_it_in_every_version(
    seed: int, count: int, std: float, divisor: float, dtype: type, best: int, in_place: bool
) -> None:
    values, words = hard(np.random.default_rng(seed), count, dtype)
    # Some sums lie on the edge between two multiples, as far as float64 can tell.
    tail = (words % np.uint64(2**63)).astype(np.float64)
    edge = (np.arange(count) % 7 == 0) & (tail > 0)
    noise = -ndtri((tail + 0.5) * 2.0**-64) * np.where(words >> np.uint64(63), -std, std)
    values = np.where(edge, (np.arange(count) + 0.5) * grid(std) - noise, values).astype(dtype)
    with without_kernel():
        expected = add_gaussian(values, std, Given(words), divisor=divisor)
    with mock.patch.object(native, "BEST", best):
        out = values.copy() if in_place else None
        found = add_gaussian(values if out is None else out, std, Given(words), divisor=divisor, out=out)
    assert found.dtype == dtype
    assert found.tobytes() == expected.tobytes() or np.array_equal(found, expected, equal_nan=True)


@built
@pytest.mark.parametrize("best", [0, 1, 2])
def test_a_million_numbers_have_the_same_bits(best: int) -> None:
    """Open coordinates of both forms are among them, and are not the same ones."""
    sums = np.random.default_rng(0).normal(size=2**20).astype(np.float32)
    with without_kernel():
        expected = Keystream(KEY).add_gaussian(sums, 0.7)
    with mock.patch.object(native, "BEST", best):
        assert np.array_equal(Keystream(KEY).add_gaussian(sums, 0.7), expected)


# Seed, numbers, bytes used before, dtype, deviation, divisor; and SHA-256 of the result as version 0.1.0 first made it.
RECORDED = [
    (0, 1, 0, "<f4", 1.0, 1.0, "f13bfb0199864f06e7569924fe3952de"),
    (1, 7, 0, "<f8", 0.3, 7.0, "ab7123ac5b59a0a466832be7a0ed8332"),
    (2, 1000, 3, "<f4", 0.0025, 250.0, "60032ac5a8f7924dba4a215d8f4c358b"),
    (3, 4097, 8, "<f8", 10000.0, 3.0, "37ad8462f74ed27db2331dbfd3757a56"),
    (4, 70_001, 5, "<f4", 1.3, 7.0, "e96263db26a3c4da73f50475a9c00723"),
    (5, 300_003, 1, "<f4", 0.7, 12.5, "3ee7e6c39585d099fe7c6838ecf06caa"),
    (6, 200_000, 16, "<f8", 11.0, 1.0, "1bc1858307d63bbe3488f8be13c8f0fd"),
]


@pytest.mark.parametrize("best", [0, 1, 2])
@pytest.mark.parametrize(("seed", "size", "before", "dtype", "std", "divisor", "digest"), RECORDED)
def test_a_seed_gives_the_numbers_that_it_gave(
    seed: int, size: int, before: int, dtype: str, std: float, divisor: float, digest: str, best: int
) -> None:
    stream, sums = Streams(seed).keyed("noise"), (np.arange(size) % 1001 / 500 - 1).astype(dtype)
    stream.take(before)
    with mock.patch.object(native, "BEST", best):
        found = stream.add_gaussian(sums, std, divisor=divisor)
    assert hashlib.sha256(found.tobytes()).hexdigest()[:32] == digest


@built
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 200),
    start=st.one_of(st.integers(0, 9), st.integers(2**65 - 400, 2**65 + 2), st.integers(2**66 - 9000, 2**66 + 9000)),
    dtype=st.sampled_from([np.float32, np.float64]),
    best=st.sampled_from([1, 2]),
    in_place=st.booleans(),
)
def test_the_kernels_own_words_are_those_of_the_cipher(
    seed: int, count: int, start: int, dtype: type, best: int, in_place: bool
) -> None:
    """Of any place: the second half of a block, and numbers of blocks about 2^64."""
    random = np.random.default_rng(seed)
    values, words = hard(random, count, dtype)[0], ReservedWords(random.bytes(32), start)
    with without_kernel():
        expected = add_gaussian(values, 1.7, words, divisor=3.0)
    with mock.patch.object(native, "BEST", best):
        out = values.copy() if in_place else None
        found = add_gaussian(values if out is None else out, 1.7, words, divisor=3.0, out=out)
    assert np.array_equal(found, expected, equal_nan=True)


@built
@pytest.mark.skipif(
    not (Path("/proc/cpuinfo").exists() and " aes " in Path("/proc/cpuinfo").read_text()), reason="no AES"
)
def test_the_kernel_draws_by_itself_where_the_processor_can() -> None:
    with mock.patch.object(ReservedWords, "reader", side_effect=AssertionError):
        Keystream(KEY).add_gaussian(np.zeros(1000), 1.0)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_same_bits_with_any_number_of_threads_and_in_parts(threads: int) -> None:
    sums, before = np.random.default_rng(1).normal(size=5 * CHUNK + 77), torch.get_num_threads()
    stream = Keystream(KEY, 5)
    with mock.patch.object(native, "on_all_threads", lambda work: work()):
        expected = stream.add_gaussian(sums, 1.3)
    assert stream.position == 16 + 8 * len(sums)
    try:
        torch.set_num_threads(threads)
        assert np.array_equal(Keystream(KEY, 5).add_gaussian(sums, 1.3), expected)
    finally:
        torch.set_num_threads(before)
    # A part, as one shard of several would draw it: its words are where they were.
    part = slice(1234, 2 * CHUNK + 11)
    assert np.array_equal(Keystream(KEY, 16 + 8 * 1234).add_gaussian(sums[part], 1.3), expected[part])


def test_what_fails_and_who_comes_at_the_same_time_gets_no_word_twice() -> None:
    """Two sums with the same noise would betray their difference."""
    stream, seen = Keystream(KEY), list[np.ndarray]()
    with mock.patch.object(rounded, "adder", side_effect=RuntimeError), pytest.raises(RuntimeError):
        stream.add_gaussian(np.zeros(100), 1.0)
    assert stream.position == 800
    assert stream.words(3).tolist() == Keystream(KEY, 800).words(3).tolist()
    threads = [Thread(target=lambda: seen.append(stream.add_gaussian(np.zeros(CHUNK), 1.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({found[:4].tobytes() for found in seen}) == 8
    assert stream.position == 832 + 8 * 8 * CHUNK


def test_more_words_of_a_coordinate_are_used_for_nothing_else() -> None:
    from decrescendo.base.rng.keystream import ReservedWords

    places = [(0, 0), (0, 1), (0, 2), (1, 0), (2**40, 7)]
    firsts = {place: next(ReservedWords(KEY, 2 * place[0]).further(place[1])) for place in places}
    # Coordinate 2 of a vector at block 0 is coordinate 0 of one at block 1; no others share.
    assert firsts[0, 2] == firsts[1, 0]
    assert len(set(firsts.values())) == len(places) - 1
    assert not set(firsts.values()) & set(Keystream(KEY).words(10_000).tolist())


def test_an_error_on_another_thread_is_not_lost() -> None:
    class Broken(Given):
        def reader(self, most: int) -> Callable[[int, int], np.ndarray]:
            raise RuntimeError("no words")

    with pytest.raises(RuntimeError, match="no words"):
        add_gaussian(np.zeros(3 * CHUNK), 1.0, Broken(np.zeros(0, dtype=np.uint64)))


MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int64_t GAUSSIAN(const void *, void *, const uint64_t *, int64_t *, int64_t, double, double, double, double,
                 unsigned, unsigned);
int64_t GAUSSIAN_keyed(const void *, void *, const void *, uint64_t, uint64_t, unsigned, int64_t *, uint64_t *, int64_t,
                       double, double, double, double, unsigned, unsigned);
static uint64_t state = 1, listed = 0;
static char any(void) { return (char)((state = state * 6364136223846793005u + 1442695040888963407u) >> 56); }
int main(void)
{
    for (int64_t count = 0; count < 200; count++)
        for (unsigned wide = 0; wide < 2; wide++)
            for (unsigned best = 0; best < 3; best++)
                for (int kind = 0; kind < 3; kind++) {
                    /* Each block ends where its last number does; words begin anywhere, numbers where a float may. */
                    const size_t size = (wide ? 8 : 4) * (size_t)count;
                    char *values = malloc(size + 4), *words = malloc(8 * (size_t)count + 1);
                    int64_t *left = malloc(8 * (size_t)count + 1);
                    for (size_t i = 0; i < 8 * (size_t)count + 1; i++)
                        words[i] = kind == 2 ? 0 : any();
                    for (size_t i = 0; i < size + 4; i++)
                        values[i] = kind == 0 ? 0 : any();
                    listed += (uint64_t)GAUSSIAN(values + 4, values + 4, (uint64_t *)(words + 1), left, count,
                                                 1.5, 0x1p20, 0.49, 0x1p-20, wide, best);
                    uint64_t *kept = malloc(8 * (size_t)count + 1);
                    for (unsigned odd = 0; odd < 2 && count >= 4; odd++)
                        GAUSSIAN_keyed(values + 4, values + 4, words, 7, UINT64_MAX - 2000, odd, left, kept, count,
                                       1.5, 0x1p20, 0.49, 0x1p-20, wide, best);
                    free(kept);
                    free(values), free(words), free(left);
                }
    printf("%llu", (unsigned long long)listed);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(compiler is None, reason="no C compiler")
@pytest.mark.parametrize("wrong", ["", "one more", "signed"])
def test_sanitizers_see_nothing(tmp_path: Path, wrong: str) -> None:
    """Address and undefined behaviour, every version, every size to 200; and they do see what is wrong."""
    (tmp_path / "main.c").write_text(MAIN)
    source = SOURCE.read_text()
    if wrong == "one more":
        source = source.replace("if (size < BLOCK)", "if (size < BLOCK - 1)")
    if wrong == "signed":
        source = source.replace("int64_t listed = 0;", "int64_t listed = INT64_MAX;")
    (tmp_path / "kernel.c").write_text(source)
    flags = [
        "-g",
        "-O1",
        "-std=gnu11",
        "-Wno-psabi",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{SOURCE.parent}",
        "-DGAUSSIAN=kernel",
        "-DGAUSSIAN_keyed=kernel_keyed",
    ]
    built = subprocess.run(
        [str(compiler), *flags, "main.c", "kernel.c", "-o", "program"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "sanitize" in built.stderr or "asan" in built.stderr:
        pytest.skip("no sanitizers here")
    assert not built.returncode, built.stderr
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)
    if wrong:
        assert done.returncode != 0
    else:
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 1000


@built
def test_nothing_is_written_outside() -> None:
    block = np.full(1000, 7.0, dtype=np.float32)
    for count, start in itertools.product((0, 1, 7, 8, 9, 65), (0, 1, 3, 100)):
        block[:] = 7
        Keystream(KEY).add_gaussian(np.zeros(count, np.float32), 1.0, out=block[start : start + count])
        assert (np.delete(block, np.s_[start : start + count]) == 7).all()
        assert not (block[start : start + count] == 7).any()


def test_the_bound_has_power() -> None:
    """A table that is wrong in the fortieth bit breaks the proof."""
    wrong = [list(row) for row in table()]
    wrong[3][0] *= 1 + 2.0**-44
    with mock.patch(f"{__name__}.table", return_value=wrong), pytest.raises(AssertionError):
        test_the_error_of_the_kernel_is_proven(3)
    assert math.isfinite(KERNEL_ERROR)
