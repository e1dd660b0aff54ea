"""Streams: independent by purpose, and no smaller than the seed they come from."""

import numpy as np
import torch

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
