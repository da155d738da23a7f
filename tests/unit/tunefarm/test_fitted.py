"""Tables fit the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tunefarm.cli.fitted import Column, FittedTable

COLUMNS = (
    Column("name", text=True),
    Column.number("ms"),
    Column("state", rank=1),
    Column("message", rank=2, text=True),
)
ROWS = (
    ("a model of a long name", "12.5", "tuning", "measuring 17 candidates"),
    ("[b]", "1", "done", "日本語の知らせ"),
)


def shown(width: int) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(FittedTable(COLUMNS, ROWS))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return [line.split() for line in lines]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, ["name", "ms", "state", "message"]),
        (45, ["name", "ms", "state", "message"]),
        (30, ["name", "ms", "state"]),
        (16, ["name", "ms"]),
        (4, []),
    ],
)
def test_texts_are_cut_and_then_columns_left_out(width: int, titles: list[str]) -> None:
    lines = shown(width)
    assert len(lines) == 1 + len(ROWS), "each row takes one line"
    if titles:
        assert lines[0] == titles
        assert lines[1][titles.index("ms") - len(titles)].endswith("…") or "12.5" in lines[1]


def test_a_wide_terminal_shows_all() -> None:
    assert " ".join(shown(80)[1]) == "a model of a long name 12.5 tuning measuring 17 candidates"
    assert shown(80)[2] == ["[b]", "1", "done", "日本語の知らせ"]


def test_a_printed_table_fits_a_terminal_and_is_complete_elsewhere() -> None:
    columns = (Column("job", text=True), Column("model", text=True), Column("created", rank=1))
    row = ("7d0f6a1e4c2b49f0a8e3d1c5b6f79a20", "mobilenet_v2", "2026-11-27 18:00:00")
    shown = []
    for is_terminal, width in ((True, 30), (False, 160)):
        console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
        FittedTable(columns, [row]).print(console)
        assert isinstance(console.file, io.StringIO)
        shown.append(console.file.getvalue().splitlines())
    narrow, wide = shown
    assert [line.split() for line in narrow] == [
        ["job", "model"],
        ["7d0f6a1e4c2b49f…", "mobilenet_v2"],
    ]
    assert wide[1].split("  ") == list(row)
