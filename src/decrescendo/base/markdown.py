"""Markdown that can be read as plain text too: tables with padded columns, and texts that stay on their line."""

from collections.abc import Sequence

from decrescendo.errors import InvalidValue


def one_line(text: str) -> str:
    """A text on one line, without terminal control or bidirectional characters, so that it cannot imitate another part
    of a page.

    >>> one_line("mine\\n# Guarantee" + chr(27))
    'mine # Guarantee\ufffd'
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))


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
    rule = [
        "-" * width if side == "l" else "-" * (width - 1) + ":"
        for width, side in zip(widths, align, strict=True)
    ]
    padded = [
        [
            text.ljust(width) if side == "l" else text.rjust(width)
            for text, width, side in zip(line, widths, align, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [padded[0], rule, *padded[1:]])
