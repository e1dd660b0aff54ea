"""What flat clothes are put together from: filled outlines and lines, with random proportions."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

Points = Float64[np.ndarray, "points 2"]
Sleeve = Literal["none", "short", "long"]


@dataclass(frozen=True, slots=True)
class Part:
    """One shape of a garment, drawn over the parts before it.

    Args:
        points: (column, row), rows go down. Units are the garment's own: it is scaled to the image afterwards.
        tone: brightness in [0, 1]; 0 is the background, a hole.
        width: of a line through the points; 0 for a filled outline.
    """

    points: Points
    tone: float
    width: float = 0.0


class Dice:
    """Random numbers by the names that the outlines need."""

    def __init__(self, random: np.random.RandomState) -> None:
        self._random = random

    def within(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return float(self._random.uniform(low, high))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.uniform() < probability

    def sleeve(self, none: float, short: float) -> Sleeve:
        """None or a short one with these probabilities, else a long one."""
        drawn = self._random.uniform()
        return "none" if drawn < none else "short" if drawn < none + short else "long"


def mirrored(right: list[tuple[float, float]]) -> Points:
    """A closed outline from its right half, top to bottom.

    >>> mirrored([(1.0, 0.0), (2.0, 1.0)]).tolist()
    [[1.0, 0.0], [2.0, 1.0], [-2.0, 1.0], [-1.0, 0.0]]
    """
    half = np.array(right)
    return np.concatenate([half, half[::-1] * (-1, 1)])


def rounded(points: Points) -> Float64[np.ndarray, "twice 2"]:
    """A closed outline with its corners cut once (Chaikin, 1974).

    >>> rounded(np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]]))[:2].tolist()
    [[1.0, 0.0], [3.0, 0.0]]
    """
    following = np.roll(points, -1, axis=0)
    cut = np.stack([0.75 * points + 0.25 * following, 0.25 * points + 0.75 * following], axis=1)
    return cut.reshape(-1, 2)


def pair(points: list[tuple[float, float]], tone: float, width: float = 0.0) -> list[Part]:
    """A part and its mirror image."""
    right = np.array(points)
    return [Part(right, tone, width), Part(right * (-1, 1), tone, width)]


def line(points: list[tuple[float, float]], tone: float, width: float) -> Part:
    """A part that is no outline."""
    return Part(np.array(points), tone, width)
