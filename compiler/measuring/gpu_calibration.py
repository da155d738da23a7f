"""Measure a GPU's `Profile` with small kernels, timed by CUDA events.

A kernel's number of steps grows until a call takes long enough to be timed. The fastest of a few calls
counts, because other work only adds time. Rates are per cycle of the device's nominal clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.codegen.pipeline import PIPELINE
from compiler.gpus import read_attributes
from compiler.measuring.calibration import CalibrationError
from compiler.measuring.cuda_graphs import CudaGraph
from compiler.measuring.microkernels import build_module, gpu_threads
from compiler.packaging.cuda import load_cuda
from compiler.target import parse_target
from core.device import Device
from core.job import TF32
from core.profile import FLOAT32, Profile, assumed_gpu_profile
from search.sketches.tensor_core import SIDE, TENSOR_SINCE, depth_of

_log = logging.getLogger(__name__)

# The least time of a call that events measure well: their resolution is half a microsecond.
LONG_S, CALLS = 1e-3, 5
MAX_STEPS = 1 << 20
# The launches of two graphs. The difference of their times is the time of the additional launches.
GRAPHS = (8, 72)
WARP, THREADS, BLOCKS_PER_CORE = 32, 256, 4
# The cache is read by one block on each multiprocessor. Two blocks there could read what the other has just
# loaded into the L1 cache.
CACHE_THREADS, CACHE_BLOCKS_PER_CORE = 1024, 1
# Independent sums of each thread, enough to hide the latency of arithmetic, and the multiply-adds of one
# step.
CHAINS, UNROLLED = 4, 8
TYPES = (FLOAT32, "float16", "int32", "float64")
# The operand types of tensor cores (float32 stands for TF32) and their accumulator types. Each multiprocessor
# runs WARPS, and each warp accumulates FRAGMENTS of SIDE x SIDE.
FMA = "fma "  # the prefix of multiply-adds among the measured quantities
SUMS = {"float16": FLOAT32, "bfloat16": FLOAT32, "int8": "int32", FLOAT32: FLOAT32}
WARPS, FRAGMENTS = 8, 4
# The working set for memory's rate, in multiples of the L2 cache, and the one for the L2 cache's rate, as a
# share of it. The cache of a large GPU has two halves, and data that all multiprocessors read are in both.
TIMES_CACHE, CACHE_SHARE = 8, 4
# The distance of dependent loads, in elements of 4 bytes: each load hits another DRAM row.
STRIDE = 4099 * 16
LANES = 4
# The most that a multiprocessor does in a cycle, up to compute capability 12: bytes from the L2 cache and
# from shared memory, and vectors of 16 bytes, loaded, in arithmetic and on tensor cores. Other work only
# makes rates lower, so a higher one means that the compiler left the work out.
L2_BYTES, SHARED_BYTES = 64, 128
HIGHEST = {"l2_rate": L2_BYTES, "l1_rate": SHARED_BYTES, "loads": SHARED_BYTES / 16}
HIGHEST_FMA, HIGHEST_TENSOR_FMA = 32, 512
# The shortest latencies in cycles, and the shortest launch in a graph in seconds.
LOWEST = {"latency_cycles": 2, "gather_cycles": 50, "launch_s": 1e-7}
# Clocks may be this much faster than the one that the device names.
OVERCLOCK = 1.1


def calibrate_gpu(device: Device, budget_s: float, clock: Callable[[], float] = time.perf_counter) -> Profile:
    """Measure the first visible CUDA GPU with code for the device's target.

    No measurement begins after `budget_s`. Fields that weren't measured are assumed, and listed in `derived`.
    Raises CalibrationError if no kernel compiles and runs.
    """
    measured: dict[str, Any] = {}
    end_s = clock() + budget_s
    try:
        calibration = _GpuCalibration(device)
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise CalibrationError(f"no kernel compiles: {str(error)[-500:]}") from error
    for name, quantity in calibration.quantities().items():
        if clock() >= end_s:
            _log.info("the calibration's %g s were over before it measured %s", budget_s, name)
            break
        try:
            found = quantity()
            check_possible(found, device.cores)
            measured |= found
        except Exception as error:
            if not measured:
                raise CalibrationError(f"no kernel runs: {str(error)[-500:]}") from error
            _log.warning("%s can't be calibrated: %s", name, str(error)[-500:])
    multiply_adds = {name[len(FMA) :]: measured.pop(name) for name in list(measured) if name.startswith(FMA)}
    return complete_gpu_profile(measured | {"multiply_adds": multiply_adds}, device)


def check_possible(measured: Mapping[str, float], cores: int) -> None:
    """Raise ValueError if a quantity is better than any GPU's."""
    highest = HIGHEST | {"memory_rate_all": L2_BYTES * cores}
    for name, value in measured.items():
        limit = highest.get(name, math.inf)
        if name.startswith(FMA):
            limit = HIGHEST_TENSOR_FMA if name.startswith(FMA + "tensor") else HIGHEST_FMA
        if value > limit * OVERCLOCK or value < LOWEST.get(name, 0.0) / OVERCLOCK:
            raise ValueError(f"{name} of {value:.4g} is impossible, so the kernel didn't do its work")


