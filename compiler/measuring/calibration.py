"""Measure a device's `Profile` with small kernels that TVM compiles for the device's target.

The kernels are compiled like candidates, so they measure the rates that LLVM's code reaches. They use only
the instruction sets of the target.

A chain of dependent integer operations counts cycles: each operation takes one cycle on all known processors.
Virtual machines seldom have performance counters, and the time stamp counter doesn't follow the core's clock.
The chain is timed right after every call of a kernel, so both run at the same clock rate. Wide vectors may
lower that rate, and it may change from call to call.

Other processes only add time, so the fastest of many short calls counts. The launch of threads and the L2
cache's rate are medians instead.
"""

from __future__ import annotations

import ctypes
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from compiler.codegen.pipeline import PIPELINE
from compiler.lowering.narrow_dot_products import add_narrow_products
from compiler.lowering.widened_dot_products import add_pairs
from compiler.measuring import microkernels
from compiler.measuring.cores import off_pool_cores
from compiler.measuring.microkernels import (
    CHAINED,
    GATHERED,
    ROW_COLUMNS,
    ROW_ELEMENTS,
    SIDE_BY_SIDE,
    SMALL_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    TILE_STEPS,
    WAITED,
)
from compiler.target import parse_target
from core.device import Device
from core.profile import DOT, FLOAT32, Profile, assumed_profile
from search.sketches.intrinsics import dot_product
from search.sketches.tile_products import (
    INSTRUCTIONS,
    MAX_LANES,
    MAX_ROWS,
    ROW_BYTES,
    TileProduct,
    neighbours_of,
)

_log = logging.getLogger(__name__)

BUDGET_S = 20.0
# In each round, a kernel is called for REPEAT_S. A call takes CALL_S, and a chain of CHAIN_S follows it.
ROUNDS, REPEAT_S, FAR_REPEAT_S, CALL_S, CHAIN_S = 4, 0.06, 0.15, 1e-3, 2e-4
LAUNCHES = 100
OTHER_TYPES = ("float16", "bfloat16", "int32", "float64")
# The working set for memory's rate has TIMES_L3 times the size of the L3 cache, between MIN_BYTES and
# MAX_BYTES, and at most FREE_SHARE of the free memory. Below MIN_TIMES_L3 times the L3 cache, memory isn't
# measured.
TIMES_L3, MIN_TIMES_L3 = 4.0, 1.5
MIN_BYTES, MAX_BYTES, FREE_SHARE = 64 << 20, 512 << 20, 0.25
MEMORY_INFO, MEMORY_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
# The levels of the memory hierarchy, from the nearest to the core to the farthest.
RATES = ("l1_rate", "l2_rate", "l3_rate", "memory_rate")

Call = Callable[[int], None]  # calls a kernel for a number of steps


class CalibrationError(RuntimeError):
    """No calibration kernel compiles and runs on this machine."""


def calibrate(
    device: Device, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
) -> Profile:
    """Measure this machine with code for the device's target, in about five seconds.

    No measurement begins after `budget_s`. Fields that weren't measured are derived or assumed, and listed in
    `derived`. `TVM_NUM_THREADS` in the environment must equal the device's cores. Raises ValueError for a
    target that TVM doesn't know, and CalibrationError.
    """
    return complete_profile(_Calibration(device, clock).measure(budget_s), device)


def complete_profile(measured: Mapping[str, Any], device: Device) -> Profile:
    """Return a profile of the measured fields. Derive or assume the others."""
    base = assumed_profile(device.arch, device.features, device.cores)
    values = {f.name: getattr(base, f.name) for f in fields(base)} | dict(measured)
    values |= _complete_rates(measured, base)
    if "memory_rate_all" not in measured:
        values["memory_rate_all"] *= values["memory_rate"] / base.memory_rate
    # All cores together load at least as fast as one core.
    values["memory_rate_all"] = max(values["memory_rate_all"], values["memory_rate"])
    if "l1_rate" in measured:
        loads = values["l1_rate"] / device.vector_bytes
        values["loads"] = max(measured.get("loads", 0.0), loads)
    missing = {f.name for f in fields(base) if f.name not in measured and f.name != "derived"}
    values["multiply_adds"] = dict(base.multiply_adds) | dict(measured.get("multiply_adds", {}))
    if FLOAT32 not in measured.get("multiply_adds", {}):
        missing.add("multiply_adds")
    return Profile(**values | {"derived": tuple(sorted(missing))})


