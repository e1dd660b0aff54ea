"""A model's own random numbers: seeds from a stream of their own, and torch's global generators left as they were."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from decrescendo.base.rng import Secure, SecureStream, Seeds, Streams, seeded
from decrescendo.errors import InvalidValue

COUNT = 400


def drawn(seed: int, count: int = 5) -> list[float]:
    with seeded(seed):
        return torch.randn(count).tolist()


def test_a_seed_gives_the_same_seeds_again_and_nobody_elses_stream() -> None:
    first, again = Seeds.of(3), Seeds.of(3)
    found = [first() for _ in range(5)]
    assert found == [again() for _ in range(5)]
    assert len(set(found)) == 5
    others = [Seeds.of(4)(), Seeds.of(3, "trace")(), Seeds(Streams(3).numpy("sampling"))()]
    assert not set(found) & set(others)


def test_secure_seeds_cannot_be_repeated() -> None:
    assert len({Seeds.of(Secure())() for _ in range(50)}) == 50


@pytest.mark.parametrize("seed", [5, Secure()], ids=["seeded", "secure"])
def test_seeds_fill_63_bits(seed: int | Secure) -> None:
    """Each bit is set about half of the time; the next one never, so that every generator takes them."""
    seeds = Seeds.of(seed)
    found = np.array([seeds() for _ in range(COUNT)], dtype=np.uint64)
    ones = [int(((found >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert ones[63] == 0
    assert all(abs(2 * one - COUNT) < 6 * COUNT**0.5 for one in ones[:63])


def test_a_stream_is_put_back_to_where_it_was() -> None:
    stream = SecureStream.fresh()
    seeds = Seeds(stream)
    seeds()
    position, wanted = stream.position, [seeds() for _ in range(3)]
    seeds.stream = SecureStream(stream.key, position)
    assert [seeds() for _ in range(3)] == wanted


@pytest.mark.parametrize("error", [False, True])
def test_the_global_generator_is_neither_read_nor_moved(error: bool) -> None:
    found = []
    for start in (0, 1):
        torch.manual_seed(start)
        torch.randn(1)  # one of a pair of normal numbers is kept for the next call
        before = torch.get_rng_state()
        with suppress(ZeroDivisionError), seeded(7):
            found.append(torch.randn(5).tolist())
            if error:
                raise ZeroDivisionError
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


def test_the_whole_seed_counts_on_the_cpu_where_torchs_own_keeps_32_bits() -> None:
    """Two to the 32 masks can be tried one by one."""
    low, high = 12345, 12345 + (1 << 40)
    short = [torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist() for seed in (low, high)]
    assert short[0] == short[1]
    assert drawn(low) != drawn(high)
    assert drawn(low) == drawn(low)
    with seeded(high):
        assert torch.initial_seed() == high


def test_seeds_are_whole_numbers_of_63_bits() -> None:
    for wrong, what in ((-1, "must be >= 0"), (2**63, r"must be below 2\^63, got one of 64 bits")):
        with pytest.raises(InvalidValue, match=what), seeded(wrong):
            pass
    assert drawn(2**63 - 1) != drawn(2**62 - 1)


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Times the root of the number of places: about normal if the masks are independent fair coins."""
    return float(((2 * one.double() - 1) * (2 * other.double() - 1)).mean() * one.numel() ** 0.5)


def masks(seeds: list[int], rows: int = 40, width: int = 250) -> torch.Tensor:
    layer, ones, found = nn.Dropout(0.5), torch.ones(rows, width), []
    for seed in seeds:
        with seeded(seed):
            found.append(layer(ones) > 0)
    return torch.stack(found)


def worst(found: torch.Tensor) -> float:
    """Of all pairs of rows, in one pass and over passes, and of all pairs of passes."""
    flat, whole = found.flatten(0, 1), found.flatten(1)
    rows = (abs(correlation(flat[i], flat[j])) for i in range(len(flat)) for j in range(i))
    passes = (abs(correlation(whole[i], whole[j])) for i in range(len(whole)) for j in range(i))
    return max(*rows, *passes)


@pytest.mark.slow
def test_masks_of_rows_and_passes_are_independent_and_what_is_shared_would_be_seen() -> None:
    """Neighbouring seeds too. 7,140 pairs of rows: 5.5 deviations are passed by chance once in some thousand seeds."""
    found = masks([5, 6, 7], rows=40)
    assert worst(found) < 5.5
    assert abs(correlation(found, torch.ones_like(found))) < 5.5
    # Power: one row that has half of its coins from another, or a tenth of all coins used in two passes.
    half, tenth = found.clone(), found.clone()
    half[1, 3, :125] = half[0, 7, :125]
    tenth[1, :, :25] = tenth[0, :, :25]
    assert worst(half) > 5.5
    assert worst(tenth) > 5.5


@pytest.mark.gpu
def test_the_generators_of_cuda_devices_are_put_to_the_seed_and_back() -> None:
    device = torch.device("cuda", 0)
    found = []
    for start in (0, 1):
        torch.cuda.manual_seed(start)
        torch.rand(3, device=device)
        before = torch.cuda.get_rng_state(device)
        with seeded(7, [device, torch.device("cpu")]):
            found.append(torch.rand(5, device=device).tolist())
        assert torch.equal(torch.cuda.get_rng_state(device), before)
    assert found[0] == found[1]
    with seeded(8, [device]):
        assert torch.rand(5, device=device).tolist() != found[0]
