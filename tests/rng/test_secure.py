"""Streams from a key: the cipher itself, positions, coins, and what must not happen to a stream."""

import copy
import math
import os
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from decrescendo.base.rng import Secure, SecureStream
from decrescendo.errors import InvalidType, InvalidValue

KEY = bytes(range(32))


def test_is_the_cipher_of_the_counter() -> None:
    """Block by block, without the mode."""
    block = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    expected = b"".join(block.update(index.to_bytes(16, "big")) for index in range(8))
    assert SecureStream(KEY).words(16).tobytes() == expected


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(0, 2000))
def test_a_position_is_found_again(counts: list[int], start: int) -> None:
    stream = SecureStream(KEY, start)
    for count in counts:
        stream.words(count)
    assert stream.position == start + 8 * sum(counts)
    assert SecureStream(KEY, stream.position).words(5).tolist() == stream.words(5).tolist()


def test_streams_differ() -> None:
    root = SecureStream(KEY)
    streams = [SecureStream.fresh(), SecureStream.fresh(), root.child("noise"), root.child("sampling"), root]
    assert len({tuple(stream.words(2).tolist()) for stream in streams}) == len(streams)
    assert root.child("noise").words(3).tolist() == SecureStream(KEY).child("noise").words(3).tolist()


@given(st.floats(0, 1), st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1))
def test_a_coin_is_its_first_64_bits_below_the_rate(rate: float, high: int, rest: int) -> None:
    """All 16 bits of a coin, and its next 48 where they decide, against exact integers."""
    stream = SecureStream(KEY)
    given = [high.to_bytes(2, "little"), rest.to_bytes(8, "little")]

    class Said:
        position = 0

        def _bytes(self, count: int) -> bytes:
            return given.pop(0) if count else b""

        def words(self, count: int) -> np.ndarray:
            return np.frombuffer(self._bytes(8 * count), dtype="<u8")

    found = SecureStream.subset(Said(), 1, rate)  # type: ignore[arg-type]
    coin = (high << 48) | (rest >> 16)
    assert (len(found) == 1) == (coin < int(rate * 2**64))
    assert stream.position == 0


def test_rates_at_the_ends() -> None:
    stream = SecureStream(KEY)
    assert stream.subset(1000, 0.0).size == 0
    assert stream.subset(1000, 1.0).tolist() == list(range(1000))
    assert stream.subset(0, 0.5).size == 0
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidValue, match="rate must be"):
            stream.subset(1, rate)


def counts(rate: float, size: int, times: int) -> tuple[np.ndarray, np.ndarray]:
    stream, seen, sizes = SecureStream(KEY), np.zeros(size), np.zeros(times)
    for index in range(times):
        chosen = stream.subset(size, rate)
        seen[chosen] += 1
        sizes[index] = len(chosen)
    return seen, sizes


def test_subsets_are_poisson_samples() -> None:
    """Each record as often as its rate says, and sizes as wide as independent coins make them; with power."""
    rate, size, times = 0.01, 2000, 4000
    seen, sizes = counts(rate, size, times)

    def p_rate(actual: float) -> float:
        return float(stats.binomtest(int(seen.sum()), size * times, actual).pvalue)

    def p_spread(values: np.ndarray, trials: int) -> float:
        statistic = (len(values) - 1) * values.var(ddof=1) / (trials * rate * (1 - rate))
        low = float(stats.chi2.cdf(statistic, len(values) - 1))
        return 2 * min(low, 1 - low)

    assert p_rate(rate) > 1e-4
    assert max(p_rate(rate * 1.02), p_rate(rate / 1.02)) < 1e-6
    assert min(p_spread(seen, times), p_spread(sizes, size)) > 1e-4
    # Batches of a fixed size, as a shuffled loader makes them, are seen at once.
    assert p_spread(np.full(times, size * rate), size) < 1e-6


def test_the_key_is_not_shown_copied_or_sent() -> None:
    stream = SecureStream.fresh()
    assert stream.key.hex() not in repr(stream) + str(stream)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidType, match="must not be copied"):
            attempt(stream)


def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SecureStream.fresh()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (lambda: stream.words(1), lambda: stream.subset(3, 0.5), lambda: stream.child("noise")):
        with pytest.raises(InvalidType, match="forked"):
            use()


def test_no_seed_can_be_passed() -> None:
    with pytest.raises(TypeError):
        Secure(0)  # type: ignore[call-arg]
    with pytest.raises(InvalidValue, match="32 bytes"):
        SecureStream(b"short")
