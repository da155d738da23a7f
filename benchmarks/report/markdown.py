"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the rows below their headers; a bar within a cell is escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
