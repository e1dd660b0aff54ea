"""The networks of the X-ray task: the paper's deep one, and a small one that learns with few private steps."""

from collections.abc import Callable

from torch import nn

from decrescendo.errors import InvalidValue, check_integer
from decrescendo.training import initialised

# Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2015, Table 1, A:
# widths of the 3x3 convolutions, 0 for a maximum over 2x2.
CONFIGURATION_A = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


def vgg11(
    seed: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    channels: int = 1,
    size: int = 64,
    classes: int = 2,
    hidden: int = 512,
) -> nn.Module:
    """VGG-11 (configuration A) without batch normalisation, 10,532,098 parameters for 1x64x64 images.

    Eight 3x3 convolutions and five maxima over 2x2, then three linear layers as in the original, but ``hidden``
    wide instead of 4,096: 2,048 - 512 - 512 - 2 for 64x64 images. No dropout. The convolutions' weights are
    drawn as He et al. (2015) do, the linear layers' with standard deviation 0.01 as in the original, biases are
    zero: without normalisation, torch's own default lets the signal die out on the way.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.
        channels: of an image.
        size: height and width of an image, a multiple of 32.
        classes: number of classes.
        hidden: width of the two hidden linear layers.

    Raises:
        InvalidValue: ``size`` is not a multiple of 32, or a number is below 1.

    >>> import torch
    >>> sum(p.numel() for p in vgg11(0).parameters())
    10532098
    >>> vgg11(0, hidden=8, size=32)(torch.zeros(3, 1, 32, 32)).shape
    torch.Size([3, 2])
    """

    for name, value in (("channels", channels), ("size", size), ("classes", classes), ("hidden", hidden)):
        check_integer(name, value, at_least=1)
    if size % 32:
        raise InvalidValue(
            f"size must be a multiple of 32, got size={size}. Five maxima halve it: resize or pad the images"
        )

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        width = channels
        for out in CONFIGURATION_A:
            if out:
                layers += [nn.Conv2d(width, out, kernel_size=3, padding=1), activation()]
                width = out
            else:
                layers.append(nn.MaxPool2d(kernel_size=2))
        features = width * (size // 32) ** 2
        layers += [nn.Flatten(), nn.Linear(features, hidden), activation()]
        layers += [nn.Linear(hidden, hidden), activation(), nn.Linear(hidden, classes)]
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    return initialised(build, seed)


def small_xray(seed: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """Two convolutions and two linear layers on the 2x2 means of a 1x64x64 image, 21,538 parameters.

    Args:
        seed: of the whole run; the stream "init" is used.
        activation: builds one activation module.

    >>> import torch
    >>> sum(p.numel() for p in small_xray(0).parameters())
    21538
    >>> small_xray(0)(torch.zeros(3, 1, 64, 64)).shape
    torch.Size([3, 2])
    """
    return initialised(
        lambda: nn.Sequential(
            nn.AvgPool2d(2),
            nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2), activation(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1), activation(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 32), activation(), nn.Linear(32, 2),
        ),
        seed,
    )  # fmt: skip
