"""Node-based crossover of whole populations (paper section 5.1); the example shows one program."""

from __future__ import annotations

from search.evolution.scored import Scored
from search.programs.program import Population
from search.sketches.sketch import Sketch


def cross(first: Scored, second: Scored) -> Population:
    """Combine the programs of two populations of one sketch.

    All variables of a node come from the parent whose stage scores better. Nodes that are computed in each
    other's loops stay together: their compute locations depend on these loops.

        for i0 in 8: for i1 in 4: b[i] = a[i]        # the first parent: 3 us
        parallel for i: c[i] = b[i]                  # 2 us
    and
        for i0 in 2: for i1 in 16: b[i] = a[i]       # the second one: 5 us
        vectorized for i: c[i] = b[i]                # 1 us
    ->
        for i0 in 8: for i1 in 4: b[i] = a[i]
        vectorized for i: c[i] = b[i]

    A child may be illegal, because the validity of a node may depend on another's variables.
    """
    sketch, values = first.population.sketch, first.population.values.copy()
    for nodes in node_groups(sketch):
        of_first, of_second = (sum(side.stages[node] for node in nodes) for side in (first, second))
        is_better = of_second < of_first
        for (owner, _), columns in sketch.columns.items():
            if owner in nodes:
                values[is_better, columns] = second.population.values[is_better, columns]
    return Population(sketch, values)


def node_groups(sketch: Sketch) -> tuple[frozenset[str], ...]:
    """Return groups of nodes with variables. A group's nodes may be computed in each other's loops."""
    group = {stage.node: {stage.node} for stage in sketch.stages}
    # Compute locations in blocks are not variables, so those stages don't depend on each other.
    around = {s.node: s.compute_at for s in sketch.stages if s.compute_at and not s.blocks}
    around |= {name: node.name for name, node in sketch.compute_at.items()}
    for inner, outer in around.items():
        merged = group[inner] | group[outer]
        for name in merged:
            group[name] = merged
    owners = [variable.node for variable in sketch.variables]
    return tuple(dict.fromkeys(frozenset(group[owner]) for owner in owners))