def _complete_rates(measured: Mapping[str, Any], base: Profile) -> dict[str, float]:
    """Return the load rates of all caches and of memory.

    A rate that wasn't measured gets the same ratio to the nearest measured rate as in `base`, and at most the
    rate of a measured level closer to the core. Each level is at least as fast as the levels behind it,
    because noise only makes a level slower.
    """
    known = [i for i, name in enumerate(RATES) if name in measured]
    rates = [float(measured.get(name, getattr(base, name))) for name in RATES]
    for i, name in enumerate(RATES):
        if known and i not in known:
            nearest = min(known, key=lambda j: abs(i - j))
            scaled = getattr(base, name) * rates[nearest] / getattr(base, RATES[nearest])
            rates[i] = min([scaled, *(rates[j] for j in known if j < i)])
    for i in reversed(range(len(RATES) - 1)):
        rates[i] = max(rates[i], rates[i + 1])
    return dict(zip(RATES, rates, strict=True))


@dataclass
class _Microbenchmark:
    """A kernel that is called for `repeat_s` in each round. `record` takes the cycles of one step and the
    clock rate in hertz. With `all_cores`, the calling thread keeps off the pool's cores. `fastest_s` holds
    the seconds of each round's fastest call. The fastest of them counts; with `use_median`, the median.
    `chain_s` is the fastest call of the cycle chain.
    """

    call: Call
    record: Callable[[float, float], None]
    all_cores: bool = False
    repeat_s: float = REPEAT_S
    use_median: bool = False
    steps: int = 0
    fastest_s: list[float] = field(default_factory=list)
    chain_s: float = math.inf


