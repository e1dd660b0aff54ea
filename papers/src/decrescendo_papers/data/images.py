"""Image data sets: the embedded digits, MNIST and Fashion-MNIST."""

from dataclasses import replace

import numpy as np
from jaxtyping import UInt8

from decrescendo.errors import FileRefused, check_integer
from decrescendo.training.digits import digits as embedded
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.fetch import RemoteFile, read
from decrescendo_papers.data.grey import grey_images
from decrescendo_papers.data.idx import parse_idx

T_SHIRT, UPPER_CLOTHES = 0, (0, 2, 4, 6)  # Fashion-MNIST's classes

Pixels = UInt8[np.ndarray, "n height width"]
Labels = UInt8[np.ndarray, " n"]
TestPixels = UInt8[np.ndarray, "m height width"]
TestLabels = UInt8[np.ndarray, " m"]

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# In the order train images, train labels, test images, test labels.
NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MNIST_HASHES = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FASHION_HASHES = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
MNIST_FILES = tuple(
    RemoteFile("mnist", name, MNIST_URL + name, sha256) for name, sha256 in zip(NAMES, MNIST_HASHES, strict=True)
)
FASHION_FILES = tuple(
    RemoteFile("fashion-mnist", name, FASHION_URL + name, sha256)
    for name, sha256 in zip(NAMES, FASHION_HASHES, strict=True)
)


def mnist() -> Dataset:
    """MNIST: 60,000 train and 10,000 test images of handwritten digits, 1x28x28, 10 classes.

    Normalised by the declared constants 0.1307 and 0.3081. About 12 MB, downloaded once; see
    `data.fetch.read` for where it is looked for.
    """
    return _from_files("mnist", MNIST_FILES, mean=0.1307, std=0.3081)


def fashion_mnist() -> Dataset:
    """Fashion-MNIST: 60,000 train and 10,000 test images of clothing, 1x28x28, 10 classes.

    Normalised by the declared constants 0.2860 and 0.3530. About 31 MB, downloaded once; see
    `data.fetch.read` for where it is looked for.
    """
    return _from_files("fashion-mnist", FASHION_FILES, mean=0.2860, std=0.3530)


def digits() -> Dataset:
    """The 1,797 handwritten digits that come with `decrescendo`: 1x8x8 in [0, 1], 10 classes, no download.

    The split is fixed and public: images 4, 9, 14, .. (every fifth, 359 of them) are the test half. Writers
    are in both halves, so "one example" hides an image, not a person.

    >>> digits()
    Dataset(digits: 1438 train, 359 test, 10 classes, inputs 1x8x8)
    """
    (train_inputs, train_targets), (test_inputs, test_targets) = embedded()
    return Dataset("digits", train_inputs, train_targets, test_inputs, test_targets, classes=10, scale=16.0)


def mnist_arrays() -> tuple[Pixels, Labels, TestPixels, TestLabels]:
    """MNIST as bytes: train images and labels, test images and labels."""
    return _arrays(MNIST_FILES)


def _arrays(files: tuple[RemoteFile, ...]) -> tuple[Pixels, Labels, TestPixels, TestLabels]:
    arrays = [parse_idx(read(file), file.name) for file in files]
    for file, array, dimensions in zip(files, arrays, (3, 1, 3, 1), strict=True):
        if array.ndim != dimensions:
            raise FileRefused(f"{file.name} must have {dimensions} dimensions, got shape {array.shape}")
    return arrays[0], arrays[1], arrays[2], arrays[3]


def _from_files(name: str, files: tuple[RemoteFile, ...], *, mean: float, std: float) -> Dataset:
    return grey_images(name, *_arrays(files), scale=255.0, mean=mean, std=std)


def t_shirts(count: int = 12_000) -> Dataset:
    """Fashion-MNIST's first ``count`` training images of upper clothes, 1x64x64: T-shirts are class 0, others 1.

    Public data of the X-rays' shape and balance (a quarter is in class 0): black is put around, each pixel becomes a
    square of four, and the constants are those of `data.chest_xray`.

    Args:
        count: number of images, 1 to 24,000.
    """
    pixels, labels, _, _ = _arrays(FASHION_FILES)
    chosen = np.flatnonzero(np.isin(labels, UPPER_CLOTHES))[: check_integer("count", count, at_least=1)]
    framed = np.pad(pixels[chosen], ((0, 0), (2, 2), (2, 2))).repeat(2, axis=1).repeat(2, axis=2)
    return replace(
        grey_images(
            "t-shirts", framed, (labels[chosen] != T_SHIRT).astype(np.uint8), framed[:0], labels[:0],
            scale=255.0, mean=0.5, std=0.25,
        ),
        classes=2,
    )  # fmt: skip
