"""Programs become schedules: every decision of a program as TVM schedule primitives, kept as a trace."""

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
    """TVM refuses a program or a trace; the message is TVM's last line, which names the cause."""


def lower(module: tvm.IRModule, program: Program, device: Device) -> str:
    """The trace, as JSON text, that turns a workload into the program. Raises LoweringError."""
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
    """The workload under a trace. Raises LoweringError when it is no trace or doesn't fit the workload."""
    return replay(module, trace).mod


def replay(module: tvm.IRModule, trace: str) -> Schedule:
    """As `apply_trace`, the schedule: TVM makes none of a module whose loops were partitioned, because the
    parts' blocks share variables.

    Raises LoweringError, also for a trace that says more than how loops run (core.trace).
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
