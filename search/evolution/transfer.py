"""What was good for one workload, fitted to another one of the same structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search.programs.annotate import legal
from search.programs.program import Program, gather
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Split, Variable

# How much more it matters to keep a factor than to keep the one outside of it.
INWARD = 4.0

Place = tuple[int, int | str]


def transfer_programs(programs: Sequence[Program], sketches: Sequence[Sketch]) -> list[Program]:
    """The programs as those of the sketches that have their structure, in their order and each once; those
    without such a sketch, and those that would not be legal, are left out.

    Names of nodes and buffers don't matter, where they stand does. Factors become those nearest to them that
    the other extents allow, the innermost first; choices the same or the nearest option.
    """
    by_shape = {_shape(sketch): sketch for sketch in sketches}
    found: dict[Program, None] = {}
    for program in programs:
        sketch = by_shape.get(_shape(program.sketch))
        if sketch is not None:
            fitted = legal(gather([_fitted(program, sketch)]))
            found |= {fitted.program(row): None for row in range(len(fitted))}
    return list(found)


def _shape(sketch: Sketch) -> tuple[object, ...]:
    """The stages, with positions in the dag in place of names, and the kinds of every node's axes."""
    nodes = {node.name: str(at) for at, node in enumerate(sketch.dag.nodes)}
    buffers = {buffer.name: str(at) for at, buffer in enumerate(sketch.dag.buffers)}
    stages = tuple(
        replace(
            stage,
            node=nodes[stage.node],
            epilogue=nodes.get(stage.epilogue or ""),
            host=nodes.get(stage.host or ""),
            shared=tuple(buffers[name] for name in stage.shared),
        )
        for stage in sketch.stages
    )
    return stages, tuple(tuple(axis.kind for axis in node.axes) for node in sketch.dag.nodes)


def _fitted(program: Program, sketch: Sketch) -> Program:
    known = {_place(program.sketch, variable): variable for variable in program.sketch.variables}
    values: list[int] = []
    for variable in sketch.variables:
        before = known.get(_place(sketch, variable))
        if isinstance(variable, Split):
            wanted = program.values_of(before) if isinstance(before, Split) else (1,) * variable.parts
            values += nearest_factors(wanted, variable)
        else:
            option = before.options[program.values_of(before)[0]] if isinstance(before, Choice) else None
            values.append(_nearest_option(option, variable))
    return Program(sketch, tuple(values))


def _place(sketch: Sketch, variable: Variable) -> Place:
    """What stands for a variable in every sketch of this shape: the node's position with an axis, or with a
    kind of choice that names a buffer by its position."""
    node = [node.name for node in sketch.dag.nodes].index(variable.node)
    if isinstance(variable, Split):
        return node, variable.axis
    kind, _, buffer = variable.kind.partition(" ")
    names = [known.name for known in sketch.dag.buffers]
    return node, f"{kind} {names.index(buffer)}" if buffer in names else variable.kind


def nearest_factors(wanted: Sequence[int], split: Split) -> list[int]:
    """The legal factors whose ratios to those wanted are the smallest; the innermost matter the most."""
    table = split.table
    if len(wanted) != split.parts:
        return [int(factor) for factor in table[0]]
    weights = INWARD ** np.arange(split.parts)
    ratios: Ints = np.abs(np.log2(table) - np.log2(np.array(wanted)))
    return [int(factor) for factor in table[np.argmin(ratios @ weights)]]


def _nearest_option(wanted: int | str | None, choice: Choice) -> int:
    """Its position: the option itself, else the number closest to it, else the first."""
    for at, option in enumerate(choice.options):
        if option == wanted:
            return at
    if not str(wanted).isdigit():
        return 0
    numbers = [(at, int(option)) for at, option in enumerate(choice.options) if str(option).isdigit()]
    distances = [(abs(number - int(str(wanted))), at) for at, number in numbers]
    return min(distances, default=(0, 0))[1]
