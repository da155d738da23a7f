"""Every dag's sketches for a GPU and a program of the first and of the last of them, as text.

`python -m tests.unit.search_gpu.test_goldens` writes the files anew: read what has changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from search.programs.annotate import sample
from search.programs.program import Program
from search.rules.space import generate
from search.sketches.sketch import Sketch
from tests.devices import GPU
from tests.unit.search.dags import DAGS

FOLDER = Path(__file__).parent / "goldens"


def _drawn(sketch: Sketch) -> Program:
    return sample(sketch, 64, np.random.default_rng(0)).program(0)


def _text(name: str) -> str:
    sketches = generate(DAGS[name](), GPU)
    keys = "".join(f"{sketch.key}\n" for sketch in sketches)
    programs = [f"\n{_drawn(sketch)}\n" for sketch in dict.fromkeys((sketches[0], sketches[-1]))]
    return keys + "".join(programs)


@pytest.mark.parametrize("name", DAGS)
def test_sketches_and_programs_read_as_before(name: str) -> None:
    assert _text(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_golden_has_its_dag() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(DAGS)


if __name__ == "__main__":
    for each in DAGS:
        (FOLDER / f"{each}.txt").write_text(_text(each))
