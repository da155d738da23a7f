"""Transfer programs from one workload to another with the same structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from search.programs.annotate import keep_valid
from search.programs.program import Program, gather
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Split, Variable

# The weight of a factor's change relative to the next outer factor's.
INNER_WEIGHT = 4.0


def transfer_programs(programs: Sequence[Program], sketches: Sequence[Sketch]) -> list[Program]:
    """Fit programs to the sketches of the same structure. Return the distinct results in order.

        for i0 in 8:                                 # an axis of 32
          for i1 in 4: b[i] = a[i]
    ->
        for j0 in 14:                                # an axis of 56
          for j1 in 4: y[j] = x[j]

    Programs without such a sketch, and invalid results, are left out. Nodes and buffers
    correspond by their positions, whatever their names. Factors become the nearest ones that the other
    extents allow, the innermost first; choices become the same option or the nearest one.
    """
    found: dict[Program, None] = {}
    for program in programs:
        structure = program.sketch.structure
        sketch = next((sketch for sketch in sketches if sketch.structure == structure), None)
        if sketch is not None:
            fitted = keep_valid(gather([_fit(program, sketch)]))
            found |= {fitted.program(row): None for row in range(len(fitted))}
    return list(found)


def _fit(program: Program, sketch: Sketch) -> Program:
    variables = {_position(program.sketch, variable): variable for variable in program.sketch.variables}
    values: list[int] = []
    for variable in sketch.variables:
        before = variables.get(_position(sketch, variable))
        if isinstance(variable, Split):
            wanted = program.values_of(before) if isinstance(before, Split) else (1,) * variable.parts
            values += nearest_factors(wanted, variable)
        else:
            option = before.options[program.values_of(before)[0]] if isinstance(before, Choice) else None
            values.append(_nearest_option(option, variable))
    return Program(sketch, tuple(values))


def _position(sketch: Sketch, variable: Variable) -> tuple[int, int | str]:
    """Return a key that corresponding variables share in all sketches of a structure.

    It is the node's position, and the axis of a split or the kind of a choice. A buffer has its position in
    place of its name.
    """
    node = [node.name for node in sketch.dag.nodes].index(variable.node)
    if isinstance(variable, Split):
        return node, variable.axis
    kind, _, buffer = variable.kind.partition(" ")
    names = [each.name for each in sketch.dag.buffers]
    return node, f"{kind} {names.index(buffer)}" if buffer in names else variable.kind


def nearest_factors(wanted: Sequence[int], split: Split) -> list[int]:
    """Return the legal factors with the smallest ratios to the given ones. The innermost weigh the most."""
    table = split.table
    if len(wanted) != split.parts:
        return [int(factor) for factor in table[0]]
    weights = INNER_WEIGHT ** np.arange(split.parts)
    ratios: Ints = np.abs(np.log2(table) - np.log2(np.array(wanted)))
    return [int(factor) for factor in table[np.argmin(ratios @ weights)]]


def _nearest_option(wanted: int | str | None, choice: Choice) -> int:
    """Return the position of the given option, else of the closest number, else of the first option."""
    for at, option in enumerate(choice.options):
        if option == wanted:
            return at
    if not str(wanted).isdigit():
        return 0
    numbers = [(at, int(option)) for at, option in enumerate(choice.options) if str(option).isdigit()]
    distances = [(abs(number - int(str(wanted))), at) for at, number in numbers]
    return min(distances, default=(0, 0))[1]
