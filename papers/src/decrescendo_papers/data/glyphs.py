"""Digits of public fonts as pen strokes: the middle lines of their glyphs."""

from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from decrescendo.base import require

# Fonts that come with matplotlib. Slanted and bold ones of the same family have the same middle lines and are left out.
FONTS = (
    "DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralItalic",
    "cmr10", "cmss10", "cmtt10", "cmti10", "cmmi10",
)  # fmt: skip
ZE, CHE = "\N{CYRILLIC CAPITAL LETTER ZE}", "\N{CYRILLIC CAPITAL LETTER CHE}"
# Other characters that are shaped like a written digit, by font. How people write digits is common knowledge (a one
# is a bar, a four is open on top, the stem of a nine is straight).
ALIKE = {
    "DejaVuSans": {
        "0": "Oo", "1": "lI|", "2": "Z", "3": f"{ZE}\N{LATIN CAPITAL LETTER EZH}", "4": CHE,
        "5": "S\N{LATIN CAPITAL LETTER TONE FIVE}", "6": "b", "9": "qg",
    },
    "DejaVuSansMono": {"1": "|", "4": CHE, "9": "g"},
    "DejaVuSerif": {"1": "|", "4": CHE},
    "STIXGeneral": {"0": "O", "1": "|", "3": ZE, "4": CHE},
    "STIXGeneralItalic": {"4": CHE},
    "cmss10": {"0": "O", "1": "lI", "6": "b", "9": "q"},
    "cmtt10": {"1": "|"},
}  # fmt: skip
# Zeros with a dot or a bar in them.
LEFT_OUT = {("DejaVuSansMono", "0")}
SIZE = 64


def characters(digit: int) -> list[tuple[str, str]]:
    """Font and character of every shape of ``digit``.

    >>> characters(0)[:4]
    [('DejaVuSans', '0'), ('DejaVuSans', 'O'), ('DejaVuSans', 'o'), ('DejaVuSerif', '0')]
    """
    own = str(digit)
    every = ((font, char) for font in FONTS for char in own + ALIKE.get(font, {}).get(own, ""))
    return [pair for pair in every if pair not in LEFT_OUT]


def bitmap(font: str, character: str) -> Bool[np.ndarray, "height width"]:
    """A character about `SIZE` pixels high, with an empty border of one pixel.

    Raises:
        MissingExtra: pillow or matplotlib is not installed.
    """
    folder = Path(require("matplotlib").get_data_path()) / "fonts" / "ttf"
    face = require("PIL.ImageFont").truetype(str(folder / f"{font}.ttf"), SIZE)
    mask = face.getmask(character, mode="L")
    pixels = np.array(mask, dtype=np.uint8).reshape(mask.size[1], mask.size[0]) > 127
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    return np.pad(pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 1)


def thinned(shape: Bool[np.ndarray, "height width"]) -> Bool[np.ndarray, "height width"]:
    """The middle line of a shape, one pixel wide (Zhang and Suen, 1984). The border of ``shape`` must be empty.

    >>> thinned(np.pad(np.ones((3, 7), dtype=bool), 1)).sum(axis=0).tolist()
    [0, 0, 1, 1, 1, 1, 0, 0, 0]
    """
    line = shape.copy()
    while True:
        before = line.copy()
        for first in (True, False):
            around = _neighbours(line)
            count = around.sum(axis=0)
            turns = (~around & np.roll(around, -1, axis=0)).sum(axis=0)
            north, east, south, west = around[0], around[2], around[4], around[6]
            loose = ~(east & south & (north | west)) if first else ~(north & west & (east | south))
            line &= ~((count >= 2) & (count <= 6) & (turns == 1) & loose)
        if (line == before).all():
            return line


def _neighbours(line: Bool[np.ndarray, "height width"]) -> Bool[np.ndarray, "8 height width"]:
    """Of each pixel, clockwise from the one above."""
    wide = np.pad(line, 1)
    height, width = line.shape
    steps = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
    return np.stack([wide[1 + r : 1 + r + height, 1 + c : 1 + c + width] for r, c in steps])


@cache
def strokes() -> tuple[
    Float32[np.ndarray, "shapes points 2"], Float32[np.ndarray, "shapes points"], Int64[np.ndarray, " shapes"]
]:
    """Points on the middle line of every shape of every digit, their weights, and the digits.

    Points are (column, row) from the middle of the shape, whose longer side is 2; rows go down. Shorter lines are
    filled up with points of weight 0, the others have the length of line that they stand for.

    Raises:
        MissingExtra: pillow or matplotlib is not installed.
    """
    lines: list[np.ndarray] = []
    digits: list[int] = []
    for digit in range(10):
        for font, character in characters(digit):
            found = np.argwhere(thinned(bitmap(font, character)))[:, ::-1].astype(np.float32)
            middle = (found.max(axis=0) + found.min(axis=0)) / 2
            lines.append((found - middle) * (2 / max(1, np.ptp(found, axis=0).max())))
            digits.append(digit)
    longest = max(map(len, lines))
    points = np.zeros((len(lines), longest, 2), dtype=np.float32)
    weights = np.zeros((len(lines), longest), dtype=np.float32)
    for line, point, weight in zip(lines, points, weights, strict=True):
        point[: len(line)] = line
        weight[: len(line)] = 2 / SIZE
    return points, weights, np.array(digits, dtype=np.int64)
