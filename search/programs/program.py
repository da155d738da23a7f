"""Programs (a sketch with a value for every variable), and populations of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage
from search.sketches.variables import Choice, Variable

KEY_BITS = 63


@dataclass(frozen=True)
class Program:
    """A sketch with values for its variables. Raises ValueError if they don't fit: factors must cover their
    extents, and chosen options must exist.
    """

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
        """Return the tile factors of an axis, outermost first; all 1 for an axis of extent 1."""
        columns = self.sketch.columns.get((node, axis))
        if columns is not None:
            return self.values[columns]
        kind = self.sketch.dag.node[node].axes[axis].kind
        return (1,) * self.sketch.stage[node].structure.count(kind)

    def choice(self, node: str, kind: str) -> int | str:
        """Return the chosen option. Raises KeyError if the sketch has no such choice."""
        variable = self.sketch.variable[node, kind]
        assert isinstance(variable, Choice)
        return variable.options[self.values_of(variable)[0]]

    def location(self, node: str) -> str:
        """Return the compute location of a nest: "inline", "root", or the number of its consumer's loops
        around it.
        """
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
        return "\n".join(line for stage in self.sketch.stages for line in _stage_lines(self, stage))


def from_json(sketches: Sequence[Sketch], data: Mapping[str, Any]) -> Program:
    """Return the program that `Program.to_json` wrote. Raises ValueError if its sketch is not among
    `sketches`, because the space changed, or if the values don't fit.
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
        """Return [programs, levels], like `Program.factors`."""
        columns = self.sketch.columns.get((node, axis))
        if columns is not None:
            return self.values[:, columns]
        kind = self.sketch.dag.node[node].axes[axis].kind
        return np.ones((len(self), self.sketch.stage[node].structure.count(kind)), dtype=np.int64)

    def column(self, node: str, kind: str) -> Ints:
        """Return [programs]: the positions of the chosen options."""
        return self.values[:, self.sketch.columns[node, kind].start]

    def chosen(self, node: str, kind: str) -> Ints:
        """Return [programs]: the chosen options, if they are numbers."""
        variable = self.sketch.variable[node, kind]
        assert isinstance(variable, Choice)
        return variable.numbers[self.column(node, kind)]

    def take(self, rows: Ints) -> Population:
        return Population(self.sketch, self.values[rows])

    def distinct(self) -> Population:
        """Return the distinct programs, ordered by values."""
        return self.take(self.distinct_rows())

    def distinct_rows(self) -> Ints:
        """Return the row of every program's first occurrence, ordered by values."""
        if not self.sketch.num_columns:
            return np.arange(min(len(self), 1))
        keys = sort_keys(self.values)
        order = np.lexsort(keys[::-1])
        is_new = np.ones(len(self), dtype=bool)
        is_new[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
        return order[is_new]

    def program(self, row: int) -> Program:
        return Program(self.sketch, tuple(int(value) for value in self.values[row]))


def gather(programs: Sequence[Program]) -> Population:
    """Return the programs as a population. Raises ValueError if they have different sketches."""
    if len({program.sketch.key for program in programs}) != 1:
        raise ValueError("a population needs programs of one sketch")
    sketch = programs[0].sketch
    return Population(
        sketch, np.array([p.values for p in programs], dtype=np.int64).reshape(len(programs), -1)
    )


def sort_keys(values: Ints) -> list[Ints]:
    """Return keys [rows] that order rows of non-negative values [rows, columns] as the columns do, in turn.

    A key holds the values of as many columns as fit into 63 bits, because sorting by every column is slow.
    """
    widths = [int(most).bit_length() for most in values.max(axis=0, initial=0)]
    keys: list[Ints] = []
    room = 0
    for column, width in enumerate(widths):
        if not keys or width > room:
            keys.append(values[:, column])
            room = KEY_BITS - width
        else:
            keys[-1] = (keys[-1] << width) | values[:, column]
            room -= width
    return keys


def _stage_lines(program: Program, stage: Stage) -> list[str]:
    """Return the stage, the factors of every tile level (such as `S0 i=2 j=3`), and the chosen options."""
    lines = [str(stage)]
    axes = program.sketch.dag.node[stage.node].axes
    for position, letter in enumerate(stage.structure):
        level = stage.structure[:position].count(letter)
        factors = (
            (axis.name, program.factors(stage.node, number)[level])
            for number, axis in enumerate(axes)
            if axis.kind == letter
        )
        split = " ".join(f"{name}={factor}" for name, factor in factors if factor > 1)
        lines.append(f"  {letter}{level} {split}".rstrip())
    chosen = [v for v in program.sketch.variables if isinstance(v, Choice) and v.node == stage.node]
    return lines + [f"  {v.kind} {v.options[program.values_of(v)[0]]}" for v in chosen]
