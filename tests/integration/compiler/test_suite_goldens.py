"""The sketches of the suite's operators stay the same, as text, for each kind of device.

`python -m tests.integration.compiler.test_suite_goldens` writes the files anew: read the difference before
you commit it.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from compiler.reading.subgraph import read_dag
from tests.suite import SHAPES, Case
from tests.unit.search.programs import DEVICES, described

FOLDER = Path(__file__).parent / "goldens"
CASES = list(product(DEVICES, SHAPES))


def _file(device: str, operator: str) -> Path:
    return FOLDER / device / f"{operator}.txt"


def _text(device: str, operator: str) -> str:
    case = Case(operator, SHAPES[operator][0])
    return described(read_dag(case.module()), DEVICES[device])


@pytest.mark.parametrize(("device", "operator"), CASES)
def test_sketches_and_programs_read_as_before(device: str, operator: str) -> None:
    assert _text(device, operator) == _file(device, operator).read_text()


if __name__ == "__main__":
    for each in CASES:
        _file(*each).parent.mkdir(parents=True, exist_ok=True)
        _file(*each).write_text(_text(*each))