def complete_gpu_profile(measured: Mapping[str, Any], device: Device) -> Profile:
    """Return a profile of the measured fields. Assume the others, scaled by the measured ones."""
    base = assumed_gpu_profile(device.cores)
    multiply_adds = measured.get("multiply_adds", {})
    faster = multiply_adds.get(FLOAT32, base.multiply_adds[FLOAT32]) / base.multiply_adds[FLOAT32]
    assumed = {dtype: rate * faster for dtype, rate in base.multiply_adds.items()}
    values = {f.name: getattr(base, f.name) for f in fields(base)} | dict(measured)
    values["multiply_adds"] = assumed | dict(multiply_adds)
    if "memory_rate_all" in measured:
        values["memory_rate"] = measured["memory_rate_all"] / device.cores
    # All multiprocessors together read the cache at least as fast as memory.
    values["l2_rate"] = values["l3_rate"] = max(values["l2_rate"], values["memory_rate"])
    missing = {f.name for f in fields(base) if f.name not in measured and f.name != "derived"}
    if FLOAT32 not in multiply_adds:
        missing.add("multiply_adds")
    return Profile(**values | {"derived": tuple(sorted(missing))})


class _GpuCalibration:
    """Measures the quantities in order of importance."""

    def __init__(self, device: Device) -> None:
        """Raises ValueError when TVM doesn't know the device's target, and CudaError."""
        load_cuda()
        self._target = parse_target(device.target)
        self._device = tvm.cuda(0)
        self._cores = device.cores
        self._vector_bytes = device.vector_bytes
        self._cache_bytes = device.l2_bytes
        self._hertz = read_attributes()["kilohertz"] * 1e3
        self._call_s = 0.0
        assert device.gpu is not None, "a GPU is calibrated"
        capability = device.gpu.capability
        self._tensor_types = [
            dtype for dtype, sums in SUMS.items() if capability >= TENSOR_SINCE[operand_of(dtype), sums]
        ]
        blocks = self._cores * BLOCKS_PER_CORE
        self._streams = {
            "memory": Stream.of(TIMES_CACHE * self._cache_bytes, blocks, THREADS),
            "cache": Stream.of(
                self._cache_bytes // CACHE_SHARE, self._cores * CACHE_BLOCKS_PER_CORE, CACHE_THREADS
            ),
        }
        kernels = {
            "waits": partial(multiply_adds, FLOAT32, 1, WARP, 1),
            "shared": partial(shared_loads, blocks, THREADS),
            "chases": partial(chase, TIMES_CACHE * self._cache_bytes // 4),
            **{name: partial(stream, one) for name, one in self._streams.items()},
            **{dtype: partial(multiply_adds, dtype, blocks, THREADS, CHAINS) for dtype in TYPES},
            **{
                f"tensor{dtype}": partial(matrix_products, dtype, self._cores) for dtype in self._tensor_types
            },
        }
        # Compiling all of them together takes little longer than compiling one.
        functions = {
            name: build_module(body)["main"].with_attr("global_symbol", name)
            for name, body in kernels.items()
        }
        with self._target:
            self._library = tvm.compile(tvm.IRModule(functions), target=self._target, tir_pipeline=PIPELINE)

    def quantities(self) -> dict[str, Callable[[], dict[str, float]]]:
        return {
            "the launch of a kernel": self._launch,
            "the multiply-adds of float32": partial(self._multiply_adds, FLOAT32),
            "the memory's rate": partial(self._rate, "memory_rate_all", "memory", 1),
            "the cache's rate": partial(self._rate, "l2_rate", "cache", self._cores),
            "the loads from shared memory": self._shared_loads,
            "the latency of loads": self._load_latency,
            "the latency of multiply-adds": self._latency,
            **{
                f"the tensor cores' multiply-adds of {dtype}": partial(self._matrix_products, dtype)
                for dtype in self._tensor_types
            },
            **{f"the multiply-adds of {dtype}": partial(self._multiply_adds, dtype) for dtype in TYPES[1:]},
        }

    def _launch(self) -> dict[str, float]:
        """Measure the time that one more kernel adds to a CUDA graph, and the time of a separate call."""
        timer, arguments = self._timer("waits"), (self._full(2, FLOAT32), self._full(WARP, FLOAT32), 0)
        self._call_s = min(timer(*arguments))
        kernel = self._library["waits"]
        few_s, many_s = (self._graph_s(kernel, arguments, count) for count in GRAPHS)
        launch_s = max(many_s - few_s, 1e-9) / (GRAPHS[1] - GRAPHS[0])
        return {"launch_s": launch_s, "hertz": self._hertz}

    def _graph_s(self, kernel: Callable[..., object], arguments: Sequence[Any], launches: int) -> float:
        """Return the seconds of a graph's fastest launch among a few."""
        graph = CudaGraph(self._device, lambda: [kernel(*arguments) for _ in range(launches)])
        try:
            return min(graph.launch_s() for _ in range(CALLS + 1))
        finally:
            graph.close()

    def _multiply_adds(self, dtype: str) -> dict[str, float]:
        blocks = self._cores * BLOCKS_PER_CORE
        step_s = self._step_s(dtype, self._full(2, dtype), self._full(blocks * THREADS, dtype))
        per_cycle = blocks * THREADS * CHAINS * UNROLLED / step_s / self._hertz / self._cores
        return {f"fma {dtype}": per_cycle * np.dtype(dtype).itemsize / self._vector_bytes}

    def _matrix_products(self, dtype: str) -> dict[str, float]:
        products = self._cores * WARPS * FRAGMENTS
        sums = self._full(products * SIDE * SIDE, SUMS[dtype])
        step_s = self._step_s(f"tensor{dtype}", self._full(SIDE * SIDE, dtype), sums)
        per_cycle = products * SIDE * SIDE * depth_of(operand_of(dtype)) / step_s / self._hertz / self._cores
        return {f"fma tensor{dtype}": per_cycle * np.dtype(dtype).itemsize / self._vector_bytes}

    def _latency(self) -> dict[str, float]:
        step_s = self._step_s("waits", self._full(2, FLOAT32), self._full(WARP, FLOAT32))
        return {"latency_cycles": step_s * self._hertz / UNROLLED}

    def _rate(self, name: str, kernel: str, cores: int) -> dict[str, float]:
        """Measure the read rate of all multiprocessors in bytes per cycle, divided by `cores`."""
        streamed = self._streams[kernel]
        tensors = (self._full(vectors * LANES, "int32") for vectors in (streamed.vectors, streamed.everyone))
        read = streamed.everyone * UNROLLED * self._vector_bytes
        return {name: read / self._step_s(kernel, *tensors) / self._hertz / cores}

    def _shared_loads(self) -> dict[str, float]:
        everyone = self._cores * BLOCKS_PER_CORE * THREADS
        tensors = (self._full(count * LANES, "int32") for count in (THREADS, everyone))
        per_cycle = everyone * UNROLLED / self._step_s("shared", *tensors) / self._hertz / self._cores
        return {"loads": per_cycle, "l1_rate": per_cycle * self._vector_bytes}

    def _load_latency(self) -> dict[str, float]:
        count = TIMES_CACHE * self._cache_bytes // 4
        chain = (np.arange(count, dtype=np.int64) + STRIDE) % count
        source = tvm.runtime.tensor(chain.astype(np.int32), self._device)
        return {"gather_cycles": self._step_s("chases", source, self._full(1, "int32")) * self._hertz}

    def _timer(self, kernel: str) -> Callable[..., list[float]]:
        evaluator = self._library.mod.time_evaluator(kernel, self._device, number=1, repeat=CALLS)
        return lambda *arguments: list(evaluator(*arguments).results)

    def _step_s(self, kernel: str, *tensors: Any) -> float:
        """Return the seconds per step of a kernel whose last argument is the number of steps."""
        timer = self._timer(kernel)
        steps, taken_s = 1, min(timer(*tensors, 1))
        while taken_s < LONG_S and steps < MAX_STEPS:
            steps *= 4
            taken_s = min(timer(*tensors, steps))
        return max(taken_s - self._call_s, 1e-9) / steps

    def _full(self, count: int, dtype: str) -> Any:
        return tvm.runtime.tensor(np.full(count, 1).astype(dtype), self._device)


# The kernels


def multiply_adds(dtype: str, blocks: int, threads: int, chains: int) -> None:
    """Multiply and add in `chains` independent sums of every thread, UNROLLED times each step."""
    source = T.arg("source", T.buffer((2,), dtype))
    result = T.arg("result", T.buffer((blocks * threads,), dtype))
    steps = T.arg("steps", T.int64())
    with gpu_threads(blocks, threads) as number:
        sums = [T.alloc_buffer((1,), dtype, scope="local") for _ in range(chains)]
        for one in sums:
            T.buffer_store(one, result[number], [0])
        with T.serial(steps):
            for _ in range(UNROLLED):
                for one in sums:
                    T.buffer_store(one, one[0] * source[0] + source[1], [0])
        total = sums[0][0]
        for one in sums[1:]:
            total = total + one[0]
        T.buffer_store(result, total, [number])


@dataclass(frozen=True)
class Stream:
    """A grid whose blocks read neighbouring parts of a source of `vectors`, again and again."""

    vectors: int
    blocks: int
    threads: int

    @classmethod
    def of(cls, size: int, blocks: int, threads: int) -> Stream:
        """Return the stream over a source of about `size` bytes.

        The grid covers the source some times, but for one block. So a block reads another part in each turn,
        and finds none in its L1 cache.
        """
        turns = max(size // (4 * LANES * blocks * threads), 1)
        return cls((turns * blocks + 1) * threads, blocks, threads)

    @property
    def everyone(self) -> int:
        return self.blocks * self.threads


def stream(grid: Stream) -> None:
    """Read UNROLLED vectors in each thread and step. Neighbouring threads read neighbouring vectors.

    A place depends on the place before, or the compiler would load once for all steps.
    """
    source = T.arg("source", T.buffer((grid.vectors * LANES,), "int32"))
    result = T.arg("result", T.buffer((grid.everyone * LANES,), "int32"))
    steps = T.arg("steps", T.int64())
    with gpu_threads(grid.blocks, grid.threads) as number:
        place = T.alloc_buffer((1,), "int32", scope="local")
        total = T.alloc_buffer((LANES,), "int32", scope="local")
        every = T.ramp(0, 1, LANES)
        T.buffer_store(place, number, [0])
        T.buffer_store(total, T.broadcast(T.int32(0), LANES), [every])
        with T.serial(steps):
            for _ in range(UNROLLED):
                T.buffer_store(total, total[every] + source[T.ramp(place[0] * LANES, 1, LANES)], [every])
                T.buffer_store(place, place[0] + grid.everyone, [0])
                T.buffer_store(place, place[0] - T.Select(place[0] >= grid.vectors, grid.vectors, 0), [0])
        T.buffer_store(result, total[every], [T.ramp(number * LANES, 1, LANES)])


def shared_loads(blocks: int, threads: int) -> None:
    """Read vectors from a block's shared memory. Neighbouring threads read neighbouring vectors."""
    source = T.arg("source", T.buffer((threads * LANES,), "int32"))
    result = T.arg("result", T.buffer((blocks * threads * LANES,), "int32"))
    steps = T.arg("steps", T.int64())
    with (
        T.thread_binding(blocks, thread="blockIdx.x") as block,
        T.thread_binding(threads, thread="threadIdx.x") as thread,
    ):
        own = T.ramp(thread * LANES, 1, LANES)
        shared = T.alloc_buffer((threads * LANES,), "int32", scope="shared")
        total = T.alloc_buffer((LANES,), "int32", scope="local")
        every = T.ramp(0, 1, LANES)
        T.buffer_store(shared, source[own], [own])
        T.buffer_store(total, T.broadcast(T.int32(0), LANES), [every])
        with T.serial(steps) as step:
            for number in range(UNROLLED):
                # Each load reads another vector, or the compiler would load only once.
                place = T.truncmod(thread + step * UNROLLED + number, threads)
                loaded = shared[T.ramp(place * LANES, 1, LANES)]
                T.buffer_store(total, total[every] + loaded, [every])
        T.buffer_store(result, total[every], [T.ramp((block * threads + thread) * LANES, 1, LANES)])


def chase(count: int) -> None:
    """Chase pointers in one thread: each load returns the index of the next."""
    source = T.arg("source", T.buffer((count,), "int32"))
    result = T.arg("result", T.buffer((1,), "int32"))
    steps = T.arg("steps", T.int64())
    with gpu_threads(1, 1) as number:
        place = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(place, result[number], [0])
        with T.serial(steps):
            T.buffer_store(place, source[place[0]], [0])
        T.buffer_store(result, place[0], [number])


def operand_of(dtype: str) -> str:
    """Return the type to which tensor cores convert an operand type."""
    return TF32 if dtype == FLOAT32 else dtype


def matrix_products(dtype: str, blocks: int) -> None:
    """Multiply matrices with tensor cores. Each warp accumulates FRAGMENTS fragments."""
    source = T.arg("source", T.buffer((SIDE * SIDE,), dtype))
    result = T.arg("result", T.buffer((blocks * WARPS * FRAGMENTS * SIDE * SIDE,), SUMS[dtype]))
    steps = T.arg("steps", T.int64())
    shape = (SIDE, SIDE, depth_of(operand_of(dtype)))
    with (
        T.thread_binding(blocks, thread="blockIdx.x") as block,
        T.thread_binding(WARPS, thread="threadIdx.y") as warp,
        T.thread_binding(WARP, thread="threadIdx.x") as lane,
    ):
        shared = T.alloc_buffer((SIDE * SIDE,), dtype, scope="shared")
        own = warp * WARP + lane  # as many threads as elements
        T.buffer_store(shared, source[own], [own])
        factors = [
            T.alloc_buffer(sides, dtype, scope=f"wmma.matrix_{which}")
            for which, sides in (("a", (SIDE, shape[2])), ("b", (shape[2], SIDE)))
        ]
        sums = T.alloc_buffer((FRAGMENTS * SIDE, SIDE), SUMS[dtype], scope="wmma.accumulator")
        for factor in factors:
            loaded = shared.access_ptr("r")
            T.evaluate(T.tvm_load_matrix_sync(factor.data, *shape, 0, loaded, SIDE, "row_major"))
        for i in range(FRAGMENTS):
            T.evaluate(T.tvm_fill_fragment(sums.data, *shape, i, T.float32(0)))
        with T.serial(steps):
            for i in range(FRAGMENTS):
                a, b = factors
                T.evaluate(T.tvm_mma_sync(sums.data, i, a.data, 0, b.data, 0, sums.data, i))
        for i in range(FRAGMENTS):
            number = (block * WARPS + warp) * FRAGMENTS + i
            place = result.access_ptr("w", offset=number * SIDE * SIDE)
            T.evaluate(T.tvm_store_matrix_sync(sums.data, *shape, i, place, SIDE, "row_major"))
