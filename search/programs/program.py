"""Programs: a sketch with a value for every variable, alone or as whole populations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.dag import AxisKind
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage
from search.sketches.variables import Choice, Variable


@dataclass(frozen=True)
class Program:
    """Raises ValueError unless the values fit the sketch: factors multiply to extents, choices exist."""

    sketch: Sketch
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.values) != self.sketch.num_columns:
            raise ValueError(f"the sketch has {self.sketch.num_columns} columns, not {len(self.values)}")
        for variable in self.sketch.variables:
            variable.check(self.values_of(variable))

    def values_of(self, variable: Variable) -> tuple[int, ...]:
        return self.values[self.sketch.columns[variable.key]]

    def factors(self, node: str, axis: int) -> tuple[int, ...]:
        """The tile factors of an axis, outermost first; ones where the axis has extent 1."""
        where = self.sketch.columns.get((node, axis))
        if where is not None:
            return self.values[where]
        kind = self.sketch.dag.node[node].axes[axis].kind
        return (1,) * self.sketch.stage[node].structure.count(kind)

    def choice(self, node: str, kind: str) -> int | str:
        """The chosen option; raises KeyError when the sketch leaves no such choice open."""
        variable = self.sketch.variable[node, kind]
        assert isinstance(variable, Choice)
        return variable.options[self.values_of(variable)[0]]

    def location(self, node: str) -> str:
        """Where a nest is computed: "inline", "root", or a number of its host's loops."""
        return str(self.choice(node, "location")) if (node, "location") in self.sketch.variable else "root"

    def to_json(self) -> dict[str, Any]:
        return {"sketch": self.sketch.key, "values": list(self.values)}

    def __hash__(self) -> int:
        return hash((self.sketch.key, self.values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return self.values == other.values and self.sketch.key == other.sketch.key

    def __str__(self) -> str:
        return "\n".join(line for stage in self.sketch.stages for line in _describe(self, stage))


def from_json(sketches: Sequence[Sketch], data: Mapping[str, Any]) -> Program:
    """The inverse of `Program.to_json` among the sketches of the same dag.

    Raises ValueError when the sketch is not among them (an older space) or the values don't fit it.
    """
    for sketch in sketches:
        if sketch.key == data.get("sketch"):
            values = data.get("values")
            if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
                raise ValueError("a program's values are integers")
            return Program(sketch, tuple(values))
    raise ValueError(f"no such sketch: {data.get('sketch')!r}")


@dataclass(frozen=True)
class Population:
    """Many programs of one sketch: an int64 array [programs, columns]."""

    sketch: Sketch
    values: Ints

    def __len__(self) -> int:
        return len(self.values)

    def factors(self, node: str, axis: int) -> Ints:
        """[programs, levels], as `Program.factors`."""
        where = self.sketch.columns.get((node, axis))
        if where is not None:
            return self.values[:, where]
        kind = self.sketch.dag.node[node].axes[axis].kind
        return np.ones((len(self), self.sketch.stage[node].structure.count(kind)), dtype=np.int64)

    def column(self, node: str, kind: str) -> Ints:
        """[programs]: positions in the options of a choice."""
        return self.values[:, self.sketch.columns[node, kind].start]

    def chosen(self, node: str, kind: str) -> Ints:
        """[programs]: the chosen numbers of a choice between numbers."""
        variable = self.sketch.variable[node, kind]
        assert isinstance(variable, Choice)
        return np.array(variable.options, dtype=np.int64)[self.column(node, kind)]

    def take(self, rows: Ints) -> Population:
        return Population(self.sketch, self.values[rows])

    def distinct(self) -> Population:
        """Every program once, in the order of their values."""
        return self.take(self.distinct_rows())

    def distinct_rows(self) -> Ints:
        """Where each distinct program stands first, in the order of their values."""
        if not self.sketch.num_columns:
            return np.arange(min(len(self), 1))
        order = np.lexsort(self.values.T[::-1])
        ordered = self.values[order]
        is_new = np.ones(len(self), dtype=bool)
        is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return order[is_new]

    def program(self, row: int) -> Program:
        return Program(self.sketch, tuple(int(value) for value in self.values[row]))


def gather(programs: Sequence[Program]) -> Population:
    """Raises ValueError when the programs don't share one sketch."""
    if len({program.sketch.key for program in programs}) != 1:
        raise ValueError("a population needs programs of one sketch")
    sketch = programs[0].sketch
    return Population(
        sketch, np.array([p.values for p in programs], dtype=np.int64).reshape(len(programs), -1)
    )


def _describe(program: Program, stage: Stage) -> list[str]:
    lines = [str(stage)]
    if stage.structure:
        levels = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
        for letter in stage.structure:
            kind = AxisKind(letter)
            lines.append(f"  {letter}{levels[kind]} {_level(program, stage, kind, levels[kind])}".rstrip())
            levels[kind] += 1
    chosen = [v for v in program.sketch.variables if isinstance(v, Choice) and v.node == stage.node]
    lines += [f"  {v.kind} {v.options[program.values_of(v)[0]]}" for v in chosen]
    return lines


def _level(program: Program, stage: Stage, kind: AxisKind, level: int) -> str:
    axes = program.sketch.dag.node[stage.node].axes
    parts = (
        (axis.name, program.factors(stage.node, i)[level]) for i, axis in enumerate(axes) if axis.kind is kind
    )
    return " ".join(f"{name}={factor}" for name, factor in parts if factor > 1)
