"""The base class of all stage lowerings, and the steps of lowering."""

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
    """The state of lowering a program. `buffers` maps names in the dag to the workload's buffers; `stages`
    maps nodes to the lowerings of their stages.
    """

    schedule: Schedule
    program: Program
    device: Device
    buffers: Mapping[str, Any]
    primitives: Primitives
    stages: dict[str, StageLowering] = field(default_factory=dict)


class StageLowering:
    """Lower one stage of a program to schedule primitives. A subclass overrides the steps that it needs.

    A step runs for all stages before the next step begins. The order of the methods is the order of the
    steps.
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
        """Copy operands. Nodes inlined after this step are computed during the copy, not in inner loops."""

    def inline(self) -> None:
        """Inline the stage into its consumers."""

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
        """Initialize accumulators in a separate nest. This step comes last: afterwards TVM can neither
        vectorize nor parallelize the loops.
        """

    def loop_around(self, inner: Stage) -> Any:
        """Return the loop of this stage inside which another stage is computed."""
        raise TypeError(f"{self.stage} has no loops that {inner} could be computed at")

    def block_loop(self) -> Any:
        """Return the loop over the blocks in which the stage's chain is computed."""
        assert self.stage.compute_at is not None
        return self.stages[self.stage.compute_at].loop_around(self.stage)

    def choice(self, kind: str) -> int:
        """Return the value of a choice. Raises KeyError if the stage has no choice of this kind."""
        return int(self.program.choice(self.stage.node, kind))


class InlinedLowering(StageLowering):
    """A node that is inlined into its consumers.

        for i, j: B[i, j] = f(A[i, j])
        for i, j: C[i, j] = g(B[i, j])
    ->
        for i, j: C[i, j] = g(f(A[i, j]))
    """

    def inline(self) -> None:
        self.schedule.compute_inline(self.schedule.get_sblock(self.stage.node))
