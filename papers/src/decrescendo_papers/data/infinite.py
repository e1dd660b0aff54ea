"""InfiniteMNIST: as many deformed digits as wanted, each named by a whole number.

After L. Bottou's infiMNIST (Loosli, Canu and Bottou, "Training Invariant Support Vector Machines using Selective
Sampling", 2007). Its precomputed tangents and fields are not used: ours are `derivatives` and
`fields.displacement_fields`, so the images are of the same kind as the original's, not the same.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64, UInt8

from decrescendo.errors import InvalidValue, check_integer
from decrescendo_papers.data import images
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.fields import COUNT, UNIT, displacement_fields

TEST, ORIGINALS = 10_000, 60_000
LAST = 2**40
CHUNK = 512
# What k1 mod 9 means: rows down and columns to the right that an image is moved by.
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def derivatives(
    pixels: UInt8[np.ndarray, "n height width"],
) -> tuple[Int32[np.ndarray, "n height width"], Int32[np.ndarray, "n height width"]]:
    """Twice the derivative of each image along its rows' and its columns' axis; outside of an image is 0.

    >>> down, right = derivatives(np.array([[[0, 3, 4]]], dtype=np.uint8))
    >>> down.tolist(), right.tolist()
    ([[[0, 0, 0]]], [[[3, 4, -3]]])
    """
    wide = np.pad(pixels.astype(np.int32), ((0, 0), (1, 1), (1, 1)))
    return wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1], wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]


def sources(indices: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The number of the image that each example is made from: itself below 70,000.

    Examples with the same source are one person's digit: neither independent, nor hidden from each other by a
    guarantee about one example.

    >>> sources(np.array([3, 10_000, 70_000, 130_000, 130_001])).tolist()
    [3, 10000, 10000, 10000, 10001]
    """
    return np.where(indices < TEST, indices, TEST + (indices - TEST) % ORIGINALS)


