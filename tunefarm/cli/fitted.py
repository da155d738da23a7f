"""Tables that fit the terminal: each row takes one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

# A text is cut to no fewer than this many characters.
MIN_TEXT = 8
# The spaces between two columns.
GAP = 2


@dataclass(frozen=True)
class Column:
    """A column. In a narrow terminal, columns of the highest `rank` are left out first. Columns of rank 0
    always stay.

    Cells that are `text` may be cut to `least` characters. `shortened` makes cells shorter in a terminal that
    is too narrow for all whole texts.
    """

    title: str
    rank: int = 0
    text: bool = False
    justify: Literal["left", "right"] = "left"
    least: int = MIN_TEXT
    shortened: Callable[[str], str] | None = None

    @classmethod
    def number(cls, title: str, rank: int = 0) -> Self:
        """Return a column of numbers."""
        return cls(title, rank, justify="right")


@dataclass(frozen=True)
class FittedTable:
    """Rows of plain text under columns. Columns are left out only where cut texts don't save enough."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False)
        rows = self._rows(options.max_width)
        widths = self._widths(rows, options.max_width)
        for at, width in widths.items():
            column = self.columns[at]
            table.add_column(_cell(column.title), justify=column.justify, width=width, no_wrap=True)
        for row in rows:
            table.add_row(*(_cell(row[at]) for at in widths))
        yield table

    def print(self, console: Console) -> None:
        """Print the table so that it fits a terminal. Elsewhere its cells are complete, and wrap if they are
        long.
        """
        if console.is_terminal:
            console.print(self)
            return
        table = Table(box=None, pad_edge=False)
        for column in self.columns:
            table.add_column(column.title, justify=column.justify)
        for row in self.rows:
            table.add_row(*map(Text, row))
        console.print(table)

    def _rows(self, terminal: int) -> Sequence[Sequence[str]]:
        """Return the rows, with shortened cells if the terminal is too narrow for the whole ones."""
        if _total(self._whole_widths(self.rows)) <= terminal:
            return self.rows
        return [
            [
                cell if column.shortened is None else column.shortened(cell)
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    def _whole_widths(self, rows: Sequence[Sequence[str]]) -> Mapping[int, int]:
        return {
            at: max(cell_len(text) for text in (column.title, *(row[at] for row in rows)))
            for at, column in enumerate(self.columns)
        }

    def _widths(self, rows: Sequence[Sequence[str]], terminal: int) -> Mapping[int, int]:
        """Return the widths of the columns to show, by their positions."""
        widths = self._whole_widths(rows)
        least = {
            at: min(width, self.columns[at].least) if self.columns[at].text else width
            for at, width in widths.items()
        }
        while _total(least) > terminal and any(self.columns[at].rank for at in least):
            del least[max(least, key=lambda at: (self.columns[at].rank, at))]
        shown = {at: widths[at] for at in least}
        while _total(shown) > terminal and shown != least:
            longest = max(shown, key=lambda at: shown[at] - least[at])
            shown[longest] -= 1
        return shown


def _cell(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
