"""Facts: example i is decided by i alone; its pixels are those of a slow obvious loop; its label is its source's."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from often import some

from decrescendo.errors import InvalidValue
from decrescendo.federated import most_clients
from decrescendo_papers.data import InfiniteMnist, images, infinite, infinite_mnist
from decrescendo_papers.data.fetch import FOLDER_VARIABLE
from decrescendo_papers.data.fields import displacement_fields
from decrescendo_papers.data.infinite import sources
from decrescendo_papers.models import infinite_cnn, paper_cnn

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = os.environ.get(FOLDER_VARIABLE) or (str(BESIDE) if BESIDE.is_dir() else None)
FIELDS_SHA256 = "599e4d041c22d594b53fc7cefa50510234c90ee911424ecff341a89049684615"


@pytest.fixture(scope="module")
def digits() -> InfiniteMnist:
    """A stand-in for MNIST: each image is noise of its own, with blank and full ones among them."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (70_000, 28, 28), dtype=np.uint8)
    pixels[10_001], pixels[10_002] = 0, 255
    return InfiniteMnist(pixels, rng.integers(0, 10, 70_000, dtype=np.uint8))


def slowly(digits: InfiniteMnist, i: int) -> np.ndarray:
    """Example ``i`` pixel by pixel, in exact arithmetic."""
    if i < 70_000:
        return digits.pixels[i]
    x = digits.pixels[10_000 + (i - 10_000) % 60_000].astype(int)
    k1 = (131071 * i % 2**32) % 1521
    k2 = (k1 + 1 + 2 * i) % 1522
    fields = displacement_fields()

    def at(r: int, c: int) -> int:
        return int(x[r, c]) if 0 <= r < 28 and 0 <= c < 28 else 0

    made = np.zeros((28, 28), dtype=np.uint8)
    dr, dc = infinite.SHIFTS[k1 % 9]
    for r in range(28):
        for c in range(28):
            down, right = at(r + 1, c) - at(r - 1, c), at(r, c + 1) - at(r, c - 1)
            value = 512 * at(r, c) + int(fields[k1, r, c]) * down - int(fields[k2, r, c]) * right
            if 0 <= r + dr < 28 and 0 <= c + dc < 28:
                made[r + dr, c + dc] = min(255, max(0, value // 512))
    return made


def test_every_pixel_is_that_of_the_slow_loop(digits: InfiniteMnist) -> None:
    rng = np.random.default_rng(1)
    # All nine moves, blank and full images, small and large numbers.
    chosen = [5, 10_000, 69_999, 70_000, 70_001, 70_002, 130_001, 2**40, *rng.integers(70_000, 2**33, 40)]
    numbers = np.array(chosen)
    assert set(infinite.fields_of(numbers)[0] % 9) == set(range(9))
    for number, image in zip(numbers, digits.images(numbers), strict=True):
        assert np.array_equal(image, slowly(digits, int(number))), number


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.data())
def test_neither_order_nor_chunks_nor_company_matter(
    digits: InfiniteMnist, numbers: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(numbers))))
    cut = data.draw(st.integers(0, len(numbers)))
    whole = digits.images(np.array(numbers))
    again = digits.images(np.array(numbers)[order])
    assert np.array_equal(again, whole[order])
    parts = [digits.images(np.array(part, dtype=np.int64)) for part in (numbers[:cut], numbers[cut:])]
    assert np.array_equal(np.concatenate(parts), whole)
    expected = [digits.classes[i if i < 70_000 else 10_000 + (i - 10_000) % 60_000] for i in numbers]
    assert digits.labels(np.array(numbers)).tolist() == [int(label) for label in expected]


def test_chunks_meet_without_a_seam(digits: InfiniteMnist) -> None:
    numbers = np.arange(70_000, 70_000 + 2 * infinite.CHUNK + 3)
    whole = digits.images(numbers)
    for place in (0, infinite.CHUNK - 1, infinite.CHUNK, 2 * infinite.CHUNK, len(numbers) - 1):
        assert np.array_equal(whole[place], digits.images(numbers[place : place + 1])[0])


