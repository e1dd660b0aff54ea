"""Made-up digits that look a little like MNIST's: public data to search settings and pre-train on."""

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor

from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.drawn import drawn_images
from decrescendo_papers.data.fields import COUNT, UNIT, displacement_fields
from decrescendo_papers.data.glyphs import strokes

SIDE, BOX = 28, 20.0
MEAN, STD = 0.1307, 0.3081
BLUR = 0.7  # pixels: how far one point of a line reaches


def synthetic_digits(count: int = 60_000, seed: int = 0) -> Dataset:
    """``count`` train and ``count // 6`` test images of made-up written digits, 1x28x28, 10 classes.

    Each is the middle line of a digit of a public font (or of a character of the same shape, see `data.glyphs`),
    slanted, turned, stretched, bent by the smooth fields of `data.fields`, and drawn by a pen of random width.
    Then it is put down as MNIST's digits are: 20 pixels on the longer side, its centre of mass in the middle of the
    image, white on black, rounded to bytes, normalised by the declared constants 0.1307 and 0.3081. No image of a
    written digit goes in. Classes are equally frequent, in random order.

    The same arguments give the same images on one machine. Other versions of Pillow, FreeType or matplotlib draw
    glyphs that may differ by a few pixels, and then images differ a little.

    About ten seconds for 60,000 on one core.

    What was seen of MNIST: a version before this one was tuned by hand beside a printed sheet of 24 train images of
    each digit and with three scores on 2,000 test images; no guarantee covers that look. All constants were then set
    again, to round numbers and without looking at anything, and every character is drawn as often as any other. Which
    kinds of deformation there are is older than that. `enlarged_digits` has no such past.

    Args:
        count: number of train images, >= 6.
        seed: whole number >= 0.

    Raises:
        InvalidValue: ``count`` or ``seed`` too small.
        MissingExtra: pillow or matplotlib is not installed.

    >>> synthetic_digits(60)
    Dataset(synthetic-digits: 60 train, 10 test, 10 classes, inputs 1x28x28)
    """
    return drawn_images("synthetic-digits", _drawn, count, seed, mean=MEAN, std=STD)


def _drawn(
    classes: Int64[np.ndarray, " n"], random: np.random.RandomState
) -> UInt8[np.ndarray, "n height width"]:
    lines, lengths, digits = strokes()
    firsts, counts = np.searchsorted(digits, np.arange(10)), np.bincount(digits, minlength=10)
    chosen = firsts[classes] + (random.uniform(size=len(classes)) * counts[classes]).astype(np.int64)
    points, weights = torch.from_numpy(lines[chosen]), torch.from_numpy(lengths[chosen])
    weights = _lifted(points, weights, random)
    placed = _placed(_bent(_slanted(_proportioned(points, random), random), random), weights)
    width = torch.from_numpy(random.uniform(0.75, 2.0, len(classes)).astype(np.float32))
    ink = _inked(placed, weights, width)
    return (ink * 255 + 0.5).clamp(0, 255).to(torch.uint8).numpy()


def _lifted(
    points: Float[Tensor, "n points 2"], weights: Float[Tensor, "n points"], random: np.random.RandomState
) -> Float[Tensor, "n points"]:
    """A gap around one point of the line of one digit in four, as when a loop is not closed."""
    n = len(points)
    at = (random.uniform(size=n) * (weights > 0).sum(dim=1).numpy()).astype(np.int64)
    reach = np.where(random.uniform(size=n) < 0.25, random.uniform(0.0, 0.25, n), -1.0).astype(np.float32)
    away = (points - points[torch.arange(n), torch.from_numpy(at)][:, None]).norm(dim=-1)
    return weights * (away > torch.from_numpy(reach)[:, None])


def _proportioned(
    points: Float[Tensor, "n points 2"], random: np.random.RandomState
) -> Float[Tensor, "n points 2"]:
    """Other proportions: the middle higher or lower, one end wider than the other, bowed."""
    drawn = random.normal(0.0, 1.0, (4, len(points), 1)).astype(np.float32)
    raised, widened, bowed, leaned = torch.from_numpy(drawn)
    column, row = points[..., 0], points[..., 1]
    row = row + 0.15 * raised.clamp(-2, 2) * (1 - row**2)
    column = column + 0.15 * leaned * (1 - column**2)
    column = column * (1 + 0.15 * widened.clamp(-2, 2) * row) + 0.15 * bowed * row**2
    return torch.stack([column, row], dim=-1)


def _slanted(
    points: Float[Tensor, "n points 2"], random: np.random.RandomState
) -> Float[Tensor, "n points 2"]:
    """Stretched, slanted and turned."""
    n = len(points)
    turn = random.normal(0.0, 0.15, n)
    slant = random.normal(0.0, 0.3, n)
    across = np.exp(random.normal(0.0, 0.25, n))
    cos, sin = np.cos(turn), np.sin(turn)
    # (column, row) -> (across column - slant row, row), then turned.
    matrix = np.stack(
        [
            np.stack([cos * across, -cos * slant - sin], axis=-1),
            np.stack([sin * across, -sin * slant + cos], axis=-1),
        ],
        axis=-2,
    )
    return points @ torch.from_numpy(matrix.astype(np.float32)).mT


def _bent(points: Float[Tensor, "n points 2"], random: np.random.RandomState) -> Float[Tensor, "n points 2"]:
    """Moved by two smooth fields, read between their pixels."""
    n = len(points)
    chosen = random.randint(0, COUNT, (n, 2))
    strength = random.uniform(0.0, 2.0, n).astype(np.float32) * (2 / BOX / UNIT)
    fields = torch.from_numpy(
        displacement_fields()[chosen].astype(np.float32) * strength[:, None, None, None]
    )
    moved = torch.nn.functional.grid_sample(
        fields, points[:, None] * (BOX / SIDE), padding_mode="border", align_corners=False
    )
    return points + moved[:, :, 0].mT


def _placed(
    points: Float[Tensor, "n points 2"], weights: Float[Tensor, "n points"]
) -> Float[Tensor, "n points 2"]:
    """In pixels: the longer side is `BOX` less the pen, the centre of mass is the middle of the image."""
    real = (weights > 0)[..., None]
    low = torch.where(real, points, torch.inf).amin(dim=1)
    high = torch.where(real, points, -torch.inf).amax(dim=1)
    sized = points * ((BOX - 2.0) / (high - low).amax(dim=1))[:, None, None]
    middle = (sized * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)
    return sized - middle[:, None] + (SIDE - 1) / 2


def _inked(
    points: Float[Tensor, "n points 2"], weights: Float[Tensor, "n points"], width: Float[Tensor, " n"]
) -> Float32[Tensor, "n height width"]:
    """A pen of half-width ``width`` along the points, with an edge of three quarters of a pixel.

    How dense Gaussians around the points lie tells the distance d from the line: exp(-d^2 / (2 BLUR^2)) times the
    density on it. Gaussians are products, so that all distances of an image are one product of matrices.
    """
    grid = torch.arange(SIDE, dtype=torch.float32)
    reach = torch.exp((points[..., None] - grid).square() / (-2 * BLUR**2))  # (n, points, 2, pixels)
    density = (reach[:, :, 1] * weights[..., None]).mT @ reach[:, :, 0]
    on_line = (2 * torch.pi) ** 0.5 * BLUR / ((BOX - 2) / 2)
    distance = (-2 * BLUR**2 * torch.log(density / on_line)).clamp(min=0).sqrt()
    return (1.3 * (width[:, None, None] - distance) + 0.5).clamp(0, 1)
