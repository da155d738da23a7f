"""Programs become schedules: every decision of a program as TVM schedule primitives, kept as a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from compiler.fallback import MIN_PARALLEL_ITERATIONS
from search.dag import AxisKind, Node
from search.device import Device
from search.program import Program
from search.sketch import Placement, Stage


class LoweringError(Exception):
    """TVM refuses a program or a trace; the message is TVM's last line, which names the cause."""


def lower(module: tvm.IRModule, program: Program, device: Device) -> str:
    """The trace, as JSON text, that turns a workload into the program. Raises LoweringError."""
    schedule = Schedule(module, debug_mask="none")
    try:
        _Lowering(schedule, program, device).run()
        return json.dumps(_plain(schedule.trace.as_json()), separators=(",", ":"))
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise LoweringError(_last_line(error)) from error


def apply_trace(module: tvm.IRModule, trace: str) -> tvm.IRModule:
    """The workload under a trace. Raises LoweringError when it is no trace or doesn't fit the workload."""
    schedule = Schedule(module, debug_mask="none")
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
    except Exception as error:
        raise LoweringError(_last_line(error)) from error
    return schedule.mod


class _Lowering:
    """One walk over a sketch's stages: inline, tile, place, then annotate."""

    def __init__(self, schedule: Schedule, program: Program, device: Device) -> None:
        self.schedule = schedule
        self.program = program
        self.sketch = program.sketch
        self.device = device
        self.levels: dict[str, list[list[Any]]] = {}

    def run(self) -> None:
        for stage in self.sketch.stages:
            if self._is_inlined(stage):
                self.schedule.compute_inline(self._block(stage.node))
        for stage in self.sketch.tiled:
            self._tile(stage)
        for stage in reversed(self.sketch.stages):
            if stage.placement is Placement.MOVABLE:
                self._move(stage)
        for stage in self.sketch.stages:
            if stage.placement in (Placement.NEST, Placement.MOVABLE) and not self._is_placed(stage):
                self._annotate_nest(stage)
        for stage in self.sketch.tiled:
            self._annotate_tile(stage)

    def _block(self, name: str) -> Any:
        return self.schedule.get_sblock(name)

    def _is_inlined(self, stage: Stage) -> bool:
        if stage.placement is Placement.MOVABLE:
            return self.program.choice(stage.node, "location") == "inline"
        return stage.placement is Placement.INLINE

    def _is_placed(self, stage: Stage) -> bool:
        """Whether a movable stage was inlined or computed inside another nest."""
        is_movable = stage.placement is Placement.MOVABLE
        return is_movable and self.program.choice(stage.node, "location") != "root"

    def _tile(self, stage: Stage) -> None:
        """Splits every axis, orders the parts by level and attaches the epilogue."""
        node = self.sketch.dag.node[stage.node]
        block = self._block(stage.node)
        epilogue = self._block(stage.epilogue) if stage.epilogue else None
        if stage.cache_write:
            epilogue = self.schedule.cache_write(block, 0, "global")
        parts = [
            self._split(loop, self.program.factors(node.name, axis))
            for axis, loop in enumerate(self.schedule.get_loops(block))
        ]
        levels = _by_level(stage.structure, node, parts)
        _put_last(levels[-1], parts, node.vector_axis)
        self.schedule.reorder(*(loop for level in levels for loop in level))
        levels[0] = [self.schedule.fuse(*levels[0])]
        self.levels[stage.node] = levels
        if stage.epilogue_level:
            target = levels[stage.epilogue_level - 1][-1]
            self.schedule.reverse_compute_at(epilogue, target, preserve_unit_loops=True)
            self._vectorize_innermost(epilogue)

    def _split(self, loop: Any, factors: Sequence[int]) -> list[Any]:
        return list(self.schedule.split(loop, [int(factor) for factor in factors]))

    def _move(self, stage: Stage) -> None:
        location = self.program.choice(stage.node, "location")
        host = self.sketch.host(stage)
        if host is None or not str(location).isdigit():
            return
        block = self._block(stage.node)
        target = self.levels[host.node][int(location) - 1][-1]
        self.schedule.compute_at(block, target, preserve_unit_loops=True)
        self._vectorize_innermost(block)

    def _annotate_nest(self, stage: Stage) -> None:
        """A nest of its own: loops fused and parallel, a vector innermost. A sum of everything is serial."""
        block = self._block(stage.node)
        node = self.sketch.dag.node[stage.node]
        if not self.schedule.get_loops(block) or node.reduction:
            return
        self._vectorize_innermost(block)
        outer = self.schedule.get_loops(block)
        kinds = [self._kind(loop) for loop in outer]
        serial = outer[: len(outer) - kinds.count("vectorized")]
        if serial:
            self._parallel(self.schedule.fuse(*serial), node)

    def _parallel(self, loop: Any, node: Node) -> None:
        if node.iterations >= MIN_PARALLEL_ITERATIONS:
            self.schedule.parallel(loop)

    def _vectorize_innermost(self, block: Any) -> None:
        """Splits off the longest vector, a power of two, that divides the innermost loop."""
        loop = self.schedule.get_loops(block)[-1]
        extent = self._extent(loop)
        lanes = self.device.vector_bytes // self._item_bytes(block)
        while lanes > 1 and extent % lanes:
            lanes //= 2
        if lanes > 1:
            inner = self.schedule.split(loop, [None, lanes])[-1]
            self.schedule.vectorize(inner)

    def _vectorize_tile(self, loop: Any) -> list[Any]:
        """Vectorizes the innermost factor, or its power of two, and returns the loop that is left."""
        extent = self._extent(loop)
        length = extent & -extent
        if length == extent:
            if length > 1:
                self.schedule.vectorize(loop)
            return []
        outer, inner = self.schedule.split(loop, [None, length])
        if length > 1:
            self.schedule.vectorize(inner)
        return [outer]

    def _extent(self, loop: Any) -> int:
        return int(self.schedule.get(loop).extent)

    def _item_bytes(self, block: Any) -> int:
        buffer = self.schedule.get(block).writes[0].source
        return max(tvm.DataType(str(buffer.ty.dtype)).bits // 8, 1)

    def _kind(self, loop: Any) -> str:
        return "vectorized" if self.schedule.get(loop).kind == tvm.tirx.ForKind.VECTORIZED else "serial"

    def _annotate_tile(self, stage: Stage) -> None:
        """Parallel outside, the register tile vectorized and unrolled, the accumulators set ahead."""
        node = self.sketch.dag.node[stage.node]
        levels = self.levels[stage.node]
        outermost = levels[0][0]
        self._parallel(outermost, node)
        step = self.program.choice(stage.node, "unroll")
        if step:
            self.schedule.annotate(outermost, "pragma_auto_unroll_max_step", step)
            self.schedule.annotate(outermost, "pragma_unroll_explicit", 1)
        # The register tile is unrolled whatever the step says: only then do accumulators stay in registers.
        rows = levels[-1]
        if node.vector_axis is not None:
            rows = [*rows[:-1], *self._vectorize_tile(rows[-1])]
        for loop in rows:
            if self._extent(loop) > 1:
                self.schedule.unroll(loop)
        self.schedule.decompose_reduction(self._block(node.name), levels[stage.structure.index("R")][0])


def _by_level(structure: str, node: Node, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The loops of each tile level, in the order of the axes."""
    seen = {AxisKind.SPATIAL: 0, AxisKind.REDUCTION: 0}
    levels = []
    for letter in structure:
        kind = AxisKind(letter)
        levels.append([parts[i][seen[kind]] for i, axis in enumerate(node.axes) if axis.kind is kind])
        seen[kind] += 1
    return levels


def _put_last(level: list[Any], parts: Sequence[Sequence[Any]], axis: int | None) -> None:
    if axis is not None:
        loop = parts[axis][-1]
        level.remove(loop)
        level.append(loop)


def _plain(value: Any) -> Any:
    """TVM's containers as Python's, for json."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(item) for item in value]
    return value.value


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
