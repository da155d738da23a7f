"""The resources of tiled GPU kernels, for every program of a population."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.dag import BufferAccess, Dag
from search.programs.nest import Nest, region
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.stage import Stage

BLOCK, VTHREAD, THREAD, FETCH = range(4)
# A thread's registers for addresses, loop counters and temporaries.
OTHER_REGISTERS = 40


@dataclass(frozen=True)
class GpuTile:
    """One tiled stage; every quantity is [programs]. `stages` is the number of an operand's tiles in a
    block's shared memory.
    """

    nest: Nest
    dag: Dag
    stage: Stage
    stages: Ints

    @classmethod
    def of(cls, population: Population, stage: Stage) -> GpuTile:
        nest = Nest.of(population, stage)
        one = np.ones(len(population), dtype=np.int64)
        stages = population.chosen(stage.node, "stages") if stage.shared else one
        return cls(nest, population.sketch.dag, stage, stages)

    @property
    def blocks(self) -> Ints:
        return self.nest.trips(BLOCK)

    @property
    def vthreads(self) -> Ints:
        return self.nest.trips(VTHREAD)

    @property
    def threads(self) -> Ints:
        return self.nest.trips(THREAD)

    @property
    def fetches(self) -> Ints:
        """The number of times that a block fetches its operands."""
        return self.nest.trips(FETCH)

    @property
    def innermost_fetches(self) -> Ints:
        """The iterations of the innermost loop around a fetch: the one that is pipelined."""
        return np.asarray(self.nest.extents[FETCH][self.nest.node.reduction[-1]])

    @cached_property
    def accumulators(self) -> Ints:
        """The results that a thread holds in registers."""
        nest = self.nest
        inner = nest.inside[FETCH][list(nest.node.spatial)].prod(axis=0)
        return np.asarray(inner * self.vthreads)

    @cached_property
    def registers(self) -> Ints:
        """An estimate of the registers of a thread."""
        item = self.dag.buffer[self.nest.node.write.buffer].item_bytes
        return self.accumulators * max(item // 4, 1) + OTHER_REGISTERS

    @property
    def fetched(self) -> Ints:
        """[axes, programs]: the extent of each axis that a block covers between two fetches."""
        extents = self.nest.extents
        return np.asarray(self.nest.inside[FETCH + 1] * extents[VTHREAD] * extents[THREAD])

    def elements(self, access: BufferAccess) -> Ints:
        """Return the elements of an operand that a block fetches at once."""
        return np.asarray(
            np.multiply.reduce(region(access, self.fetched, self.dag.buffer[access.buffer].shape))
        )

    def run(self, access: BufferAccess) -> Ints:
        """Return the elements of one row of an operand that a block fetches at once."""
        return region(access, self.fetched, self.dag.buffer[access.buffer].shape)[-1]

    def keeps_its_shape(self, access: BufferAccess) -> NDArray[np.bool_]:
        """[programs]: whether every fetch of an operand has the same extents. (With a quotient in an index,
        they change when tiles straddle multiples of the divisor.)
        """
        keep = np.ones(len(self.blocks), dtype=bool)
        outside = self.nest.extents[BLOCK] * self.nest.extents[FETCH]
        for index in access.indices:
            for axis, _, divisor in index.terms:
                keep &= (outside[axis] == 1) | (self.fetched[axis] % divisor == 0)
        return keep

    @cached_property
    def shared_bytes(self) -> Ints:
        """The bytes of shared memory for all tiles that a block holds at once."""
        total = np.zeros_like(self.blocks)
        for read in self.nest.node.reads:
            if read.buffer in self.stage.shared:
                total = total + self.elements(read) * self.dag.buffer[read.buffer].item_bytes
        return np.asarray(total * self.stages)
