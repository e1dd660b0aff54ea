"""Markdown that can be read as plain text too: tables with padded columns, and texts that stay on their line."""

import re
from collections.abc import Sequence

from decrescendo.errors import InvalidValue

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """A text on one line, without terminal control or bidirectional characters, so that it cannot imitate another part
    of a page.

    >>> one_line("mine\\n# Guarantee" + chr(27))
    'mine # Guarantee\ufffd'
    """
    return obeyed("\ufffd", " ".join(text.split()))


def obeyed(instead: str, text: str) -> str:
    """A text with ``instead`` in place of what a terminal or a line obeys: control characters but tab and line end, and
    marks of direction."""
    return _OBEYED.sub(instead, text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A Markdown table.

    Args:
        header: one name per column.
        rows: one text per column each.
        align: one letter per column: ``l`` (words) or ``r`` (numbers).

    Raises:
        InvalidValue: rows or letters of another length than the header.

    >>> print(table(["method", "%"], [["vanilla", "91.18"]], "lr"))
    | method  |     % |
    | ------- | ----: |
    | vanilla | 91.18 |
    """
    lines = [list(header), *(list(row) for row in rows)]
    if set(align) - {"l", "r"} or any(len(line) != len(align) for line in lines):
        raise InvalidValue(
            f"a table must have {len(align)} texts a row (align={align!r}, of l and r), "
            f"got rows of {sorted({len(line) for line in lines})}"
        )
    lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(align))]
    rule = ["-" * width if side == "l" else "-" * (width - 1) + ":" for width, side in zip(widths, align, strict=True)]
    padded = [
        [
            text.ljust(width) if side == "l" else text.rjust(width)
            for text, width, side in zip(line, widths, align, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [padded[0], rule, *padded[1:]])
