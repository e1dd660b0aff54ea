"""MNIST as Hong et al. take it, 60 principal components, centred, of unit variance, at most 10 long; and made-up rows
of the same shape."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from decrescendo.base import require
from decrescendo.errors import InvalidValue, check_integer, check_real
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.frozen import frozen_stream
from decrescendo_papers.data.images import mnist_arrays

# The train images from here on are declared public; those before are the private half.
PUBLIC_FROM = 50_000
COMPONENTS, NORM = 60, 10.0


def principal_mnist(digits: Sequence[int] = tuple(range(10)), *, components: int = COMPONENTS) -> Dataset:
    """The images of some digits of MNIST as principal components; classes are numbered in the order of ``digits``.

    Hong et al. fit the components, the centre, the variances and the largest length on the private data, and do not pay
    for it. Here all of them are fitted on the last 10,000 train images, declared public, of which none is in the
    private half (the first 50,000). Rows that are longer than 10 after that are shortened to 10, each by itself, so
    that no row depends on another. The official test images, declared public as everywhere here, are scored on.

    Args:
        digits: at least two different ones of 0 .. 9.
        components: how many, from 1 to 784.

    Raises:
        InvalidValue: digits or a number of components out of range.
        MissingExtra: scikit-learn is not installed.
    """
    chosen = [check_integer("digits", digit, at_least=0) for digit in digits]
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or max(chosen) > 9:
        raise InvalidValue(f"digits must be at least two different ones of 0 .. 9, got {chosen}")
    count = check_integer("components", components, at_least=1)
    if count > 784:
        raise InvalidValue(f"components must be at most the 784 pixels, got components={count}")
    train_pixels, train_labels, test_pixels, test_labels = mnist_arrays()
    train, test = np.isin(train_labels, chosen), np.isin(test_labels, chosen)
    public, private = train.copy(), train.copy()
    public[:PUBLIC_FROM] = False
    private[PUBLIC_FROM:] = False
    fitted = require("sklearn.decomposition").PCA(count, whiten=True, svd_solver="covariance_eigh")
    longest = np.linalg.norm(fitted.fit_transform(_flat(train_pixels[public])), axis=1).max()

    def inputs(pixels: UInt8[np.ndarray, "n height width"]) -> Float32[Tensor, "n components"]:
        values = fitted.transform(_flat(pixels)) * (NORM / longest)
        return torch.from_numpy(shortened(values, NORM).astype(np.float32))

    place = np.zeros(10, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    name = "mnist" if len(chosen) == 10 else "mnist" + "".join(map(str, chosen))
    return Dataset(
        name=f"{name}, {count} principal components",
        train_inputs=inputs(train_pixels[private]),
        train_targets=torch.from_numpy(place[train_labels[private]]),
        test_inputs=inputs(test_pixels[test]),
        test_targets=torch.from_numpy(place[test_labels[test]]),
        classes=len(chosen),
    )


def gaussian_rows(
    classes: int, count: int = 60_000, *, features: int = COMPONENTS, norm: float = NORM, seed: int = 0
) -> Dataset:
    """Made-up rows N(0, 1), scaled so that the longest is ``norm`` long, in classes that a linear rule tells apart.

    What Hong et al. choose schedules on, as far as they say: a set "randomly sampled from Gaussian distribution". Its
    first two moments are those of whitened components. How they label it they do not say; here the class is the largest
    of random linear scores, which a network can learn. No image goes in. The same arguments give the same rows.

    Args:
        classes: >= 2.
        count: number of train rows, >= 6; a sixth as many test rows are drawn too.
        features: of a row, >= 1.
        norm: > 0, the length of the longest row.
        seed: whole number >= 0.

    Raises:
        InvalidValue: a number outside its range.

    >>> gaussian_rows(2, 60)
    Dataset(gaussian-2: 60 train, 10 test, 2 classes, inputs 60)
    """
    kinds = check_integer("classes", classes, at_least=2)
    train, width = check_integer("count", count, at_least=6), check_integer("features", features, at_least=1)
    length = check_real("norm", norm, above=0)
    random = frozen_stream(f"gaussian-{kinds}-{width}", seed)
    rows = random.normal(size=(train + train // 6, width))
    targets = torch.from_numpy(np.argmax(rows @ random.normal(size=(width, kinds)), axis=1))
    rows *= length / np.linalg.norm(rows, axis=1).max()
    inputs = torch.from_numpy(rows.astype(np.float32))
    return Dataset(f"gaussian-{kinds}", inputs[:train], targets[:train], inputs[train:], targets[train:], classes=kinds)


def shortened(rows: Float[np.ndarray, "n features"], norm: float) -> Float[np.ndarray, "n features"]:
    """Rows longer than ``norm`` at that length, the others as they are; each by itself.

    >>> shortened(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, norm / np.maximum(lengths, norm))


def _flat(pixels: UInt8[np.ndarray, "n height width"]) -> Float[np.ndarray, "n pixels"]:
    return pixels.reshape(len(pixels), -1) / 255.0
