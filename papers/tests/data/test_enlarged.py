"""Facts: enlarged digits are laid out as MNIST's are, made from images of their own half, and open no data set."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from decrescendo.errors import InvalidType, InvalidValue
from decrescendo_papers.data import Dataset, digits, enlarged_digits, images


@pytest.fixture(scope="module")
def made() -> Dataset:
    return enlarged_digits(1438 * 2)


def pixels(inputs: torch.Tensor) -> np.ndarray:
    return inputs.mul(0.3081).add(0.1307).mul(255).round().squeeze(1).numpy()


def test_they_are_shaped_and_coded_like_mnist(made: Dataset) -> None:
    assert made.train_inputs.shape == (2876, 1, 28, 28)
    assert made.test_inputs.shape == (479, 1, 28, 28)
    values = pixels(made.train_inputs)
    assert (values.min(), values.max()) == (0, 255)
    assert len(np.unique(values.reshape(len(values), -1), axis=0)) == len(values)  # no two the same


def test_centres_of_mass_are_near_the_middle(made: Dataset) -> None:
    centres = np.array([ndimage.center_of_mass(image) for image in pixels(made.train_inputs)[::7]])
    assert np.abs(centres - 13.5).max() < 4.5  # a digit at the edge of its box, a shift of one, and what bends it
    assert np.abs(centres - 13.5).mean() < 1


def test_train_and_test_come_from_images_of_their_own(made: Dataset) -> None:
    source = digits()
    chosen = torch.arange(2876) // 2
    assert torch.equal(made.train_targets, source.train_targets[chosen])
    assert torch.equal(made.test_targets, source.test_targets[torch.arange(479) * 359 // 479])
    # Each looks like the image that it was made from, not like others.
    small = torch.nn.functional.avg_pool2d(made.train_inputs[::2, :, 4:24, 4:24], 2)
    big = torch.nn.functional.interpolate(source.train_inputs, size=(10, 10), mode="bilinear")
    one, other = (part.flatten(1) - part.flatten(1).mean(1, keepdim=True) for part in (small, big))
    like = torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T
    assert float((like.argmax(1) == torch.arange(1438)).float().mean()) > 0.1  # by chance: 0.0007
    assert float(like.diagonal().mean()) > float(like.mean()) + 0.2


def test_the_same_images_every_time_and_no_data_set_is_opened(made: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> bytes:
        raise AssertionError("a data set was opened")

    monkeypatch.setattr(images, "read", closed)
    assert torch.equal(enlarged_digits(1438 * 2).train_inputs, made.train_inputs)


def test_too_few_are_refused() -> None:
    for count in (5, 0):
        with pytest.raises(InvalidValue, match="count"):
            enlarged_digits(count)
    with pytest.raises((InvalidType, InvalidValue), match="count"):
        enlarged_digits(True)
