"""Every workload's sketches and one program of each, as text.

`python -m tests.unit.search.test_goldens` writes the files anew: read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from search.sketch import generate
from tests.unit.search.dags import DAGS
from tests.unit.search.programs import middling

FOLDER = Path(__file__).parent / "goldens"


def _text(name: str) -> str:
    return "\n".join(f"{sketch.key}\n{_indented(str(middling(sketch)))}" for sketch in generate(DAGS[name]()))


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("name", DAGS)
def test_sketches_and_programs_read_as_before(name: str) -> None:
    assert _text(name) == (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    for each in DAGS:
        (FOLDER / f"{each}.txt").write_text(_text(each))
