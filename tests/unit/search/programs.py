"""Programs and populations for tests, and hypothesis strategies that draw them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from core.device import Device
from search.dag import Dag
from search.programs.annotate import keep_valid, sample
from search.programs.program import Population, Program, gather
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.variables import Choice, Variable
from tests.unit.search.dags import DAGS, DEVICE

DEVICES = {"cpu": DEVICE}

# Sketches with variables, by the name of the dag.
OPEN_SKETCHES = {
    name: found
    for name, make in DAGS.items()
    if (found := [sketch for sketch in generate(make(), DEVICE) if sketch.num_columns])
}

# All dags are equally likely, regardless of their number of sketches.
sketches = st.sampled_from(sorted(OPEN_SKETCHES)).flatmap(lambda name: st.sampled_from(OPEN_SKETCHES[name]))
seeds = st.integers(0, 2**32 - 1)


def sketch_of(graph: Dag, key: str, device: Device = DEVICE) -> Sketch:
    """Return the sketch with this key; the error lists all keys."""
    found = {sketch.key: sketch for sketch in generate(graph, device)}
    assert key in found, f"no sketch {key!r} among:\n" + "\n".join(found)
    return found[key]


def program_of(sketch: Sketch, **values: object) -> Program:
    """Return a program with every variable's middle value, and every nest as deep inside another as it can
    be. The given values are exceptions, by node and by axis or kind of choice, such as `matmul={"i": (4, 1,
    1, 8), "unroll": 16}`: factors, or an option itself.
    """
    chosen = {variable.key: _middle(variable) for variable in sketch.variables}
    for node, settings in values.items():
        assert isinstance(settings, dict)
        for name, value in settings.items():
            key, column = _setting(sketch, node, name, value)
            assert key in chosen, f"{key} is not among {list(chosen)}"
            chosen[key] = column
    return Program(sketch, tuple(value for column in chosen.values() for value in column))


def _setting(
    sketch: Sketch, node: str, name: str, value: object
) -> tuple[tuple[str, str | int], tuple[int, ...]]:
    if isinstance(value, tuple):
        axes = [axis.name for axis in sketch.dag.node[node].axes]
        return (node, axes.index(name)), value
    variable = sketch.variable[node, name]
    assert isinstance(variable, Choice)
    assert value in variable.options, f"{value} is not among {variable.options} of {name} of {node}"
    return variable.key, (variable.options.index(value),)


def middling(sketch: Sketch) -> Program:
    """Return a valid program from the middle of the space, the same one on every call."""
    found = keep_valid(gather([program_of(sketch)]))
    assert len(found), f"not valid:\n{program_of(sketch)}"
    return found.program(0)


def _middle(variable: Variable) -> tuple[int, ...]:
    if isinstance(variable, Choice):
        last = len(variable.options) - 1
        # Unrolling much of a large body is not valid.
        return ({"location": last, "unroll": 1, "fused": 0}.get(variable.kind, (last + 1) // 2),)
    table = variable.table
    return tuple(int(factor) for factor in table[len(table) // 2])


def described(graph: Dag, device: Device) -> str:
    """Return a dag, its sketches, and the middling programs of the first and the last one, as text."""
    found = generate(graph, device)
    programs = [f"\n{middling(sketch)}\n" for sketch in dict.fromkeys((found[0], found[-1]))]
    keys = "".join(f"    {sketch.key}\n" for sketch in found)
    return f"{graph}\n\nsketches:\n{keys}" + "".join(programs)


def drawn(sketch: Sketch, seed: int, count: int = 32) -> Population:
    """Draw at least one valid program."""
    rng = np.random.default_rng(seed)
    population = sample(sketch, count, rng)
    while not len(population):
        population = sample(sketch, count, rng)
    return population


def all_programs(population: Population) -> list[Program]:
    """Return every program. Raises ValueError if one doesn't fit its sketch."""
    return [population.program(row) for row in range(len(population))]
