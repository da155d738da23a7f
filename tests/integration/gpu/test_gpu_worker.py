"""A worker's child on the stand-in for a GPU, with TVM's own CUDA runtime and NVIDIA's nvcc."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import te

from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.lowering.trace import lower
from compiler.reading.subgraph import read_dag
from compiler.workload import from_json, to_json
from core.device import Device
from core.lease import Candidate, Limits
from core.measurement import Measurement, Outcome
from examples.quantization import quantize
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.cuda_emulator.driver import StandIn
from tests.marks import slow_lane_except
from tests.onnx_models import Builder
from tests.suite import cases
from worker.agent.build_ahead import build_ahead
from worker.runner.executor import GPU_RUNNER, ChildConfig, Executor
from worker.runner.interface import BuildRequest
from worker.runner.start_failure import ChildStartError

pytestmark = pytest.mark.slow
CASE = cases("GMM")[0]
LIMITS = Limits(build_timeout_s=120.0, run_timeout_s=60.0)
HASTY = Limits(build_timeout_s=120.0, run_timeout_s=1.0)

Work = Callable[[Executor, Device], Awaitable[None]]


def with_gpu(stand_in: StandIn, work: Work) -> None:
    async def run() -> None:
        executor = Executor(ChildConfig(1, GPU_RUNNER), {**os.environ, **stand_in.environment})
        try:
            await work(executor, await executor.start())
        finally:
            await executor.close()

    asyncio.run(run())


def candidate(device: Device) -> BuildRequest:
    """A program of the first sketch, which the search for GPUs has made."""
    module = CASE.module()
    population = sample(generate(read_dag(module), device)[0], 64, np.random.default_rng(0))
    return BuildRequest(device.target, to_json(module), lower(module, population.program(0), device), ())


def test_a_gpu_is_found_measured_and_calibrated(stand_in: StandIn) -> None:
    async def work(executor: Executor, device: Device) -> None:
        assert device.gpu is not None
        assert (device.gpu.capability, device.mcpu, device.cores) == (80, "sm_80", 4)
        profile = await executor.calibrate(1 << 30)
        assert profile is not None
        assert not {"launch_s", "memory_rate_all", "l2_rate", "loads", "multiply_adds"} & set(profile.derived)
        assert {
            "float32",
            "float16",
            "tensorfloat16",
            "tensorbfloat16",
            "tensorint8",
            "tensorfloat32",
        } <= set(profile.multiply_adds)
        assert profile.multiply_adds["tensorint8"] != profile.multiply_adds["tensorfloat16"] / 2, "assumed"
        assert profile.multiply_adds["tensorbfloat16"] != profile.multiply_adds["tensorfloat16"], "assumed"
        assert profile.multiply_adds["tensorfloat32"] != profile.multiply_adds["tensorfloat16"], "assumed"
        measured = await executor.measure(candidate(device), LIMITS)
        assert measured.outcome is Outcome.OK, measured.error
        assert not measured.error

    stand_in.behave("throttled 1 64")  # which has passed when it is measured again
    with_gpu(stand_in, work)


@pytest.mark.parametrize("model_bytes", slow_lane_except([0, 1 << 20], 1 << 20))
def test_constants_are_right_in_every_copy_that_a_graph_reads(stand_in: StandIn, model_bytes: int) -> None:
    # So small that a graph launches it several times even here.
    data, scale, shift = (te.placeholder((64,), name=name) for name in ("data", "scale", "shift"))
    moved = te.compute(data.shape, lambda i: data[i] * scale[i] + shift[i], name="moved")
    module = tvm.IRModule({"main": te.create_prim_func([data, scale, shift, moved])})

    async def work(executor: Executor, device: Device) -> None:
        population = sample(generate(read_dag(module), device)[0], 8, np.random.default_rng(0))
        trace = lower(module, population.program(0), device)
        request = BuildRequest(device.target, to_json(module), trace, (1, 2), model_bytes=model_bytes)
        measured = await executor.measure(request, LIMITS)
        assert measured.outcome is Outcome.OK, measured.error

    with_gpu(stand_in, work)


@pytest.mark.slow_lane(seconds=8)
def test_products_of_bytes_on_tensor_cores_are_right(stand_in: StandIn) -> None:
    builder = Builder()
    hidden = builder.op("Relu", builder.op("Gemm", "x", builder.weight(32, 24), builder.weight(24)))
    model = quantize(onnx.load_from_string(builder.model({"x": [40, 32]}, {hidden: [40, 24]})))

    async def work(executor: Executor, device: Device) -> None:
        tasks = extract_tasks(fuse(read_onnx(model.SerializeToString(), {}), device.target))
        [task] = (task for task in tasks if task.name.startswith("matmul"))
        workload = from_json(task.module_json)
        sketch = next(s for s in generate(read_dag(workload), device) if s.of_kind(StageKind.TENSOR))
        population = sample(sketch, 64, np.random.default_rng(0))
        for row in (0, 20):
            trace = lower(workload, population.program(row), device)
            assert "wmma_sync_16x16x16_s8s8s32" in trace
            request = BuildRequest(device.target, task.module_json, trace, task.constants)
            measured = await executor.measure(request, LIMITS)
            assert measured.outcome is Outcome.OK, measured.error

    with_gpu(stand_in, work)


@pytest.mark.slow_lane(seconds=8)
def test_a_measurement_with_clocks_held_back_is_marked(stand_in: StandIn) -> None:
    async def work(executor: Executor, device: Device) -> None:
        measured = await executor.measure(candidate(device), LIMITS)
        assert measured.outcome is Outcome.OK
        assert measured.error == "the GPU's clocks were held back: the hardware is too hot"

    stand_in.behave("throttled 99 64")
    with_gpu(stand_in, work)


# The self-check is the first launch of a child, and allocates twice; the candidate comes second.
@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        ("launch 2 700", Outcome.ILLEGAL_ACCESS),
        pytest.param("launch 2 719", Outcome.LAUNCH_ERROR, marks=pytest.mark.slow_lane),
        pytest.param("launch 2 hang", Outcome.RUN_TIMEOUT, marks=pytest.mark.slow_lane),
        ("alloc 3 2", Outcome.OUT_OF_MEMORY),
    ],
)
def test_a_gpu_failure_has_its_outcome_and_replaces_the_child(
    stand_in: StandIn, behaviour: str, outcome: Outcome
) -> None:
    async def work(executor: Executor, device: Device) -> None:
        failed = await executor.measure(candidate(device), HASTY if "hang" in behaviour else LIMITS)
        assert failed.outcome is outcome, failed.error
        assert executor.child_pid is None

    stand_in.behave(behaviour)
    with_gpu(stand_in, work)


@pytest.mark.slow_lane(seconds=8)
def test_a_lost_gpu_is_probed_before_anything_else_runs_on_it(stand_in: StandIn) -> None:
    async def work(executor: Executor, device: Device) -> None:
        request = candidate(device)
        assert (await executor.measure(request, LIMITS)).outcome is Outcome.DEVICE_LOST
        stand_in.behave("init 1 100")
        with pytest.raises(ChildStartError, match="CUDA shows no GPU here"):
            await executor.measure(request, LIMITS)
        stand_in.behave()
        assert (await executor.measure(request, LIMITS)).outcome is Outcome.OK

    stand_in.behave("launch 2 999")
    with_gpu(stand_in, work)


@pytest.mark.slow_lane(seconds=8)
def test_a_batch_built_ahead_is_verified(stand_in: StandIn, tmp_path: Path) -> None:
    async def work(executor: Executor, device: Device) -> None:
        request = candidate(device)
        broken = replace(request, trace="no trace")
        batches = [[(Candidate(1, "w", request.trace), request)], [(Candidate(2, "w", broken.trace), broken)]]
        builder = Executor(ChildConfig(1, builds=True, gpu=True), {**os.environ, **stand_in.environment})
        measured = []
        try:
            assert not (await builder.start()).gpu, "it needs none"
            assert device.platform in builder.builds_for
            async for [(_, built)] in build_ahead(builder, batches, LIMITS, tmp_path):
                done = built if isinstance(built, Measurement) else await executor.measure(built, LIMITS)
                measured.append(done)
        finally:
            await builder.close()
        assert [one.outcome for one in measured] == [Outcome.OK, Outcome.BUILD_ERROR]
        assert measured[0].resources is not None, "the compiler's report came along"

    with_gpu(stand_in, work)
