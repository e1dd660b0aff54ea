"""The law of the noise that is drawn: millions of numbers here, and the 10^10 that benchmarks/noise_law.py counted."""

import json

import pytest
from benchmarks.noise_law import RESULT, from_json, judge, power, walk


def test_millions_of_numbers_have_the_law_that_is_stated() -> None:
    """Bins, tails, lowest bits, independence of neighbours, chunks, keys and counters; and the tests would see."""
    counts = walk(2**22)
    assert all(p > 1e-5 for p in judge(counts).values())
    assert all(p < 1e-6 for p in power(counts).values())


@pytest.mark.skipif(not RESULT.exists(), reason="python -m benchmarks.noise_law was not run")
def test_ten_thousand_millions_had() -> None:
    """What was counted is judged again."""
    found = json.loads(RESULT.read_text())
    counts = from_json(found)
    assert counts.numbers >= 10**10
    assert sum(int(seen.sum()) for seen in counts.bins.values()) == counts.numbers == int(counts.low.sum())
    assert judge(counts) == pytest.approx(found["p"], rel=1e-3)
    assert all(p > 1e-3 for p in judge(counts).values())
    assert all(p < 1e-6 for p in power(counts).values())
    above, below, expected = found["above, below, expected beyond"]["6.0"]
    assert above > 0
    assert below > 0
    assert expected > 9
