"""Lower programs to traces, and apply traces to workloads."""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from compiler.lowering.cpu.program import lower_cpu
from compiler.lowering.gpu.program import lower_gpu
from compiler.lowering.tensor_intrinsics import register_used
from compiler.reading.subgraph import named_buffers
from core.device import Device
from core.trace import parse_trace
from search.programs.program import Program


class LoweringError(Exception):
    """TVM refuses a program or a trace. The message is the last line of TVM's, which names the cause."""


def lower(module: tvm.IRModule, program: Program, device: Device) -> str:
    """Return the trace, as JSON text, that turns a workload into the program. Raises LoweringError.

    `lower_cpu` and `lower_gpu` show what it does to loops.
    """
    schedule = Schedule(module, debug_mask="none")
    try:
        buffers = named_buffers(module["main"])
        if device.gpu is not None:
            lower_gpu(schedule, program, device.gpu, buffers)
        else:
            lower_cpu(schedule, program, device, buffers)
        return json.dumps(_plain(schedule.trace.as_json()), separators=(",", ":"))
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise LoweringError(_last_line(error)) from error


def apply_trace(module: tvm.IRModule, trace: str) -> tvm.IRModule:
    """Schedule a workload as a trace says. Raises LoweringError for a text that isn't a trace, and for a
    trace of another workload."""
    return replay(module, trace).mod


def replay(module: tvm.IRModule, trace: str) -> Schedule:
    """Return the schedule in place of the module: TVM can't create one from a module whose loops are
    partitioned, because the blocks of the parts share variables.

        [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]], ["Parallel", ...]]
    ->
        for i in T.parallel(64): for j in range(64): C[i, j] = ...

    Raises LoweringError, also for a trace that does more than schedule loops (core.trace).
    """
    schedule = Schedule(module, debug_mask="none")
    try:
        steps = parse_trace(trace)
        register_used(steps)
        Trace.apply_json_to_schedule(steps, schedule)
    except Exception as error:
        raise LoweringError(_last_line(error)) from error
    return schedule


def _plain(value: Any) -> Any:
    """Convert TVM's containers to Python's, for json."""
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
