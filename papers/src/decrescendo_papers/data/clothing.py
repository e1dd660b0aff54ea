"""Made-up clothes that look a little like Fashion-MNIST's: public data to pre-train on."""

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy import ndimage

from decrescendo.base import require
from decrescendo_papers.data.clothes import GARMENTS, Dice, Part
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.drawn import drawn_images
from decrescendo_papers.data.fields import COUNT, UNIT, displacement_fields

SIDE, FINE = 28, 4  # pixels; drawn four times as fine
MEAN, STD = 0.2860, 0.3530


def synthetic_clothing(count: int = 60_000, seed: int = 0) -> Dataset:
    """``count`` train and ``count // 6`` test images of made-up clothes, 1x28x28, the 10 classes of Fashion-MNIST.

    Each is an outline of its kind with random proportions (`data.clothes`), bent a little, and laid out as
    Fashion-MNIST's authors say they laid out theirs (Xiao, Rasul and Vollgraf, 2017): trimmed, the longer side 28
    pixels, in the middle, grey, negated, edges sharpened. Cloth has a random brightness, folds (`data.fields`), some
    grain and sometimes stripes. Rounded to bytes, normalised by the declared constants 0.2860 and 0.3530. Classes are
    equally frequent, in random order.

    No image of Fashion-MNIST was opened for this, and nothing in it was chosen by a score. It was drawn from the names
    of the classes and from how shops show clothes, by somebody who knows the pictures that its authors printed.

    The same arguments give the same images on one machine; another version of Pillow may draw a few pixels otherwise.

    About half a minute for 60,000 on one core.

    Args:
        count: number of train images, >= 6.
        seed: whole number >= 0.

    Raises:
        InvalidValue: ``count`` or ``seed`` too small.
        MissingExtra: pillow is not installed.

    >>> synthetic_clothing(60)
    Dataset(synthetic-clothing: 60 train, 10 test, 10 classes, inputs 1x28x28)
    """
    return drawn_images("synthetic-clothing", _images, count, seed, mean=MEAN, std=STD)


def _images(
    classes: Int64[np.ndarray, " n"], random: np.random.RandomState
) -> UInt8[np.ndarray, "n height width"]:
    dice = Dice(random)
    flat = np.stack([_drawn(GARMENTS[kind](dice), random.normal(size=4)) for kind in classes])
    return _lit(flat.astype(np.float64) / 255, random)


def _drawn(parts: list[Part], hang: Float64[np.ndarray, " 4"]) -> UInt8[np.ndarray, "height width"]:
    """Bent a little, trimmed to what is seen, its longer side as long as the image, in the middle."""
    points, unit = _bent(parts, hang)
    seen = points[np.repeat([part.tone > 0 for part in parts], [len(part.points) for part in parts])]
    low, high = seen.min(axis=0), seen.max(axis=0)
    scale = SIDE * FINE / (high - low).max()
    placed = ((points - (low + high) / 2) * scale + SIDE * FINE / 2).tolist()
    image = require("PIL.Image").new("L", (SIDE * FINE, SIDE * FINE))
    pen = require("PIL.ImageDraw").Draw(image)
    first = 0
    for part in parts:
        line = [tuple(point) for point in placed[first : first + len(part.points)]]
        first += len(part.points)
        tone = int(255 * min(1.0, part.tone))
        if part.width:
            pen.line(line, fill=tone, width=max(1, round(part.width * unit * scale)), joint="curve")
        else:
            pen.polygon(line, fill=tone)
    return np.asarray(image.reduce(FINE))


def _bent(
    parts: list[Part], hang: Float64[np.ndarray, " 4"]
) -> tuple[Float64[np.ndarray, "points 2"], float]:
    """All points, turned a little, wider at one end, bowed and leaning: no two clothes hang alike. And how long one
    unit of theirs is now."""
    points = np.concatenate([part.points for part in parts])
    low, high = points.min(axis=0), points.max(axis=0)
    half = float((high - low).max() / 2)
    column, row = ((points - (low + high) / 2) / half).T
    turn, wide, bow, lean = 0.03 * hang[0], 0.05 * hang[1], 0.03 * hang[2], 0.04 * hang[3]
    column = column * (1 + wide * row) + bow * row**2 + lean * row
    return np.stack([column - turn * row, row + turn * column], axis=1), 1 / half


def _lit(
    flat: Float64[np.ndarray, "n height width"], random: np.random.RandomState
) -> UInt8[np.ndarray, "n height width"]:
    """Cloth of some brightness, folded, sometimes striped, its edges sharpened."""
    n = len(flat)

    def each(low: float, high: float) -> Float64[np.ndarray, "n 1 1"]:
        return random.uniform(low, high, (n, 1, 1))

    bright = 0.25 + 0.75 * np.sqrt(each(0.0, 1.0))
    folds = displacement_fields()[random.randint(0, COUNT, n)] / UNIT
    cloth = 1 + each(0.0, 0.15) * folds + each(0.0, 0.08) * random.normal(size=flat.shape)
    grid = np.arange(SIDE)
    tilt = np.where(each(0, 1) < 0.7, 0.0, np.pi / 2)  # across, or along
    place = np.cos(tilt) * grid[:, None] + np.sin(tilt) * grid
    wave = np.sin(2 * np.pi * place / each(2.5, 9.0) + each(0.0, 7.0))
    cloth *= 1 - np.where(each(0, 1) < 0.2, each(0.1, 0.8), 0.0) * (wave > each(-0.7, 0.7))
    image = flat * bright * cloth
    blurred = ndimage.gaussian_filter(image, 1.0, axes=(1, 2))
    image = np.where(flat > 0.02, image + each(0.2, 1.0) * (image - blurred), 0.0)
    return np.rint(255 * image.clip(0, 1)).astype(np.uint8)