def fields_of(indices: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Numbers of the two fields of each example: k1 = (131071 i mod 2^32) mod 1521, k2 = (k1 + 1 + 2 i) mod 1522.

    >>> [k.tolist() for k in fields_of(np.array([70_000]))]
    [[1010], [987]]
    """
    first = (131_071 * indices % 2**32) % (COUNT - 1)
    return first, (first + 1 + 2 * indices) % COUNT


@dataclass(frozen=True, slots=True, eq=False)
class InfiniteMnist:
    """Examples by their number i: 0 .. 9,999 the MNIST test images, 10,000 .. 69,999 the train images, beyond
    that deformations of train image (i - 10,000) mod 60,000, with its label.

    A deformed image is x + F_k1 dx/dr - F_k2 dx/dc, a first-order elastic displacement, cut to 0 .. 255 and
    rounded down, then moved by at most one pixel along each axis by k1 mod 9; what is uncovered is 0. All in
    whole numbers, so an example has the same bytes everywhere and however it is asked for. (The published
    rule for a sign, the parity of k1 + k2, gives one sign for all i, and is left out.)

    Args:
        pixels: the 70,000 images, test before train.
        classes: of each.

    Raises:
        InvalidValue: not 70,000 images of 28x28 and as many classes, or an index below 0 or above 2^40.

    >>> classes = (np.arange(70_000) % 10).astype(np.uint8)
    >>> blank = InfiniteMnist(np.zeros((70_000, 28, 28), np.uint8), classes)
    >>> blank.labels(np.array([3, 10_004, 70_004])).tolist(), blank.images(np.array([3, 10_004, 70_004])).shape
    ([3, 4, 4], (3, 28, 28))
    """

    pixels: UInt8[np.ndarray, "all height width"]
    classes: UInt8[np.ndarray, " all"]

    def __post_init__(self) -> None:
        if self.pixels.shape != (TEST + ORIGINALS, 28, 28) or len(self.classes) != TEST + ORIGINALS:
            raise InvalidValue(
                f"InfiniteMNIST must be made from {TEST + ORIGINALS} images of 28x28 and their classes, "
                f"got pixels of shape {self.pixels.shape} and {len(self.classes)} classes"
            )

    def labels(self, indices: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, " n"]:
        """The class of each example."""
        return self.classes[sources(_checked(indices))]

    def images(self, indices: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n height width"]:
        """The pixels of each example."""
        numbers = _checked(indices)
        found = self.pixels[sources(numbers)]
        moved = np.flatnonzero(numbers >= TEST + ORIGINALS)
        for start in range(0, len(moved), CHUNK):  # so that what is computed on the way stays small
            part = moved[start : start + CHUNK]
            found[part] = deformed(found[part], numbers[part])
        return found


def _checked(indices: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    numbers = indices.astype(np.int64)
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= LAST:
        raise InvalidValue(f"indices must be in 0 .. {LAST}, got {int(numbers.min())} .. {int(numbers.max())}")
    return numbers


def deformed(
    pixels: UInt8[np.ndarray, "n height width"], indices: Int64[np.ndarray, " n"]
) -> UInt8[np.ndarray, "n height width"]:
    """Images 28x28, each deformed as the example with that number is; see `InfiniteMnist`. Many at once take memory."""
    fields, (first, second) = displacement_fields(), fields_of(indices)
    down, right = derivatives(pixels)
    moved = fields[first] * down - fields[second] * right
    # Fields are in 1/256, derivatives in 1/2. A shift rounds down.
    made = np.clip(pixels + (moved >> (2 * UNIT).bit_length() - 1), 0, 255).astype(np.uint8)
    shifts = np.array(SHIFTS)[first % len(SHIFTS)]
    for shift in SHIFTS[1:]:
        rows = np.flatnonzero((shifts == shift).all(axis=1))
        made[rows] = _moved(made[rows], *shift)
    return made


def _moved(pixels: UInt8[np.ndarray, "n height width"], down: int, right: int) -> UInt8[np.ndarray, "n height width"]:
    height, width = pixels.shape[1:]
    wide = np.pad(pixels, ((0, 0), (1, 1), (1, 1)))
    return wide[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


@cache
def _generator() -> InfiniteMnist:
    train_pixels, train_labels, test_pixels, test_labels = images.mnist_arrays()
    return InfiniteMnist(np.concatenate([test_pixels, train_pixels]), np.concatenate([test_labels, train_labels]))


def infinite_mnist(count: int = 250_000) -> Dataset:
    """The first ``count`` train examples of `InfiniteMnist`, and the 10,000 MNIST test images.

    Inputs are bytes 0 .. 255, (rows, 1, 28, 28), a quarter of the memory of floats: use a model that normalises
    them itself (`models.infinite_cnn`), by the declared constants 0.1307 and 0.3081. Train row r is example
    10,000 + r: the 60,000 train images of MNIST, then their deformations.

    Rows r and r + 60,000 are one person's digit: they are not independent, and "one example" hides one of them.

    Args:
        count: of train examples, >= 1; the paper's federated tables have 250,000 and 500,000.

    Raises:
        InvalidValue: ``count`` below 1.
        FileRefused, DataUnavailable, MissingExtra: as `data.mnist` does.
    """
    rows = check_integer("count", count, at_least=1)
    generator = _generator()
    train, test = np.arange(TEST, TEST + rows), np.arange(TEST)
    return Dataset(
        name=f"infinite-mnist-{rows}",
        train_inputs=torch.from_numpy(generator.images(train)).unsqueeze(1),
        train_targets=torch.from_numpy(generator.labels(train).astype(np.int64)),
        test_inputs=torch.from_numpy(generator.images(test)).unsqueeze(1),
        test_targets=torch.from_numpy(generator.labels(test).astype(np.int64)),
        classes=10,
        scale=255.0,
        mean=0.1307,
        std=0.3081,
    )
