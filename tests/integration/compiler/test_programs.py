"""Programs of all sketches of all workloads become schedules that compute right results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from compiler.lowering.primitives import Primitives
from compiler.lowering.program import lower_program
from compiler.lowering.trace import LoweringError, apply_trace, lower, trace_of
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import named_buffers, read_dag
from compiler.target import detect_device
from compiler.workload import from_json, to_json, workload_hash
from core.measurement import Measurement, Outcome
from search.programs.annotate import sample
from search.programs.program import Population, Program
from search.rules.space import generate
from tests.marks import slow_lane_except
from tests.unit.search.programs import program_of, sketch_of
from tests.workloads import WORKLOADS, matmul

DEVICE = detect_device()
MANY = 5
BUILDER = LocalBuilder(DEVICE.target)


def _programs(module: tvm.IRModule, per_sketch: int, seed: int) -> Iterator[Program]:
    rng = np.random.default_rng(seed)
    for sketch in generate(read_dag(module), DEVICE):
        population = _sampled(sample(sketch, 256, rng), per_sketch, rng)
        yield from (population.program(row) for row in range(len(population)))


def _sampled(population: Population, count: int, rng: np.random.Generator) -> Population:
    return population.take(rng.permutation(len(population))[:count])


@cache
def _runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


def _measure(module: tvm.IRModule, trace: str) -> Measurement:
    text = to_json(module)
    built = BUILDER.build(text, trace)
    # Far slower than the best known latency, so that none is timed for long.
    return _runner().run(built, text, (), best_s=1e-12) if isinstance(built, BuiltKernel) else built


def _check(name: str, programs: list[Program]) -> None:
    module = WORKLOADS[name]()
    for program in programs:
        measurement = _measure(module, lower(module, program, DEVICE))
        assert measurement.outcome is Outcome.OK, f"{measurement.error}\n{program}"


@pytest.mark.parametrize("name", ["conv2d", "matmul", "softmax"])
def test_programs_compute_the_right_result(name: str) -> None:
    programs = list(_programs(WORKLOADS[name](), per_sketch=2, seed=1))
    rng = np.random.default_rng(0)
    _check(name, [programs[i] for i in rng.permutation(len(programs))[:3]])


@pytest.mark.slow_lane(seconds=1)
@pytest.mark.parametrize("name", WORKLOADS)
def test_many_programs_compute_the_right_result(name: str) -> None:
    programs = list(_programs(WORKLOADS[name](), per_sketch=3, seed=2))
    rng = np.random.default_rng(0)
    _check(name, [programs[i] for i in rng.permutation(len(programs))[:MANY]])


@pytest.mark.parametrize("name", slow_lane_except(WORKLOADS, "conv2d", "matmul", "softmax", seconds=0.4))
def test_every_program_lowers_to_a_trace_that_replays(name: str) -> None:
    module = WORKLOADS[name]()
    copy = from_json(to_json(module))
    for program in _programs(module, per_sketch=2, seed=3):
        trace = lower(module, program, DEVICE)
        replayed = apply_trace(module, trace)
        assert tvm_ffi.structural_equal(replayed, apply_trace(copy, trace))
        assert lower(copy, program, DEVICE) == trace


@pytest.mark.parametrize("name", slow_lane_except(WORKLOADS, "conv2d", "matmul", "softmax", seconds=0.4))
def test_a_trace_is_what_the_primitives_write(name: str) -> None:
    """Programs share the schedule that has inlined their nodes, and the trace isn't converted by TVM."""
    module = WORKLOADS[name]()
    for program in _programs(module, per_sketch=3, seed=6):
        schedule = Schedule(module, debug_mask="none")
        buffers = named_buffers(module["main"])
        lower_program(Primitives(schedule, DEVICE.vector_bytes, buffers), program, DEVICE, buffers)
        assert json.loads(lower(module, program, DEVICE)) == _plain(schedule.trace.as_json())


def _plain(value: Any) -> Any:
    """Convert TVM's numbers and containers to Python's."""
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["conv2d", "softmax", "matmul"])
def test_different_programs_are_different_schedules(name: str) -> None:
    module = WORKLOADS[name]()
    programs = list(_programs(module, per_sketch=8, seed=4))
    traces = {lower(module, program, DEVICE) for program in programs}
    assert len(traces) == len(programs)


