"""Programs of a sketch with chosen options."""

from __future__ import annotations

from collections.abc import Mapping

from search.programs.program import Program
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice


def choose(sketch: Sketch, options: Mapping[str, int]) -> Program:
    """Return the program with these options, by the kinds of the sketch's choices; the last one of others."""
    values = []
    for variable in sketch.variables:
        assert isinstance(variable, Choice), f"{variable} is no choice"
        option = options.get(variable.kind, variable.options[-1])
        values.append(variable.options.index(option))
    return Program(sketch, tuple(values))
