"""Convolutional networks for grey images."""

import torch
from torch import Tensor, nn
from torch.nn import functional


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


class _Convolved(nn.Module):
    """Two 3x3 convolutions, each with GroupNorm and SiLU, around a skip connection."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(8, outer)
        self.second, self.second_norm = nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(8, outer)
        self.skip = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.silu(self.first_norm(self.first(x)))
        return functional.silu(self.second_norm(self.second(inner)) + self.skip(x))


class UNet(nn.Module):
    """A U-Net: three sizes of image, halved and doubled again, what was before each halving joined on the way up."""

    def __init__(self, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([_Convolved(channels, width), _Convolved(width, 2 * width)])
        self.middle = _Convolved(2 * width, 4 * width)
        self.wider = nn.ModuleList(
            [nn.ConvTranspose2d(size, size // 2, 2, stride=2) for size in (4 * width, 2 * width)]
        )
        self.up = nn.ModuleList([_Convolved(4 * width, 2 * width), _Convolved(2 * width, width)])
        self.out = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        passed: list[Tensor] = []
        for part in self.down:
            x = part(x)
            passed.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for wider, part in zip(self.wider, self.up, strict=True):
            x = part(torch.cat([wider(x), passed.pop()], 1))
        return self.out(x)
