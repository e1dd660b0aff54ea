"""What is worn above: tops, pullovers, dresses, coats and shirts."""

from dataclasses import dataclass

import numpy as np

from decrescendo_papers.data.clothes.parts import Dice, Part, Sleeve, line, mirrored, pair, rounded


@dataclass(frozen=True, slots=True)
class _Cut:
    """What tops, coats and dresses differ in; shoulder height is 0, widths are halves."""

    length: float
    shoulder: float
    chest: float
    waist: float
    waist_at: float
    hem: float
    sleeve: Sleeve
    neck: float
    drop: float


def _upper(dice: Dice, cut: _Cut) -> list[Part]:
    """Body and sleeves."""
    tone = dice.within(0.75, 0.95)
    slope, armpit = dice.within(0.05, 0.15), dice.within(0.4, 0.55)
    shoulder = cut.shoulder if cut.sleeve != "none" else cut.neck + dice.within(0.05, 0.18)
    body = mirrored([
        (0.0, cut.drop), (0.7 * cut.neck, 0.6 * cut.drop), (cut.neck, 0.0), (shoulder, slope),
        (min(shoulder, cut.chest), 0.6 * armpit), (cut.chest, armpit),
        (cut.waist, cut.waist_at * cut.length), (cut.hem, cut.length), (0.0, cut.length * dice.within(0.98, 1.03)),
    ])  # fmt: skip
    parts: list[Part] = []
    if cut.sleeve == "long":
        wrist, out = dice.within(1.35, 1.95), dice.within(0.15, 0.42) + cut.chest
        out, wrist = max(out, cut.shoulder + 0.12), min(wrist, 1.02 * cut.length)
        thick = dice.within(0.16, 0.27)
        parts += pair(
            [(cut.neck, 0.02), (shoulder, slope), (shoulder + 0.1, slope + 0.14), (0.94 * out, 0.55 * wrist),
             (out, wrist), (out - thick, wrist + 0.03), (cut.chest, armpit + 0.1), (0.5 * cut.chest, armpit)],
            tone * dice.within(0.85, 1.05),
        )  # fmt: skip
    elif cut.sleeve == "short":
        out, tip = shoulder + dice.within(0.15, 0.42), slope + dice.within(0.25, 0.55)
        thick = dice.within(0.1, 0.24)
        parts += pair(
            [(cut.neck, 0.02), (shoulder, slope), (out, tip), (out - thick, tip + 0.7 * thick + 0.06),
             (cut.chest, armpit + 0.05), (0.5 * cut.chest, armpit)],
            tone * dice.within(0.85, 1.05),
        )  # fmt: skip
    parts.append(Part(rounded(body), tone))
    if cut.sleeve != "none":
        parts += pair(
            [(shoulder, slope), (min(shoulder, cut.chest), 0.6 * armpit), (cut.chest, armpit + 0.1)],
            tone * dice.within(0.6, 1.0),
            0.03,
        )
    if dice.chance(0.5):  # the inside of the back, seen through the neck
        inside = mirrored([
            (0.0, 0.03), (0.8 * cut.neck, 0.0), (0.7 * cut.neck, 0.6 * cut.drop), (0.0, cut.drop)
        ])  # fmt: skip
        parts.append(Part(inside, tone * dice.within(0.4, 0.9)))
    return parts


def _print(dice: Dice, cut: _Cut) -> list[Part]:
    """A picture on the chest."""
    wide, high = dice.within(0.12, 0.8) * cut.chest, dice.within(0.1, 0.5)
    top = dice.within(0.35, 0.7)
    shape = mirrored(
        [(wide * dice.within(0.3, 1.0), top), (wide, top + 0.5 * high), (wide * 0.7, top + high)]
    )
    return [Part(shape, dice.within(0.2, 1.0))]


