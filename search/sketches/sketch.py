"""Sketches: the structure of a program without its numbers (paper section 4.1).

A sketch has a stage for every node: inlined, tiled over several levels, fused into its producer's tile, a
loop nest, and so on. It has integer variables. A program is a sketch with values for its variables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from core.device import Gpu
from search.dag import Dag, Node
from search.sketches.location import compute_at_of
from search.sketches.stage import Stage, StageKind
from search.sketches.variables import Choice, Variable


@dataclass(frozen=True)
class Sketch:
    """A stage for every node of `dag`, in the dag's order. `gpu` has the GPU's limits; None for CPUs."""

    dag: Dag
    stages: tuple[Stage, ...]
    gpu: Gpu | None = None

    @cached_property
    def key(self) -> str:
        """A name that identifies the sketch among its dag's sketches, the same in every process."""
        return "; ".join(str(stage) for stage in self.stages)

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """What sketches of two workloads share if the programs of one fit the other: the stages, with
        positions in place of names, and the kinds of every node's axes.
        """
        nodes = {node.name: str(at) for at, node in enumerate(self.dag.nodes)}
        buffers = {buffer.name: str(at) for at, buffer in enumerate(self.dag.buffers)}
        stages = tuple(
            replace(
                stage,
                node=nodes[stage.node],
                epilogue=nodes.get(stage.epilogue or ""),
                compute_at=nodes.get(stage.compute_at or ""),
                shared=tuple(buffers[name] for name in stage.shared),
            )
            for stage in self.stages
        )
        return stages, tuple(tuple(axis.kind for axis in node.axes) for node in self.dag.nodes)

    @cached_property
    def stage(self) -> dict[str, Stage]:
        return {stage.node: stage for stage in self.stages}

    def of_kind(self, kind: StageKind) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.stages if stage.kind is kind)

    @cached_property
    def tiled(self) -> tuple[Stage, ...]:
        return self.of_kind(StageKind.TILED)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(variable for stage in self.stages for variable in stage.variables(self))

    @cached_property
    def variable(self) -> dict[tuple[str, str | int], Variable]:
        """The variables by key: (node, axis) of a split, (node, kind) of a choice."""
        return {variable.key: variable for variable in self.variables}

    @cached_property
    def columns(self) -> dict[tuple[str, str | int], slice]:
        """The slice of a program's vector that holds a variable's values, by the variable's key."""
        found: dict[tuple[str, str | int], slice] = {}
        start = 0
        for variable in self.variables:
            found[variable.key] = slice(start, start + variable.width)
            start += variable.width
        return found

    @cached_property
    def num_columns(self) -> int:
        return sum(variable.width for variable in self.variables)

    @cached_property
    def compute_at(self) -> dict[str, Node]:
        """Map nests to the consumer in whose loops they can be computed. Other nests are omitted."""
        found = {
            stage.node: compute_at_of(self.dag, self.stage, self.dag.node[stage.node])
            for stage in self.nests
            if not stage.blocks
        }
        return {name: compute_at for name, compute_at in found.items() if compute_at is not None}

    @cached_property
    def nests(self) -> tuple[Stage, ...]:
        return self.of_kind(StageKind.NEST)

    @cached_property
    def nest_names(self) -> frozenset[str]:
        return frozenset(stage.node for stage in self.nests)

    def choice(self, node: str, kind: str) -> Choice | None:
        found = self.variable.get((node, kind))
        return found if isinstance(found, Choice) else None

    @cached_property
    def materialized(self) -> frozenset[str]:
        """The buffers that every program stores whole in memory."""
        movable = {
            s.node
            for s in self.stages
            if s.kind is StageKind.INLINE or s.node in self.compute_at or (s.blocks and s.compute_at)
        }
        produced = {write.buffer for name in movable for write in self.dag.node[name].writes}
        return frozenset(self.dag.buffer) - produced