def test_lowering_does_not_change_the_workload() -> None:
    module = WORKLOADS["conv2d"]()
    before = workload_hash(module)
    for program in _programs(module, per_sketch=1, seed=5):
        apply_trace(module, lower(module, program, DEVICE))
    assert workload_hash(module) == before


REPLAY = """
import json, sys
from compiler.lowering.trace import apply_trace
from compiler.workload import from_json, workload_hash
for text, traces in json.load(sys.stdin):
    for trace in traces:
        print(workload_hash(apply_trace(from_json(text), trace)))
"""


@pytest.mark.slow_lane(seconds=8)
def test_another_process_replays_to_the_same_modules() -> None:
    work, expected = [], []
    for make in WORKLOADS.values():
        module = make()
        traces = [lower(module, program, DEVICE) for program in _programs(module, per_sketch=1, seed=6)]
        work.append((to_json(module), traces))
        expected += [workload_hash(apply_trace(module, trace)) for trace in traces]
    told = subprocess.run(
        [sys.executable, "-c", REPLAY],
        input=json.dumps(work),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == expected


@pytest.mark.parametrize(
    ("columns", "factors"),
    [(93, (1, 1, 2, 48)), (53, (1, 1, 2, 48)), (52, (1, 1, 2, 32)), (141, (1, 1, 3, 48))],
)
def test_a_partial_tile_of_several_vectors_is_peeled(columns: int, factors: tuple[int, ...]) -> None:
    """What is left of 48 columns may be longer or shorter than one of its vectors."""
    module = matmul(4, columns, 8)
    dag = read_dag(module)
    sketch = sketch_of(dag, "tile T_matmul SSRSRS", DEVICE)
    program = program_of(sketch, T_matmul={"ax1": factors})
    measurement = _measure(module, lower(module, program, DEVICE))
    assert measurement.outcome is Outcome.OK, measurement.error


def test_vectors_of_copies_follow_the_device() -> None:
    module = WORKLOADS["matmul"]()
    program = next(p for p in _programs(module, per_sketch=1, seed=0) if p.sketch.tiled[0].cache_write)
    lanes = {}
    for vector_bytes in (8, 16):
        trace = lower(module, program, replace(DEVICE, vector_bytes=vector_bytes))
        lanes[vector_bytes] = set(_vectors_of_copy(apply_trace(module, trace)))
    assert lanes == {8: {2}, 16: {4}}


def _vectors_of_copy(module: tvm.IRModule) -> list[int]:
    """Return the extents of the vectorized loops around the block that copies the result out of its cache."""
    found: list[int] = []

    def collect(loop: tvm.tirx.For) -> None:
        name = loop.body.block.name_hint if hasattr(loop.body, "block") else ""
        if loop.kind == tvm.tirx.ForKind.VECTORIZED and name.endswith("_global"):
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(module["main"].body, [(tvm.tirx.For, collect)])
    return found


@pytest.mark.parametrize(
    "trace", ["", "no trace", "[]", "{}", "null", '[["SplitThatNobodyKnows", [], [], []]]']
)
def test_a_text_that_is_not_a_trace_is_refused(trace: str) -> None:
    with pytest.raises(LoweringError):
        apply_trace(WORKLOADS["matmul"](), trace)


def test_a_trace_that_carries_code_is_refused() -> None:
    """TVM would replay it, and link the code in the pragma into the library."""
    workload = WORKLOADS["matmul"]()
    schedule = Schedule(workload)
    block = next(iter(schedule.get_child_blocks(schedule.get_sblock("root"))))
    code = "define void @smuggled() { ret void }"
    schedule.annotate(schedule.get_loops(block)[0], "pragma_import_llvm", code)
    assert "pragma_import_llvm" in schedule.mod.script()
    with pytest.raises(LoweringError, match="pragma_import_llvm"):
        apply_trace(workload, trace_of(schedule))


def test_a_trace_of_another_workload_is_refused() -> None:
    other = WORKLOADS["conv2d"]()
    program = next(_programs(other, per_sketch=1, seed=0))
    with pytest.raises(LoweringError, match="Cannot find a block"):
        apply_trace(WORKLOADS["matmul"](), lower(other, program, DEVICE))


def test_a_program_of_another_workload_is_refused() -> None:
    program = next(_programs(WORKLOADS["conv2d"](), per_sketch=1, seed=0))
    with pytest.raises(LoweringError):
        lower(WORKLOADS["matmul"](), program, DEVICE)
