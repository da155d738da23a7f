"""The space contains the known good programs."""

from __future__ import annotations

import numpy as np
import pytest

from search.programs.annotate import keep_valid
from search.programs.program import Program, gather
from search.sketches.variables import Split
from tests.unit.search.known_good import KNOWN_GOOD

names = pytest.mark.parametrize("name", KNOWN_GOOD)


@names
def test_known_good_programs_are_legal(name: str) -> None:
    population = gather([KNOWN_GOOD[name].program])
    assert np.array_equal(keep_valid(population).values, population.values)


@names
def test_random_sampling_can_draw_known_good_programs(name: str) -> None:
    """The factors of every split are among those drawn; all options of a choice are drawn."""
    program = KNOWN_GOOD[name].program
    for variable in program.sketch.variables:
        if isinstance(variable, Split):
            assert program.values_of(variable) in {tuple(row) for row in variable.table.tolist()}, variable


@names
def test_good_programs_set_every_variable(name: str) -> None:
    """No variable keeps the default of `program_of`, the middle value."""
    known = KNOWN_GOOD[name]
    given = {(node, setting) for node, settings in known.values.items() for setting in settings}
    assert given == {_written(known.program, *variable.key) for variable in known.program.sketch.variables}


def _written(program: Program, node: str, key: str | int) -> tuple[str, str]:
    return node, key if isinstance(key, str) else program.sketch.dag.node[node].axes[key].name
