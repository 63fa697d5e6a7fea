"""Lines of a page of plain text, 120 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from attnres_train.words import MIB

PAGE_COLUMNS = 120
_INDENT, _GAP, _NARROWEST = 2, 2, 20


def table(rows: Sequence[Sequence[str]], *, indent: int = 0, right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns two spaces apart; the columns in `right` are aligned at their right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        aligned = enumerate(zip(row, widths, strict=True))
        cells = [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in aligned]
        lines.append(" " * indent + (" " * _GAP).join(cells).rstrip())
    return lines


def page_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """`table` on a page: indented, and what does not fit beside the other columns is wrapped in the last one."""
    before = _INDENT + sum(max(map(len, column)) + _GAP for column in list(zip(*rows, strict=True))[:-1])
    room = max(_NARROWEST, PAGE_COLUMNS - before)
    wrapped = []
    for *cells, last in rows:
        first, *others = wrap(last, room, break_long_words=False, break_on_hyphens=False) or [""]
        wrapped += [[*cells, first], *([""] * len(cells) + [part] for part in others)]
    return table(wrapped, indent=_INDENT, right=right)


def in_mib(size: float) -> str:
    """Bytes as a number of MiB."""
    return f"{size / MIB:.3g}" if size < 1000 * MIB else f"{size / MIB:,.0f}"
