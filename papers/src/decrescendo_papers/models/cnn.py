"""The small convolutional networks of the image tasks."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from decrescendo.errors import check_real
from decrescendo.training import initialised


def paper_cnn(seed: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """The CNN of Du et al. for 1x28x28 images: two convolutions, two linear layers, 26,010 parameters.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module; ``nn.Tanh`` is known to suit private training better.

    >>> sum(p.numel() for p in paper_cnn(0).parameters())
    26010
    """
    return initialised(
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
            activation(),
            nn.MaxPool2d(kernel_size=2, stride=1),
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            activation(),
            nn.MaxPool2d(kernel_size=2, stride=1),
            nn.Flatten(),
            nn.Linear(512, 32),
            activation(),
            nn.Linear(32, 10),
        ),
        seed,
    )


class Normalised(nn.Module):
    """Bytes to floats: (pixel / scale - mean) / std. Without parameters; the constants are public.

    For data sets that are kept as bytes; see `data.Dataset`.

    Args:
        scale: the largest pixel value.
        mean: declared constant.
        std: declared constant, > 0.

    Raises:
        InvalidValue: ``scale`` or ``std`` not above 0.

    >>> Normalised(255.0, 0.5, 0.25)(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    [-2.0, 2.0]
    """

    def __init__(self, scale: float, mean: float, std: float) -> None:
        super().__init__()
        self.scale = check_real("scale", scale, above=0)
        self.mean = check_real("mean", mean)
        self.std = check_real("std", std, above=0)

    def forward(self, pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The normalised pixels, in torch's default precision."""
        return (pixels.to(torch.get_default_dtype()) / self.scale - self.mean) / self.std


def infinite_cnn(seed: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """`paper_cnn` for images kept as bytes, as `data.infinite_mnist` has them; the same weights for a seed.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.

    >>> infinite_cnn(0)(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(Normalised(255.0, 0.1307, 0.3081), paper_cnn(seed, activation))
