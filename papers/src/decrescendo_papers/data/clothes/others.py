"""Trousers and bags."""

import numpy as np

from decrescendo_papers.data.clothes.parts import Dice, Part, line, mirrored, pair, rounded


def trousers(dice: Dice) -> list[Part]:
    """Two legs."""
    tone, length = dice.within(0.75, 0.95), dice.within(2.2, 3.0)
    waist, hip = dice.within(0.3, 0.42), dice.within(0.38, 0.5)
    crotch, outer = dice.within(0.5, 0.8), dice.within(0.28, 0.55)
    inner = outer - dice.within(0.18, 0.3)
    outline = mirrored([
        (0.0, 0.03), (waist, 0.0), (hip, 0.8 * crotch), (0.5 * (hip + outer), 0.6 * length), (outer, length),
        (inner, length), (0.5 * inner + 0.02, 0.65 * length), (0.01, crotch),
    ])  # fmt: skip
    parts = [Part(outline, tone)]
    parts.append(line([(0.0, 0.05), (0.0, crotch)], tone * dice.within(0.5, 1.0), 0.03))
    if dice.chance(0.5):
        parts.append(line([(-waist, 0.1), (waist, 0.1)], tone * dice.within(0.4, 1.0), 0.05))
    if dice.chance(0.4):
        parts += pair(
            [(0.5 * hip, 0.6 * crotch), (0.5 * (inner + outer), length)],
            min(1.0, tone * dice.within(0.8, 1.2)),
            0.1,
        )
    return parts


def bag(dice: Dice) -> list[Part]:
    """A body, often a handle over it, a flap or a clasp."""
    tone, top = dice.within(0.6, 0.95), dice.within(0.6, 1.0)
    bottom, high = dice.within(0.75, 1.0), dice.within(0.7, 1.7)
    parts: list[Part] = []
    if dice.chance(0.75):
        reach, rise, width = dice.within(0.25, 0.9) * top, dice.within(0.25, 1.0), dice.within(0.05, 0.16)
        turn = np.linspace(np.pi, 0.0, 11)
        for _ in range(2 if dice.chance(0.3) else 1):
            shift = dice.within(-0.08, 0.08)
            arc = np.stack(
                [shift + reach * np.cos(turn), 0.05 - rise * np.sin(turn) ** dice.within(0.5, 1.0)], axis=1
            )
            parts.append(Part(arc, tone * dice.within(0.6, 1.05), width))
    body = mirrored(
        [(0.0, 0.0), (top, dice.within(0.0, 0.1)), (bottom, 0.7 * high), (bottom * 0.95, high), (0.0, high)]
    )
    parts.append(Part(rounded(body) if dice.chance(0.6) else body, tone))
    if dice.chance(0.5):
        depth = dice.within(0.2, 0.65) * high
        parts.append(
            Part(
                rounded(mirrored([(0.0, 0.0), (0.95 * top, 0.05), (0.9 * top, depth), (0.0, depth)])),
                tone * dice.within(0.7, 1.05),
            )
        )
        parts.append(line([(-0.9 * top, depth), (0.9 * top, depth)], tone * dice.within(0.4, 0.9), 0.03))
    if dice.chance(0.5):
        row = dice.within(0.15, 0.6) * high
        parts.append(line([(-0.08, row), (0.08, row)], dice.within(0.1, 1.0), dice.within(0.06, 0.16)))
    return parts