def test_a_field_is_chosen_by_number_and_never_twice_for_one_image() -> None:
    numbers = np.arange(70_000, 200_000)
    first, second = infinite.fields_of(numbers)
    assert not (first == second).any()
    assert len(np.unique(first)) == 1521
    assert len(np.unique(second)) == 1522
    # The sign that the published rule gives by the parity of the two would always be the same.
    assert set((first + second) % 2) == {1}


def test_fields_are_smooth_centred_and_the_same_everywhere() -> None:
    fields = displacement_fields()
    values = fields / 256
    assert abs(float(values.mean())) < 0.02
    # The border is no special place: the deviation of each pixel over the fields is about the same.
    deviations = values.std(axis=0)
    assert 0.9 < float(deviations.min()) <= float(deviations.max()) < 1.1
    # Neighbours move together: correlation exp(-1 / (4 sigma^2)) in theory.
    steps = np.diff(values, axis=1)
    assert abs(float(np.mean(steps**2)) / (2 * (1 - np.exp(-1 / 64))) - 1) < 0.05
    assert not fields.flags.writeable
    assert hashlib.sha256(fields.astype("<i2").tobytes()).hexdigest() == FIELDS_SHA256


@pytest.mark.parametrize("numbers", [[-1], [3, 2**40 + 1]])
def test_numbers_out_of_range_are_refused(digits: InfiniteMnist, numbers: list[int]) -> None:
    with pytest.raises(InvalidValue, match=r"indices must be in 0 \.\. 1099511627776"):
        digits.images(np.array(numbers))
    with pytest.raises(InvalidValue, match="indices must be in"):
        digits.labels(np.array(numbers))


def test_other_numbers_of_images_are_refused() -> None:
    with pytest.raises(InvalidValue, match="must be made from 70000 images"):
        InfiniteMnist(np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.uint8))


def test_a_data_set_is_a_range_of_numbers(digits: InfiniteMnist, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = digits.pixels[10_000:], digits.pixels[:10_000]
    arrays = (train, digits.classes[10_000:], test, digits.classes[:10_000])
    monkeypatch.setattr(images, "mnist_arrays", lambda: arrays)
    infinite._generator.cache_clear()
    try:
        data = infinite_mnist(60_020)
        with pytest.raises(InvalidValue, match="count must be"):
            infinite_mnist(0)
    finally:
        infinite._generator.cache_clear()
    assert data.train_inputs.dtype == torch.uint8
    assert data.train_inputs.shape == (60_020, 1, 28, 28)
    assert np.array_equal(data.train_inputs[:60_000, 0].numpy(), train)
    assert np.array_equal(data.train_inputs[60_000:, 0].numpy(), digits.images(np.arange(70_000, 70_020)))
    assert torch.equal(data.train_targets[60_000:], data.train_targets[:20])
    assert np.array_equal(data.test_inputs[:, 0].numpy(), test)
    # The network takes the bytes as they are, and normalises them by the declared constants.
    rows = data.train_inputs[:5]
    by_hand = (rows.float() / 255 - data.mean) / data.std
    torch.testing.assert_close(infinite_cnn(3)(rows), paper_cnn(3)(by_hand), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(REAL is None, reason="the real files are not here")
def test_the_real_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(REAL))
    data = infinite_mnist(62_000)
    assert torch.bincount(data.test_targets).tolist()[:3] == [980, 1135, 1032]
    deformed, original = data.train_inputs[60_000:].float(), data.train_inputs[:2_000].float()
    # Ink is moved, not made: about as much of it, in other places.
    assert abs(float(deformed.mean() / original.mean()) - 1) < 0.1
    assert 10 < float((deformed - original).abs().mean()) < 40
    # What is trained on is pinned.
    assert hashlib.sha256(data.train_inputs[60_000:].numpy().tobytes()).hexdigest() == DEFORMED_SHA256


DEFORMED_SHA256 = "35269bd80d230ed60f81a48405a7689f0ce7bf46a00ff56c9df9e52eb74463ea"


@pytest.mark.parametrize(("rows", "records", "expected"), some([(250_000, 1, 5), (500_000, 1, 9), (500_000, 10, 9)], 1))
def test_clients_behind_a_source_digit(rows: int, records: int, expected: int) -> None:
    numbers = np.arange(rows)
    assert most_clients(sources(10_000 + numbers), numbers // records) == expected
