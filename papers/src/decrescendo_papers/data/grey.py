"""Grey images and their classes as a data set, normalised by declared constants."""

import numpy as np
import torch
from jaxtyping import Integer, UInt8

from decrescendo_papers.data.dataset import Dataset


def grey_images(
    name: str,
    train_pixels: UInt8[np.ndarray, "train height width"],
    train_labels: Integer[np.ndarray, " train"],
    test_pixels: UInt8[np.ndarray, "test height width"],
    test_labels: Integer[np.ndarray, " test"],
    *,
    scale: float,
    mean: float,
    std: float,
) -> Dataset:
    """Inputs (pixel / scale - mean) / std with one channel, and 10 classes.

    >>> pixels, labels = np.zeros((3, 8, 8), dtype=np.uint8), np.array([0, 9, 1])
    >>> grey_images("toy", pixels[:2], labels[:2], pixels[2:], labels[2:], scale=255.0, mean=0.1, std=0.5)
    Dataset(toy: 2 train, 1 test, 10 classes, inputs 1x8x8)
    """

    def inputs(pixels: UInt8[np.ndarray, "any height width"]) -> torch.Tensor:
        values = torch.from_numpy(pixels.astype(np.float32)).unsqueeze(1)
        return values.div_(scale).sub_(mean).div_(std)

    def targets(labels: Integer[np.ndarray, " any"]) -> torch.Tensor:
        return torch.from_numpy(labels.astype(np.int64))

    return Dataset(
        name=name,
        train_inputs=inputs(train_pixels),
        train_targets=targets(train_labels),
        test_inputs=inputs(test_pixels),
        test_targets=targets(test_labels),
        classes=10,
        scale=scale,
        mean=mean,
        std=std,
    )
