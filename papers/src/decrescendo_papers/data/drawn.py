"""Made-up grey images as a data set: equally many of each class, in random order."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64, UInt8

from decrescendo.errors import check_integer
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.frozen import frozen_stream
from decrescendo_papers.data.grey import grey_images

CHUNK = 1_000

# Images of these classes, drawn with these random numbers.
Draw = Callable[[Int64[np.ndarray, " n"], np.random.RandomState], UInt8[np.ndarray, "n height width"]]


def drawn_images(name: str, draw: Draw, count: int, seed: int, *, mean: float, std: float) -> Dataset:
    """``count`` train and ``count // 6`` test images of 10 classes, `CHUNK` at a time.

    Raises:
        InvalidValue: ``count`` below 6 or ``seed`` below 0.

    >>> drawn_images("black", lambda kinds, _: np.zeros((len(kinds), 8, 8), np.uint8), 12, 0, mean=0.1, std=0.5)
    Dataset(black: 12 train, 2 test, 10 classes, inputs 1x8x8)
    """
    train = check_integer("count", count, at_least=6)
    rows = train + train // 6
    random = frozen_stream(name, seed)
    classes = random.permutation(rows) % 10
    pixels = np.concatenate([draw(classes[start : start + CHUNK], random) for start in range(0, rows, CHUNK)])
    return grey_images(
        name,
        pixels[:train],
        classes[:train],
        pixels[train:],
        classes[train:],
        scale=255.0,
        mean=mean,
        std=std,
    )
