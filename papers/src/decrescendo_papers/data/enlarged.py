"""Written digits that come with scikit-learn, laid out as MNIST's: public data to search settings and to start from."""

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn import functional

from decrescendo.errors import check_integer
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.images import digits
from decrescendo_papers.data.infinite import CHUNK, ORIGINALS, TEST, deformed

SIDE, BOX = 28, 20
MEAN, STD = 0.1307, 0.3081


def enlarged_digits(count: int = 60_000) -> Dataset:
    """``count`` train and ``count // 6`` test images made from the 1,797 digits of scikit-learn, 1x28x28, 10 classes.

    Each 8x8 image is enlarged to 20x20, put down with its centre of mass in the middle, as MNIST's are, and deformed as
    `data.InfiniteMnist` deforms images, so that no two are the same; normalised by the declared constants 0.1307 and
    0.3081. The 43 people who wrote them are not those of MNIST, whose images are not opened. Nothing was chosen by
    looking at MNIST: 20 pixels and the centre of mass are how MNIST's authors say they made theirs.

    Train images are made from scikit-learn images not used for test images (the split of `data.digits`), and neighbours
    from the same one: the last fifth of the rows is made from images of its own.

    Args:
        count: number of train images, >= 6.

    Raises:
        InvalidValue: ``count`` too small.
        MissingExtra: scikit-learn is not installed.

    >>> enlarged_digits(60)
    Dataset(enlarged-digits: 60 train, 10 test, 10 classes, inputs 1x28x28)
    """
    train = check_integer("count", count, at_least=6)
    test, source = train // 6, digits()
    return Dataset(
        name="enlarged-digits",
        train_inputs=_images(source.train_inputs, train, 0),
        train_targets=source.train_targets[_chosen(len(source.train_targets), train)],
        test_inputs=_images(source.test_inputs, test, train),
        test_targets=source.test_targets[_chosen(len(source.test_targets), test)],
        classes=10,
        scale=255.0,
        mean=MEAN,
        std=STD,
    )


def _chosen(sources: int, count: int) -> torch.Tensor:
    """Which image each row is made from: all as often as the others, rows of the same one side by side."""
    return torch.arange(count) * sources // count


def _images(small: torch.Tensor, count: int, first: int) -> torch.Tensor:
    """Rows made from ``small`` (n, 1, 8, 8) in [0, 1], deformed by the fields of examples 70,000 + first, .."""
    big = functional.interpolate(small, size=(BOX, BOX), mode="bilinear", align_corners=False)
    placed = np.stack([_placed(image) for image in (big[:, 0] * 255).round().to(torch.uint8).numpy()])
    chosen, numbers = _chosen(len(placed), count).numpy(), TEST + ORIGINALS + first + np.arange(count)
    made = np.concatenate([
        deformed(placed[chosen[start : start + CHUNK]], numbers[start : start + CHUNK])
        for start in range(0, count, CHUNK)
    ])  # fmt: skip
    values = torch.from_numpy(made.astype(np.float32)).unsqueeze(1)
    return values.div_(255.0).sub_(MEAN).div_(STD)


def _placed(image: UInt8[np.ndarray, "box box"]) -> UInt8[np.ndarray, "side side"]:
    """In an empty image, its centre of mass as near to the middle as whole pixels allow."""
    mass = image.astype(np.float64)
    line = np.arange(BOX)
    middle = (mass.sum(1) @ line / mass.sum(), mass.sum(0) @ line / mass.sum())
    top, left = (int(np.clip(round((SIDE - 1) / 2 - at), 0, SIDE - BOX)) for at in middle)
    found = np.zeros((SIDE, SIDE), dtype=np.uint8)
    found[top : top + BOX, left : left + BOX] = image
    return found
