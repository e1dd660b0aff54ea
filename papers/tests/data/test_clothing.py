"""Made-up clothes: shaped and laid out like Fashion-MNIST's, the same for a seed, made without opening any data set."""

import numpy as np
import pytest
import torch

from decrescendo.errors import InvalidValue
from decrescendo_papers.data import Dataset, fetch, synthetic_clothing
from decrescendo_papers.data.clothes import GARMENTS, Dice, Part
from decrescendo_papers.data.clothing import FINE, SIDE, _drawn
from decrescendo_papers.data.frozen import frozen_stream

SANDAL, SNEAKER, BOOT = 5, 7, 9
TROUSERS, DRESS = 1, 3
GREY = [97, 45, 104, 52, 82, 22, 94, 33, 77, 65]


@pytest.fixture(scope="module")
def clothes() -> Dataset:
    return synthetic_clothing(600, seed=1)


def pixels(data: Dataset) -> np.ndarray:
    """Back to bytes, whole numbers up to rounding."""
    return ((data.train_inputs * data.std + data.mean) * data.scale).squeeze(1).numpy()


def test_they_are_shaped_and_coded_like_fashion_mnist(clothes: Dataset) -> None:
    assert clothes.train_inputs.shape == (600, 1, 28, 28)
    assert clothes.test_inputs.shape == (100, 1, 28, 28)
    assert (clothes.scale, clothes.mean, clothes.std) == (255.0, 0.2860, 0.3530)
    values = pixels(clothes)
    assert np.abs(values - np.rint(values)).max() < 1e-3
    assert round(float(values.min())) == 0
    assert round(float(values.max())) == 255
    every = torch.cat([clothes.train_targets, clothes.test_targets])
    assert torch.bincount(every).tolist() == [70] * 10


def _sides(image: np.ndarray) -> tuple[int, int, int, int]:
    """First and last row, first and last column that are not background."""
    rows, columns = (np.flatnonzero(image.any(axis=axis)) for axis in (1, 0))
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


@pytest.mark.parametrize("kind", range(10))
def test_the_longer_side_fills_the_image_and_the_shorter_is_in_the_middle(kind: int) -> None:
    random = frozen_stream("test", kind)
    for _ in range(20):
        top, bottom, left, right = _sides(_drawn(GARMENTS[kind](Dice(random)), np.zeros(4)))
        assert max(bottom - top, right - left) >= SIDE - 2
        assert abs((SIDE - 1 - bottom) - top) <= 3  # lines have a width that trimming does not see
        assert abs((SIDE - 1 - right) - left) <= 3


def test_clothes_are_as_their_kind_is_worn(clothes: Dataset) -> None:
    """Legs and dresses are narrow, shoes low, their toes lower than their heels."""
    images, kinds = pixels(clothes) > 10, clothes.train_targets.numpy()
    wide, high = images.any(axis=1).sum(axis=1), images.any(axis=2).sum(axis=1)
    for kind in (TROUSERS, DRESS):
        assert wide[kinds == kind].mean() < 0.7 * high[kinds == kind].mean()
    for kind in (SANDAL, SNEAKER):
        assert high[kinds == kind].mean() < 0.75 * wide[kinds == kind].mean()
    for kind in (SNEAKER, BOOT):
        shoes = images[kinds == kind]
        assert shoes[:, :, : SIDE // 4].sum() < 0.75 * shoes[:, :, -SIDE // 4 :].sum()


def test_a_part_is_drawn_over_those_before_it_and_a_hole_shows_the_background() -> None:
    square = np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])
    image = _drawn([Part(square, 1.0), Part(square / 2, 0.0), Part(square[:2] * 0.9, 0.5, 0.05)], np.zeros(4))
    assert image[14, 14] == 0
    assert image[14, 3] == image[24, 14] == 255
    assert 100 < image[1, 14] < 200
    assert image.shape == (SIDE, SIDE)
    assert SIDE * FINE == 112


def test_the_same_seed_gives_the_same_data_and_another_one_others(clothes: Dataset) -> None:
    assert torch.equal(synthetic_clothing(600, seed=1).train_inputs, clothes.train_inputs)
    assert not torch.equal(synthetic_clothing(600, seed=2).train_inputs, clothes.train_inputs)


def test_what_results_were_made_with_has_not_changed() -> None:
    """Mean grey by kind, so coarse that another version of Pillow does not matter."""
    data = synthetic_clothing(600)
    values, kinds = pixels(data), data.train_targets
    assert kinds[:12].tolist() == [3, 0, 7, 9, 1, 1, 9, 3, 1, 0, 9, 6]
    found = [round(float(values[kinds.numpy() == kind].mean())) for kind in range(10)]
    assert found == pytest.approx(GREY, abs=1)


def test_no_data_set_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> bytes:
        raise AssertionError("a data set was opened")

    for module in ("images", "infinite"):
        monkeypatch.setattr(f"decrescendo_papers.data.{module}.read", closed, raising=False)
    monkeypatch.setattr(fetch, "find_local", closed)
    assert len(synthetic_clothing(12)) == 12


@pytest.mark.parametrize("count", [5, 0, -1])
def test_too_few_are_refused(count: int) -> None:
    with pytest.raises(InvalidValue, match="count must be"):
        synthetic_clothing(count)