class _Calibration:
    """Measures the quantities in order of importance, then all of them again, because a disturbance of the
    machine lasts longer than one round of a kernel.
    """

    def __init__(self, device: Device, clock: Callable[[], float]) -> None:
        """Raises ValueError when TVM doesn't know the device's target."""
        self._device = device
        self._clock = clock
        self._target = parse_target(device.target)
        # Three quarters of the vector registers hold accumulators, the others operands. So many chains hide
        # the latency.
        self._chains = assumed_profile(device.arch, device.features, device.cores).registers * 3 // 4
        self._measured: dict[str, Any] = {}
        self._launches_s: list[float] = []
        self._working_sets: dict[int, Any] = {}
        self._overhead_s = 0.0
        self._chain: Call = lambda steps: None
        self._chain_steps = 1

    def measure(self, budget_s: float) -> dict[str, Any]:
        """Return the fields that were measured within the budget. Raises CalibrationError."""
        end_s = self._clock() + budget_s
        if budget_s <= 0:
            return {}
        try:
            main = self._compile(microkernels.cycle_chain)
            self._chain = partial(main, _tensor(2, "uint32"), _tensor(1, "uint32"))
            self._overhead_s = min(self._time(self._chain, 0) for _ in range(20))
            self._chain_steps = self._steps_for(self._chain, CHAIN_S)
        except Exception as error:  # TVM's C++ code may raise any exception class
            problem = f"no kernel compiles and runs for {self._device.target}: {_tail(error)}"
            raise CalibrationError(problem) from error
        quantities: dict[str, Callable[[], Iterator[_Microbenchmark]]] = {
            "the multiply-adds of float32": partial(self._multiply_adds, FLOAT32),
            "the launch of threads": self._launch,
            "the rates of caches and memory": self._rates,
            "the latency of multiply-adds": self._latency,
            "gathers": self._gathers,
            "the multiply-adds of int8": self._byte_multiply_adds,
            "the dot products of bfloat16": self._bfloat16_dot_products,
            "AMX's products of tiles": self._tile_products,
            "the dot products of int16": self._widened_dot_products,
            "the dot products of narrow bytes": self._narrow_dot_products,
            "the memory's rate for all cores": self._shared_memory_rate,
            **{f"the multiply-adds of {dtype}": partial(self._multiply_adds, dtype) for dtype in OTHER_TYPES},
        }
        begun = []
        for name, benchmarks in quantities.items():
            if self._clock() >= end_s:
                _log.info("the calibration's %g s were over before it measured %s", budget_s, name)
                return self._measured
            try:
                for benchmark in benchmarks():
                    self._run_round(benchmark)
                    begun.append(benchmark)
            except Exception as error:
                _log.warning("%s can't be calibrated: %s", name, _tail(error))
        for benchmark in begun * (ROUNDS - 1):
            if self._clock() >= end_s:
                break
            self._run_round(benchmark)
        return self._measured

    # The quantities

    def _multiply_adds(self, dtype: str) -> Iterator[_Microbenchmark]:
        size = np.dtype(dtype).itemsize
        lanes = self._device.vector_bytes // size
        # TVM accumulates types narrower than 32 bits in 32 bits.
        chains = self._chains * min(size, 4) // 4
        step = microkernels.multiply_add
        main = self._compile(partial(microkernels.multiply_adds, dtype, dtype, lanes, lanes, chains, step))

        def record(cycles: float, hertz: float) -> None:
            self._record_multiply_adds(dtype, chains / cycles)
            if dtype == FLOAT32:
                self._measured["hertz"] = hertz

        yield _Microbenchmark(
            partial(main, _tensor(2 * lanes, dtype), _tensor(chains * lanes, dtype)), record
        )

    def _byte_multiply_adds(self) -> Iterator[_Microbenchmark]:
        """Measure the dot product of bytes if the device has one that the search uses."""
        size, lanes, chains = self._device.vector_bytes, self._device.vector_bytes // 4, self._chains
        known = microkernels.DOT_PRODUCTS
        dot_product = next((step for feature, step in known if feature in self._device.features), None)
        if dot_product is not None:
            kernel = partial(microkernels.multiply_adds, "int8", "int32", size, lanes, chains, dot_product)
            main = self._compile(kernel)
            call = partial(main, _tensor(2 * size, "int8"), _tensor(chains * lanes, "int32"))
            yield _Microbenchmark(
                call, lambda cycles, hertz: self._record_multiply_adds("int8", chains / cycles)
            )
            return
        main = self._compile(partial(microkernels.widened_multiply_adds, lanes))
        rows = _tensor(TILE_STEPS * TILE_ROWS, "int8")
        columns = _tensor(TILE_STEPS * TILE_COLUMNS * lanes, "int8")
        call = partial(main, rows, columns, _tensor(TILE_ROWS * TILE_COLUMNS * lanes, "int32"))
        # A vector of bytes has as many elements as four vectors of 32-bit integers.
        vectors = TILE_STEPS * TILE_ROWS * TILE_COLUMNS / 4
        yield _Microbenchmark(
            call, lambda cycles, hertz: self._record_multiply_adds("int8", vectors / cycles)
        )

    def _bfloat16_dot_products(self) -> Iterator[_Microbenchmark]:
        """Measure the dot product of bfloat16 if the device has one."""
        if "avx512_bf16" not in self._device.features:
            return
        lanes, chains, step = self._device.vector_bytes // 4, self._chains, microkernels.bfloat16_dot_product
        main = self._compile(
            partial(microkernels.multiply_adds, FLOAT32, FLOAT32, lanes, lanes, chains, step)
        )
        call = partial(main, _tensor(2 * lanes, FLOAT32), _tensor(chains * lanes, FLOAT32))
        yield _Microbenchmark(
            call, lambda cycles, hertz: self._record_multiply_adds(DOT + "bfloat16", chains / cycles)
        )

    def _tile_products(self) -> Iterator[_Microbenchmark]:
        """Measure AMX's products of bytes and of bfloat16, with the loads of their operands from the first
        cache.
        """
        for instruction in ("tdpbusd", "tdpbf16ps"):
            needed = INSTRUCTIONS[instruction].features
            if not set(needed) <= set(self._device.features):
                continue
            # Neighbours along the depth fill 32 bits.
            each = ROW_BYTES * neighbours_of(instruction) // 4
            product = TileProduct(MAX_ROWS, MAX_LANES, each, instruction)
            kernel = microkernels.build_module(partial(microkernels.tile_products, product))
            main = tvm.compile(kernel, target=self._target, tir_pipeline=PIPELINE)["main"]
            rows, columns = (_tensor(extent * ROW_BYTES, "int8") for extent in (MAX_ROWS, MAX_LANES))
            call = partial(main, rows, columns, _tensor(MAX_ROWS * MAX_LANES, "int32"))
            vectors = MAX_ROWS * MAX_LANES * ROW_BYTES / self._device.vector_bytes

            def record(cycles: float, _: float, rate: str = product.rate, vectors: float = vectors) -> None:
                self._record_multiply_adds(rate, vectors / cycles)

            yield _Microbenchmark(call, record)

    def _widened_dot_products(self) -> Iterator[_Microbenchmark]:
        """Measure the dot product of int16 if the search uses it on this device."""
        intrinsic = dot_product(self._device.features, self._device.vector_bytes // 4, "int8")
        if intrinsic is not None and intrinsic.rows == "int16":
            yield self._dot_products(intrinsic.rate, "int16", add_pairs)

    def _narrow_dot_products(self) -> Iterator[_Microbenchmark]:
        """Measure the dot product of narrow bytes if the search uses it on this device."""
        lanes = self._device.vector_bytes // 4
        intrinsic = dot_product(self._device.features, lanes, "int8", narrow=True)
        if intrinsic is not None and intrinsic.narrow:
            yield self._dot_products(intrinsic.rate, "int8", add_narrow_products)

    def _dot_products(self, rate: str, factor: str, step: Callable[[Any, Any, Any], Any]) -> _Microbenchmark:
        total_lanes = self._device.vector_bytes // 4
        lanes = self._device.vector_bytes // np.dtype(factor).itemsize
        main = self._compile(partial(microkernels.dot_products, factor, lanes, total_lanes, step))
        rows, columns = (_tensor(TILE_STEPS * count * lanes, factor) for count in (TILE_ROWS, TILE_COLUMNS))
        vectors = TILE_STEPS * TILE_ROWS * TILE_COLUMNS
        call = partial(main, rows, columns, _tensor(TILE_ROWS * TILE_COLUMNS * total_lanes, "int32"))
        return _Microbenchmark(call, lambda cycles, hertz: self._record_multiply_adds(rate, vectors / cycles))

    def _latency(self) -> Iterator[_Microbenchmark]:
        lanes = self._device.vector_bytes // 4
        main = self._compile(partial(microkernels.dependent_multiply_adds, lanes))
        call = partial(main, _tensor(SMALL_BYTES // 4, FLOAT32), _tensor(lanes, FLOAT32))
        waits = SMALL_BYTES // 4 // (WAITED * lanes) * WAITED
        yield _Microbenchmark(call, self._recorder("latency_cycles", lambda cycles: cycles / waits))

    def _gathers(self) -> Iterator[_Microbenchmark]:
        lanes = self._device.vector_bytes // 4
        main = self._compile(partial(microkernels.gathers, lanes))
        source = _tensor(GATHERED * lanes * ROW_ELEMENTS, FLOAT32)
        gathered = ROW_COLUMNS * GATHERED * lanes
        yield _Microbenchmark(
            partial(main, source, _tensor(GATHERED * lanes, FLOAT32)),
            self._recorder("gather_cycles", lambda cycles: cycles / gathered),
        )

    def _rates(self) -> Iterator[_Microbenchmark]:
        device = self._device
        main = self._compile(partial(microkernels.stream, device.vector_bytes // 4, 1))
        yield self._stream("loads", main, SMALL_BYTES, unit=device.vector_bytes)
        yield self._stream("l1_rate", main, device.l1_bytes // 2)
        yield self._stream("l2_rate", main, device.l2_bytes // 2)
        if device.l3_bytes // 2 > device.l2_bytes:
            yield self._stream("l3_rate", main, device.l3_bytes // 2)
        yield self._stream("memory_rate", main, self._memory_bytes)

    def _shared_memory_rate(self) -> Iterator[_Microbenchmark]:
        cores = self._device.cores
        main = self._compile(partial(microkernels.stream, self._device.vector_bytes // 4, cores))
        yield self._stream("memory_rate_all", main, self._memory_bytes, cores)

    def _launch(self) -> Iterator[_Microbenchmark]:
        cores = self._device.cores
        module = microkernels.build_module(partial(microkernels.parallel_stores, cores))
        library = tvm.compile(module, target=self._target)
        result = _tensor(cores * 16, "int32")
        timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=LAUNCHES)

        def launch(steps: int) -> None:
            # TVM's timer calls the kernel, because a call from Python takes as long as launching the threads.
            self._launches_s += timer(result).results
            self._measured["launch_s"] = statistics.median(self._launches_s)

        library["main"](result)
        yield _Microbenchmark(launch, lambda cycles, hertz: None, all_cores=True)

    # Timing

    def _record_multiply_adds(self, dtype: str, rate: float) -> None:
        self._measured.setdefault("multiply_adds", {})[dtype] = rate

    def _recorder(self, name: str, value: Callable[[float], float]) -> Callable[[float, float], None]:
        """Return a function that records a field of the profile from the cycles of a step."""

        def record(cycles: float, hertz: float) -> None:
            self._measured[name] = value(cycles)

        return record

    def _stream(self, name: str, main: Any, size: int, cores: int = 1, unit: int = 1) -> _Microbenchmark:
        """Return a benchmark in which `cores` cores read a working set of `size` bytes. The field `name` is
        their rate in bytes per cycle, divided by `unit`.
        """
        block = self._device.vector_bytes * SIDE_BY_SIDE * cores
        read = size // block * block
        if size not in self._working_sets:
            self._working_sets[size] = _tensor(size // 4, "int32")
        call = partial(main, self._working_sets[size], _tensor(block // 4, "int32"))
        record = self._recorder(name, lambda cycles: read / cycles / unit)
        # Other cores share the L3 cache and memory, and disturb their measurement more often.
        repeat_s = REPEAT_S if read <= self._device.l2_bytes else FAR_REPEAT_S
        # Zen 5 loads 512-bit vectors from its L2 cache at two rates, seldom at the higher one.
        return _Microbenchmark(call, record, cores > 1, repeat_s, use_median=name == "l2_rate")

    @cached_property
    def _memory_bytes(self) -> int:
        """Return the size in bytes of the working set for memory's rate. Raises MemoryError if the caches
        would hold too much of it.
        """
        l3_bytes = self._device.l3_bytes
        wanted = min(max(int(TIMES_L3 * l3_bytes), MIN_BYTES), MAX_BYTES)
        size = min(wanted, int(FREE_SHARE * free_bytes()))
        if size < MIN_TIMES_L3 * l3_bytes:
            raise MemoryError(
                f"{size >> 20} MiB of memory may be used, too little for an L3 cache of {l3_bytes >> 20} MiB"
            )
        return size

    def _compile(self, kernel: Callable[[], None]) -> Any:
        return tvm.compile(microkernels.build_module(kernel), target=self._target)["main"]

    def _run_round(self, benchmark: _Microbenchmark) -> None:
        """Call a kernel and the chain for one round, and record the kernel's result so far.

        The chain's fastest call counts too: the clock is as fast during the kernel's fastest call.
        """
        if not benchmark.steps:
            # The first calls also start the pool's threads, and `off_pool_cores` needs these.
            benchmark.steps = self._steps_for(benchmark.call, CALL_S)
        with off_pool_cores() if benchmark.all_cores else nullcontext():
            end_s = self._clock() + benchmark.repeat_s
            fastest_s = math.inf
            while fastest_s == math.inf or self._clock() < end_s:
                fastest_s = min(fastest_s, self._time(benchmark.call, benchmark.steps))
                benchmark.chain_s = min(benchmark.chain_s, self._time(self._chain, self._chain_steps))
        benchmark.fastest_s.append(fastest_s)
        hertz = self._chain_steps * CHAINED / benchmark.chain_s
        secs = statistics.median(benchmark.fastest_s) if benchmark.use_median else min(benchmark.fastest_s)
        benchmark.record(secs / benchmark.steps * hertz, hertz)

    def _steps_for(self, call: Call, secs: float) -> int:
        """Return a number of steps that takes at least `secs` seconds."""
        steps = 1
        while (took_s := self._time(call, steps)) < secs:
            steps = math.ceil(steps * min(max(1.2 * secs / took_s, 2.0), 64.0))
        return steps

    def _time(self, call: Call, steps: int) -> float:
        start_s = self._clock()
        call(steps)
        return max(self._clock() - start_s - self._overhead_s, 1e-9)


def free_bytes() -> int:
    """Return the available memory in bytes, at most the container's limit; 0 if Linux doesn't report it."""
    lines = _read(MEMORY_INFO).splitlines()
    available = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    free = int(next(available, "0")) << 10
    limit = _read(MEMORY_LIMIT).strip()
    return min(free, int(limit)) if limit.isdecimal() else free


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _tensor(length: int, dtype: str) -> Any:
    """Return a tensor whose pages are all allocated, with numbers whose products and sums stay normal."""
    if length * np.dtype(dtype).itemsize < MIN_BYTES:
        value = 0.5 if "float" in dtype else 1
        return tvm.runtime.tensor(np.full(length, value).astype(dtype))
    tensor = tvm.runtime.empty((length,), dtype)
    ctypes.memset(np.from_dlpack(tensor).ctypes.data, 1, length * np.dtype(dtype).itemsize)
    return tensor


def _tail(error: BaseException, length: int = 500) -> str:
    return str(error)[-length:]
