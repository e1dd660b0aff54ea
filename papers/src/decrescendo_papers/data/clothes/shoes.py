"""Shoes from the side, their toes to the left: sandals, sneakers and ankle boots."""

import numpy as np

from decrescendo_papers.data.clothes.parts import Dice, Part, line, rounded


def _sole(dice: Dice, heel: float, thick: float, tone: float) -> list[Part]:
    """Toe at -1, end of the heel at 1; the ground is row 0, the foot stands ``heel`` above it at the back."""
    ball, end = dice.within(-0.35, -0.05), dice.within(0.4, 0.7)
    upper = [(-1.0, -thick), (ball, -thick), (end, -heel - thick), (1.0, -heel - thick)]
    if heel > 0.5 or (heel > 0.15 and dice.chance(0.5)):  # the heel stands free
        block = 1.0 - dice.within(0.08, 0.4)
        lower = [(0.98, 0.0), (block + 0.04, 0.0), (block, -heel), (end, -heel), (ball, 0.0), (-0.95, 0.0)]
    else:
        lower = [(0.98, 0.0), (-0.95, 0.0)]
    return [Part(np.array(upper + lower), tone)]


def sandal(dice: Dice) -> list[Part]:
    """A sole and straps, the background between them."""
    heel = dice.within(0.0, 0.12) if dice.chance(0.5) else dice.within(0.2, 0.9)
    thick, tone = dice.within(0.05, 0.2), dice.within(0.5, 1.0)
    parts = _sole(dice, heel, thick, tone * dice.within(0.6, 1.0))
    ground = -thick

    def over(start: float, stop: float, rise: float, width: float) -> Part:
        from_, to = (ground - heel * max(0.0, column) for column in (start, stop))
        top = 0.5 * (start + stop)
        return line(
            [(start, from_), (0.7 * start + 0.3 * top, from_ - rise), (top, from_ - 1.1 * rise), (stop, to)],
            tone,
            width,
        )

    for _ in range(int(dice.within(1, 4))):
        start = dice.within(-0.9, -0.3)
        parts.append(
            over(start, start + dice.within(0.2, 0.6), dice.within(0.15, 0.5), dice.within(0.05, 0.25))
        )
    if dice.chance(0.7):  # round the ankle, and up from the heel
        back, top = dice.within(0.85, 1.0), -heel - thick - dice.within(0.35, 0.8)
        parts.append(
            line(
                [(back, -heel - thick), (back, top), (dice.within(0.1, 0.5), top + dice.within(-0.1, 0.2))],
                tone,
                dice.within(0.04, 0.14),
            )
        )
        if dice.chance(0.6):
            parts.append(
                line(
                    [(dice.within(0.1, 0.4), top), (dice.within(-0.6, 0.1), ground)],
                    tone,
                    dice.within(0.04, 0.14),
                )
            )
    return parts


def sneaker(dice: Dice) -> list[Part]:
    """Low, on a flat sole, laced."""
    tone, thick, high = dice.within(0.4, 1.0), dice.within(0.08, 0.2), dice.within(0.65, 0.95)
    outline = np.array([
        (-1.0, -0.05), (-0.98, -0.28), (-0.75, -0.38 - dice.within(0, 0.1)), (-0.3, -0.5 * high - 0.1),
        (0.1, -0.92 * high), (0.22, -high), (0.4, -0.75 * high), (0.7, -0.72 * high), (0.88, -0.9 * high),
        (1.0, -0.75 * high), (0.97, -0.3), (1.0, -0.05),
    ])  # fmt: skip
    parts = [Part(rounded(outline), tone)]
    if dice.chance(0.6):
        column = dice.within(-0.3, 0.2)
        parts.append(
            line(
                [(column, -thick), (column + dice.within(0.1, 0.6), -0.65 * high)],
                dice.within(0.1, 1.0),
                dice.within(0.04, 0.2),
            )
        )
    if dice.chance(0.6):  # laces
        shade = dice.within(0.1, 1.0)
        for step in np.linspace(0.0, 1.0, 4):
            column, row = -0.45 + 0.45 * step, -0.5 * high + 0.05 - 0.35 * high * step
            parts.append(line([(column, row), (column + 0.15, row + 0.12)], shade, 0.04))
    if dice.chance(0.5):
        parts.append(
            Part(
                np.array([(-1.0, -0.1), (-0.97, -0.32), (-0.7, -0.36), (-0.55, -0.1)]), dice.within(0.3, 1.0)
            )
        )
    sole = [(-1.0, 0.0), (-1.0, -thick), (0.0, -0.9 * thick), (1.0, -1.3 * thick), (1.0, 0.0)]
    parts.append(Part(np.array(sole), dice.within(0.15, 1.0)))
    return parts


def boot(dice: Dice) -> list[Part]:
    """A shaft over the ankle, with or without a heel."""
    tone, thick = dice.within(0.55, 0.95), dice.within(0.04, 0.14)
    heel = dice.within(0.0, 0.15) if dice.chance(0.55) else dice.within(0.2, 0.7)
    shaft, front = heel + dice.within(1.15, 1.8), dice.within(-0.1, 0.25)
    outline = np.array([
        (-1.0, -thick), (-0.97, -0.3), (-0.7, -0.42), (-0.25, -0.6 - 0.3 * heel), (front, -0.9 - 0.6 * heel),
        (front - dice.within(-0.08, 0.1), -shaft), (0.88, -shaft + dice.within(-0.12, 0.12)), (0.9, -0.9 - heel),
        (1.0, -0.35 - heel), (1.0, -thick - heel), (0.5, -thick - heel), (-0.2, -thick),
    ])  # fmt: skip
    parts = [*_sole(dice, heel, thick, dice.within(0.3, 1.0)), Part(rounded(outline), tone)]
    if dice.chance(0.4):  # a zip or an elastic at the side
        parts.append(
            line(
                [(0.45, -0.55 - heel), (dice.within(0.3, 0.6), -shaft + 0.05)],
                tone * dice.within(0.4, 1.0),
                dice.within(0.03, 0.25),
            )
        )
    if dice.chance(0.35):
        parts += [
            line([(front - 0.15, -row), (front + 0.2, -row)], dice.within(0.2, 1.0), 0.05)
            for row in np.linspace(0.75 + 0.4 * heel, shaft - 0.1, 4)
        ]
    if dice.chance(0.3):  # a cuff
        parts.append(
            line(
                [(front, -shaft + 0.1), (0.88, -shaft + 0.1)], dice.within(0.3, 1.0), dice.within(0.08, 0.25)
            )
        )
    return parts
