"""Programs with chosen options."""

from __future__ import annotations

from collections.abc import Mapping

from search.programs.program import Program
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice


def choose(sketch: Sketch, options: Mapping[str, int]) -> Program:
    """Return a program with these options by kind of choice. Other choices get their last option."""
    values = []
    for variable in sketch.variables:
        assert isinstance(variable, Choice), f"{variable} isn't a choice"
        option = options.get(variable.kind, variable.options[-1])
        values.append(variable.options.index(option))
    return Program(sketch, tuple(values))
