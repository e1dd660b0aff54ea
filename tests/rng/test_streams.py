"""Streams: independent by purpose, and no smaller than the seed they come from; and the law of the noise they give."""

import json

import numpy as np
import pytest
import torch
from benchmarks.noise_law import RESULT, from_json, judge, power, walk

from decrescendo.base.rng import PURPOSES, Streams


def test_torch_keeps_32_bits_of_a_seed_on_the_cpu() -> None:
    """The reason for filling the state ourselves; when this fails, torch has changed."""
    one, other = (torch.Generator().manual_seed(seed) for seed in (5, 5 + 2**32))
    assert torch.equal(torch.randn(64, generator=one), torch.randn(64, generator=other))


def test_a_torch_stream_has_a_state_of_its_own_and_not_one_of_two_to_the_32() -> None:
    streams = Streams(3)
    ours = torch.rand(64, generator=streams.torch("noise"))
    short = torch.rand(64, generator=torch.Generator().manual_seed(streams.seed_of("noise")))
    assert not torch.equal(ours, short)


def test_a_torch_stream_is_the_mersenne_twister_of_the_words_it_was_given() -> None:
    generator = Streams(7).torch("noise")
    words = generator.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    twin = np.random.MT19937()
    twin.state = {"bit_generator": "MT19937", "state": {"key": words.astype(np.uint32), "pos": 624}}
    # torch takes one or two words a number, depending on its version.
    words_drawn = twin.random_raw(4_000) % 2**31
    found = torch.randint(2**31, (2_000,), generator=generator).numpy()
    assert np.isin(found, words_drawn).all()


def test_streams_are_repeatable_and_differ_by_purpose_and_seed() -> None:
    drawn = [
        tuple(torch.rand(4, generator=Streams(seed).torch(purpose)).tolist())
        for seed in (0, 1, 2**64, 2**64 + 2**32)
        for purpose in PURPOSES
    ]
    assert len(set(drawn)) == len(drawn)
    again = torch.rand(4, generator=Streams(0).torch(PURPOSES[0]))
    assert tuple(again.tolist()) == drawn[0]


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
