"""Convolutional networks for grey images."""

from torch import nn


def cnn_5x5(width: int = 32) -> nn.Module:
    """Two 5x5 convolutions of ``width`` and twice as many channels and two linear layers, for 1x28x28 images."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 16 * width),
        nn.ReLU(),
        nn.Linear(16 * width, 10),
    )


# Output channels of VGG-11's convolutions; a zero is a pooling layer.
_VGG_11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


def vgg_11() -> nn.Module:
    """VGG-11 without batch normalisation for 1x64x64 images, with a classifier for their size."""
    layers: list[nn.Module] = []
    channels = 1
    for width in _VGG_11:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10))
