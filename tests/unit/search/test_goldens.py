"""Every dag's sketches and the programs of two of them, as text, for each kind of device.

`python -m tests.unit.search.test_goldens` writes the files anew: read the difference before you commit it.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.unit.search.dags import DAGS
from tests.unit.search.programs import DEVICES, described

FOLDER = Path(__file__).parent / "goldens"
CASES = list(product(DEVICES, DAGS))


def _file(device: str, name: str) -> Path:
    return FOLDER / device / f"{name}.txt"


@pytest.mark.parametrize(("device", "name"), CASES)
def test_sketches_and_programs_read_as_before(device: str, name: str) -> None:
    assert described(DAGS[name](), DEVICES[device]) == _file(device, name).read_text()


def test_every_golden_has_its_dag() -> None:
    kept = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.txt")}
    assert kept == {_file(device, name).relative_to(FOLDER) for device, name in CASES}


if __name__ == "__main__":
    for each in CASES:
        _file(*each).parent.mkdir(parents=True, exist_ok=True)
        _file(*each).write_text(described(DAGS[each[1]](), DEVICES[each[0]]))