def _front(dice: Dice, cut: _Cut, bold: bool) -> list[Part]:
    """A collar, a line down the middle, buttons; for coats also lapels."""
    tone, at = dice.within(0.25, 1.0), dice.within(-0.06, 0.06)
    parts = [line([(at, cut.drop), (at, cut.length)], tone, dice.within(0.02, 0.09 if bold else 0.05))]
    if bold and dice.chance(0.3):  # open
        apart = dice.within(0.05, 0.25)
        opened = [(0.0, cut.drop), (apart, 0.5 * cut.length), (apart * dice.within(0.6, 1.4), cut.length)]
        parts.append(Part(mirrored(opened), dice.within(0.1, 0.8)))
    if dice.chance(0.8):
        wide, deep = cut.neck + dice.within(0.0, 0.1), cut.drop + dice.within(0.1, 0.6 if bold else 0.25)
        parts += pair(
            [(0.4 * cut.neck, -0.06), (wide, 0.0), (0.5 * wide, deep), (0.0, cut.drop)], dice.within(0.5, 1.0)
        )
    if dice.chance(0.5):
        for row in np.arange(cut.drop + 0.15, cut.length - 0.1, dice.within(0.2, 0.35)):
            parts.append(line([(at - 0.03, row), (at + 0.03, row)], dice.within(0.1, 1.0), 0.06))
    return parts


def _top_cut(dice: Dice, sleeve: Sleeve, length: tuple[float, float]) -> _Cut:
    chest = dice.within(0.44, 0.62)
    return _Cut(
        length=dice.within(*length), shoulder=dice.within(0.46, 0.62), chest=chest,
        waist=chest * dice.within(0.85, 1.0), waist_at=0.6, hem=chest * dice.within(0.9, 1.12),
        sleeve=sleeve, neck=dice.within(0.14, 0.3), drop=dice.within(0.04, 0.3),
    )  # fmt: skip


def tshirt(dice: Dice) -> list[Part]:
    """Short sleeves or none, often with a picture."""
    cut = _top_cut(dice, dice.sleeve(0.2, 0.75), (1.4, 1.9))
    return _upper(dice, cut) + (_print(dice, cut) if dice.chance(0.45) else [])


def pullover(dice: Dice) -> list[Part]:
    """Long sleeves, closed front."""
    cut = _top_cut(dice, "long", (1.7, 2.2))
    parts = _upper(dice, cut) + (_print(dice, cut) if dice.chance(0.25) else [])
    if dice.chance(0.5):  # ribbed
        parts.append(
            line([(-cut.hem, cut.length - 0.08), (cut.hem, cut.length - 0.08)], dice.within(0.4, 0.9), 0.04)
        )
    if dice.chance(0.25):  # hood
        hood = [(0.0, -0.12), (cut.neck, -0.08), (cut.neck + 0.1, 0.12), (0.3 * cut.neck, cut.drop + 0.1)]
        parts.append(Part(rounded(mirrored(hood)), dice.within(0.5, 0.9)))
    return parts


def dress(dice: Dice) -> list[Part]:
    """Long and narrow, waisted, with any sleeves."""
    chest = dice.within(0.3, 0.42)
    waist = chest * dice.within(0.75, 1.0)
    cut = _Cut(
        length=dice.within(1.9, 3.0), shoulder=dice.within(0.32, 0.44), chest=chest, waist=waist,
        waist_at=dice.within(0.33, 0.45), hem=waist * dice.within(1.0, 2.0), sleeve=dice.sleeve(0.5, 0.25),
        neck=dice.within(0.12, 0.24), drop=dice.within(0.05, 0.35),
    )  # fmt: skip
    parts = _upper(dice, cut)
    if dice.chance(0.4):
        at = cut.waist_at * cut.length
        parts.append(
            line([(-cut.waist, at), (cut.waist, at)], dice.within(0.2, 1.0), dice.within(0.03, 0.12))
        )
    return parts


def coat(dice: Dice) -> list[Part]:
    """Long sleeves and an open or buttoned front with a collar."""
    cut = _top_cut(dice, "long", (1.9, 2.5))
    return _upper(dice, cut) + _front(dice, cut, bold=True)


def shirt(dice: Dice) -> list[Part]:
    """A collar and buttons; sometimes a blouse without."""
    cut = _top_cut(dice, dice.sleeve(0.1, 0.3), (1.6, 2.2))
    return _upper(dice, cut) + (_front(dice, cut, bold=False) if dice.chance(0.75) else [])
