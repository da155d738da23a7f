"""Traces of MetaSchedule's own search are accepted, and replay to what MetaSchedule made."""

from __future__ import annotations

import json
from itertools import product

import pytest
import tvm
import tvm_ffi
from tvm.s_tir.meta_schedule import TuneContext

from compiler.lowering.trace import replay, trace_of
from compiler.target import parse_target
from core.trace import parse_trace, write_trace
from tests.workloads import WORKLOADS, typed_matmul

CPU = {"kind": "llvm", "num-cores": 4, "mcpu": "cascadelake"}
GPU = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "max_shared_memory_per_block": 49152,
    "host": {"kind": "llvm"},
}
MODULES = {
    **{name: WORKLOADS[name]() for name in ("conv2d", "matmul", "softmax", "depthwise", "argmax")},
    "float16": typed_matmul("float16", "float16"),
}


def samples(module: tvm.IRModule, target: str, count: int) -> list[tvm.s_tir.Schedule]:
    context = TuneContext(
        module,
        target=parse_target(target),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        rand_state=1,
        num_threads=1,
    )
    context.pre_tuning(1 << 30, count)
    return [one.sch for one in context.generate_measure_candidates() or ()]


@pytest.mark.slow_lane
@pytest.mark.timeout(900)
def test_traces_of_metaschedule_come_back_and_replay() -> None:
    """One test, because a process that uses MetaSchedule first imports TVM's intrinsics for ten seconds."""
    for target, (name, module) in product((CPU, GPU), MODULES.items()):
        found = samples(module, json.dumps(target), 4)
        assert found, (name, target)
        for schedule in found:
            trace = trace_of(schedule)
            assert write_trace(parse_trace(trace)) == trace
            assert tvm_ffi.structural_equal(replay(module, trace).mod, schedule.mod), (name, target)
