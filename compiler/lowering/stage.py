"""The base of the lowerings of all kinds of stages: the steps that they take together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm.s_tir import Schedule

from compiler.lowering.primitives import Primitives
from core.device import Device
from search.programs.program import Program
from search.sketches.stage import Stage


@dataclass
class Lowering:
    """A program that is being applied to the schedule of its workload. `buffers` are the workload's, by their
    names in the dag; `stages` are the lowerings of all stages, by node."""

    schedule: Schedule
    program: Program
    device: Device
    buffers: Mapping[str, Any]
    primitives: Primitives
    stages: dict[str, StageLowering] = field(default_factory=dict)


class StageLowering:
    """Lower one stage of a program to schedule primitives. A kind of stage does its part in the steps that
    concern it.

    Every stage takes a step before any takes the next one. The steps have the order of the methods here.
    """

    def __init__(self, lowering: Lowering, stage: Stage) -> None:
        self.stage = stage
        self.node = lowering.program.sketch.dag.node[stage.node]
        self.program = lowering.program
        self.device = lowering.device
        self.buffers = lowering.buffers
        self.schedule = lowering.schedule
        self.primitives = lowering.primitives
        self.stages = lowering.stages

    def fetch(self) -> None:
        """Copy operands. Nodes that are inlined after it are computed while copying, not in inner loops."""

    def inline(self) -> None:
        """Compute the stage wherever its value is read."""

    def tile(self) -> None:
        """Split and order the loops, and bind them to a GPU's blocks and threads."""

    def place(self) -> None:
        """Compute the stage inside the loops of its consumer. A consumer takes this step before its
        producers.
        """

    def annotate(self) -> None:
        """Vectorize, unroll and parallelize the loops of nests."""

    def fill_registers(self) -> None:
        """Vectorize, unroll and initialize the innermost tiles."""

    def decompose(self) -> None:
        """Initialize accumulators in a nest of their own. This comes last: TVM can neither vectorize nor
        parallelize the loops after that."""

    def loop_around(self, inner: Stage) -> Any:
        """Return the loop of this stage inside which another stage is computed."""
        raise TypeError(f"{self.stage} has no loops that {inner} could be computed at")

    def block_loop(self) -> Any:
        """Return the loop over the blocks in which the stage's chain is computed."""
        assert self.stage.compute_at is not None
        return self.stages[self.stage.compute_at].loop_around(self.stage)

    def choice(self, kind: str) -> int:
        """Return the chosen number. Raises KeyError if the stage leaves no such choice open."""
        return int(self.program.choice(self.stage.node, kind))


class InlinedLowering(StageLowering):
    """A node computed wherever its value is read.

        for i, j: B[i, j] = f(A[i, j])
        for i, j: C[i, j] = g(B[i, j])
    ->
        for i, j: C[i, j] = g(f(A[i, j]))
    """

    def inline(self) -> None:
        self.schedule.compute_inline(self.schedule.get_sblock(self.stage.node))
