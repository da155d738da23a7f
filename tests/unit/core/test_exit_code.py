"""Exit codes: scripts rely on their numbers, people on the table in docs/commands.md."""

from __future__ import annotations

import re
from pathlib import Path

from core.exit_code import ExitCode

PAGE = Path(__file__).parents[3] / "docs/commands.md"


def test_the_page_lists_every_code_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in ExitCode]


def test_numbers_do_not_change() -> None:
    numbers = {code.name: int(code) for code in ExitCode}
    assert numbers == {
        "OK": 0,
        "UNEXPECTED": 1,
        "USAGE": 2,
        "BAD_INPUT": 3,
        "UNREACHABLE": 4,
        "REFUSED": 5,
        "JOB_FAILED": 6,
        "JOB_CANCELLED": 7,
        "LOCAL": 8,
        "FENCED": 9,
        "UPDATE": 10,
        "REGRESSION": 11,
        "INTERRUPTED": 130,
    }
