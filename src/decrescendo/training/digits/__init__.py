"""The example task: 1,797 handwritten digits of 8x8 pixels that come with the library, and a small network.

The images are the test half of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, 1998, UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0; the bytes are those that scikit-learn
distributes. ``digits.gz`` has a row an image: 64 pixels from 0 to 16, then the class.
"""

import gzip
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.training.tasks.evaluate import accuracy
from decrescendo.training.tasks.fitting import cross_entropy, initialised
from decrescendo.training.tasks.task import Task

Split = tuple[Tensor, Tensor]  # inputs and their classes, of the private or of the test rows
ROWS, LARGEST = 1438, 16


def digits() -> tuple[Split, Split]:
    """The private rows and the test rows: images 1x8x8 in [0, 1], and their classes.

    The split is fixed and public: images 4, 9, 14, .. (every fifth, 359 of them) are the test rows. Writers are in
    both parts, so "one example" hides an image, not a person.

    >>> [tuple(inputs.shape) for inputs, _ in digits()]
    [(1438, 1, 8, 8), (359, 1, 8, 8)]
    """
    content = gzip.decompress(files(__name__).joinpath("digits.gz").read_bytes())
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, 65)
    inputs = torch.from_numpy(table[:, :64].astype(np.float32).reshape(-1, 1, 8, 8)).div_(LARGEST)
    targets = torch.from_numpy(table[:, 64].astype(np.int64))
    test = torch.arange(len(table)) % 5 == 4
    return (inputs[~test], targets[~test]), (inputs[test], targets[test])


def digits_cnn(seed: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """A small CNN for 1x8x8 images: one convolution, two linear layers, 8,714 parameters.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.

    >>> digits_cnn(0)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return initialised(
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            activation(),
            nn.MaxPool2d(kernel_size=2),
            nn.Flatten(),
            nn.Linear(256, 32),
            activation(),
            nn.Linear(32, 10),
        ),
        seed,
    )


def task() -> Task:
    """The digits as a task, which the command line calls ``digits``.

    >>> task().count, task().expected_batch
    (1438, 256)
    """

    def score(model: nn.Module) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, *digits()[1])}

    return Task(
        model=digits_cnn, loss=cross_entropy, data=lambda: digits()[0], rows=ROWS, score=score,
        batch=256, epochs=35, clip=1.0, learning_rate=1.0,
    )  # fmt: skip
