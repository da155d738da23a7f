"""Lower programs to traces, and apply traces to workloads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import save_json
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace, _ffi_api

from compiler.lowering.cpu.loop_schedule import Beginning, LoopPrimitives, LoopSchedule, UnknownLoops, covers
from compiler.lowering.primitives import Primitives
from compiler.lowering.program import inlined_nodes, lower_program
from compiler.lowering.tensor_intrinsics import register_used
from compiler.object_graph import Named, ObjectGraph
from compiler.reading.subgraph import UnsupportedSubgraph, named_buffers
from compiler.vocabulary import describe, scheduled
from core.device import Device
from core.trace import parse_trace
from search.programs.program import Program

# The empty trace, which leaves a workload unscheduled.
UNSCHEDULED = "[[],[]]"

# A schedule whose primitives don't compare Python types with their annotations. TVM spends a third of a
# lowering on that.
QuickSchedule: type[Schedule] = type(
    "QuickSchedule",
    (Schedule,),
    {name: found.__wrapped__ for name, found in vars(Schedule).items() if hasattr(found, "__wrapped__")},
)

# The instructions whose second operand is an index map.
INDEX_MAPPED = ("TransformLayout", "ReindexCacheRead", "ReindexCacheWrite")
# Writes a graph of TVM's objects as JSON text.
_graph_of = tvm_ffi.get_global_func("ffi.ToJSONGraphString")


class LoweringError(Exception):
    """TVM can't apply a program or a trace. The message is the last line of TVM's message, which names the
    cause.
    """


def lower(module: tvm.IRModule, program: Program, device: Device) -> str:
    """Return the trace, as JSON text, that turns a workload into the program. Raises LoweringError.

    `lower_program` shows its effect on loops.
    """
    is_cpu = device.gpu is None  # GPUs' programs copy operands before they inline nodes
    inlined = inlined_nodes(program) if is_cpu else ()
    try:
        if is_cpu and covers(program):
            with contextlib.suppress(UnknownLoops):
                return record_loops(module, inlined, program, device)
        schedule = Schedule.__new__(QuickSchedule)
        schedule.__move_handle_from__(_begin(module, inlined).copy())
        buffers = _buffers(module)
        primitives = Primitives(schedule, device.vector_bytes, buffers)
        lower_program(primitives, program, device, buffers, is_inlined=is_cpu)
        return trace_of(schedule)
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise LoweringError(_last_line(error)) from error


def record_loops(module: tvm.IRModule, inlined: tuple[str, ...], program: Program, device: Device) -> str:
    """Return the trace of a CPU's program without TVM's schedule. Raises UnknownLoops."""
    beginning = _read_beginning(module, inlined)
    if beginning is None:
        raise UnknownLoops("the workload's blocks")
    schedule, buffers = LoopSchedule(beginning), _buffers(module)
    primitives = LoopPrimitives(schedule, device.vector_bytes, buffers)
    lower_program(primitives, program, device, buffers, is_inlined=True)
    return schedule.trace()


@lru_cache(maxsize=256)
def _read_beginning(module: tvm.IRModule, inlined: tuple[str, ...]) -> Beginning | None:
    """Read a workload that has inlined these nodes; None if its loops aren't known."""
    if any(buffer.name != name for name, buffer in _buffers(module).items()):
        return None
    try:
        schedule = _begin(module, inlined).copy()
        return Beginning.of(schedule, trace_of(schedule))
    except (UnknownLoops, UnsupportedSubgraph):
        return None


@lru_cache(maxsize=256)
def _begin(module: tvm.IRModule, inlined: tuple[str, ...]) -> Schedule:
    """Return a schedule of a workload that has inlined these nodes. Programs that inline the same nodes copy
    it, because inlining takes a fifth of a lowering."""
    schedule = QuickSchedule(module, debug_mask="none")
    for node in inlined:
        schedule.compute_inline(schedule.get_sblock(node))
    return schedule


@lru_cache(maxsize=256)
def _buffers(module: tvm.IRModule) -> Mapping[str, Any]:
    return named_buffers(module["main"])


def trace_of(schedule: Schedule) -> str:
    """Return the steps of a schedule as JSON text."""
    steps = _ffi_api.TraceAsJSON(schedule.trace, False)
    # `Trace.as_json` calls C++ for every element, which takes three times as long.
    graph = json.loads(_graph_of(steps, None))
    values: list[Any] = []
    for node in graph["nodes"]:  # a node's children come before it
        kind, data = node["type"], node.get("data")
        if kind == "ffi.Array":
            values.append([values[at] for at in data])
        elif kind == "ffi.Map":
            values.append({values[key]: values[at] for key, at in zip(data[::2], data[1::2], strict=True)})
        elif kind == "ir.IntImm":
            values.append(values[data["value"]])
        elif kind == "ir.FloatImm":
            values.append(data["value"])
        else:
            values.append(data)
    trace = values[graph["root_index"]]
    for number, (name, operands, *_) in enumerate(trace[0]):
        if name in INDEX_MAPPED:  # an index map is a text within the trace
            operands[1] = save_json(steps[0][number][1][1])
    return json.dumps(trace, separators=(",", ":"))


def apply_trace(module: tvm.IRModule, trace: str) -> tvm.IRModule:
    """Apply a trace to a workload and return the scheduled module. An empty trace returns the workload
    unchanged, even if TVM can't schedule it. Raises LoweringError for a text that isn't a trace, and for
    another workload's trace.
    """
    return module if trace == UNSCHEDULED else replay(module, trace).mod


def replay(module: tvm.IRModule, trace: str) -> Schedule:
    """Apply a trace to a workload and return the schedule. TVM can't create a schedule from the scheduled
    module, because the blocks of partitioned loops share variables.

        [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]], ["Parallel", ...]]
    ->
        for i in T.parallel(64): for j in range(64): C[i, j] = ...

    Raises LoweringError if the trace doesn't apply, if it does more than schedule loops (core.trace), or if
    it adds operations to the workload that no schedule needs (compiler.vocabulary).
    """
    schedule = Schedule(module, debug_mask="none")
    try:
        steps = parse_trace(trace)
        intrinsics = register_used(steps)
        Trace.apply_json_to_schedule(steps, schedule)
        vocabulary = scheduled(_parts(module), map(ObjectGraph.of, intrinsics))
        foreign = vocabulary.foreign(ObjectGraph.of(schedule.mod))
    except Exception as error:
        raise LoweringError(_last_line(error)) from error
    if foreign:
        raise LoweringError(f"the schedule adds what no schedule needs: {describe(foreign)}")
    return schedule


@lru_cache(maxsize=64)
def _parts(module: tvm.IRModule) -> frozenset[Named]:
    return ObjectGraph.of(module).named()


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
