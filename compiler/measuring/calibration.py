"""What a device can do, measured by small kernels that TVM compiles for its target: its `Profile`.

Compiled like a candidate, a kernel shows what LLVM makes of the target on this machine, also where features
of the machine were given up. Nothing is said about instructions that LLVM doesn't use for it.

Cycles are counted by a chain of additions and exclusive ors of whole numbers, each of which needs the result
of the one before: it takes one cycle on every processor that we know of. Performance counters are seldom
there on virtual machines, and the time stamp counter goes on at its own rate whatever the core's clock does.
The chain is timed right after every call of a kernel, so both run at one clock rate, which wide vectors may
lower, and it makes no difference when the clock changes meanwhile.

Other processes only ever add time: of many short calls the fastest one counts. Only of launching threads, and
of what is drawn from the second cache, it is the median.
"""

from __future__ import annotations

import ctypes
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.lowering.vnni import BYTES_SINCE_LLVM
from compiler.measuring.cores import off_pool_cores
from compiler.target import parse_target
from core.device import Device
from core.profile import FLOAT32, Profile, assumed_profile

_log = logging.getLogger(__name__)

BUDGET_S = 20.0
# In each round a kernel is called for REPEAT_S, in calls of CALL_S, each followed by a chain of CHAIN_S.
ROUNDS, REPEAT_S, FAR_REPEAT_S, CALL_S, CHAIN_S = 4, 0.06, 0.15, 1e-3, 2e-4
LAUNCHES = 100
OTHER_TYPES = ("float16", "bfloat16", "int32", "float64")
# Dependent operations in the loops of the chain and of the latency.
CHAINED, WAITED = 64, 8
# Vectors that are loaded side by side: none waits for another.
SIDE_BY_SIDE = 8
# What a core loads from its first cache as fast as it ever does.
SMALL_BYTES = 4 << 10
# Lanes are gathered from rows that are so many elements long: no power of two, whose rows share cache sets.
ROW_ELEMENTS, ROW_COLUMNS, GATHERED = 68, 64, 4
# What is in memory only: so many times the last cache, within these bounds and a part of what is free.
TIMES_L3, LEAST_TIMES_L3 = 4.0, 1.5
LEAST_BYTES, MOST_BYTES, FREE_SHARE = 64 << 20, 512 << 20, 0.25
MEMORY_INFO, MEMORY_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
RATES = ("l1_rate", "l2_rate", "l3_rate", "memory_rate")

Call = Callable[[int], None]  # of so many steps


class CalibrationError(RuntimeError):
    """No kernel of the calibration compiles and runs on this machine."""


def calibrate(
    device: Device, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
) -> Profile:
    """Measures this machine with code for the device's target, in about five seconds.

    Nothing else is begun once `budget_s` are spent: what is left follows from what was measured, or is
    assumed, and is named in `derived`. `TVM_NUM_THREADS` in the environment must equal the device's cores.
    Raises ValueError for a target that TVM doesn't know, and CalibrationError.
    """
    return complete_profile(_Calibration(device, clock).measured(budget_s), device)


def complete_profile(found: Mapping[str, Any], device: Device) -> Profile:
    """The profile of the fields that were measured; the others follow from them, or are assumed."""
    base = assumed_profile(device.machine, device.features, device.cores)
    values = {f.name: getattr(base, f.name) for f in fields(base)} | dict(found)
    values |= _rates(found, base)
    if "memory_rate_all" not in found:
        values["memory_rate_all"] *= values["memory_rate"] / base.memory_rate
    # What one core draws, all of them draw together as well.
    values["memory_rate_all"] = max(values["memory_rate_all"], values["memory_rate"])
    if "l1_rate" in found:
        loads = values["l1_rate"] / device.vector_bytes
        values["loads"] = max(found.get("loads", 0.0), loads)
    missing = {f.name for f in fields(base) if f.name not in found and f.name != "derived"}
    values["multiply_adds"] = dict(base.multiply_adds) | dict(found.get("multiply_adds", {}))
    if FLOAT32 not in found.get("multiply_adds", {}):
        missing.add("multiply_adds")
    return Profile(**values | {"derived": tuple(sorted(missing))})


def _rates(found: Mapping[str, Any], base: Profile) -> dict[str, float]:
    """The rates of the caches and of memory.

    One that wasn't measured is to the nearest one that was as it is in what is assumed, and no higher than
    those of levels nearer to the core. None is lower than that of a level farther out: noise only ever makes
    one lower.
    """
    known = [i for i, name in enumerate(RATES) if name in found]
    rates = [float(found.get(name, getattr(base, name))) for name in RATES]
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
    """A kernel that is timed: `note` takes the cycles of a step and those of a second.

    It is called for `repeat_s` in each round. `fastest_s` has the seconds that the fastest call of each round
    took for `steps` steps, `chain_s` is the fastest of the chain. One on all cores is for `everyone`;
    of a `typical` one the median round counts, not the fastest.
    """

    call: Call
    note: Callable[[float, float], None]
    everyone: bool = False
    repeat_s: float = REPEAT_S
    typical: bool = False
    steps: int = 0
    fastest_s: list[float] = field(default_factory=list)
    chain_s: float = math.inf


class _Calibration:
    """Measures one quantity after the other, the most important ones first, then all of them again: what
    disturbs a machine lasts longer than a kernel is called in a row."""

    def __init__(self, device: Device, clock: Callable[[], float]) -> None:
        """Raises ValueError when TVM doesn't know the device's target."""
        self._device = device
        self._clock = clock
        self._target = parse_target(device.target)
        self._registers = assumed_profile(device.machine, device.features, device.cores).registers
        self._found: dict[str, Any] = {}
        self._launches: list[float] = []
        self._working_sets: dict[int, Any] = {}
        self._overhead_s = 0.0
        self._chain: Call = lambda steps: None
        self._chain_steps = 1

    def measured(self, budget_s: float) -> dict[str, Any]:
        """The fields of a profile that there was time for. Raises CalibrationError."""
        end_s = self._clock() + budget_s
        if budget_s <= 0:
            return {}
        try:
            self._count_cycles()
        except Exception as error:  # TVM raises whatever class its C++ side names
            problem = f"no kernel compiles and runs for {self._device.target}: {_tail(error)}"
            raise CalibrationError(problem) from error
        begun = []
        for name, kernels in self._quantities.items():
            if self._clock() >= end_s:
                _log.info("the calibration's %g s were spent when it came to %s", budget_s, name)
                return self._found
            try:
                for kernel in kernels():
                    self._repeat(kernel)
                    begun.append(kernel)
            except Exception as error:
                _log.warning("%s can't be calibrated: %s", name, _tail(error))
        for kernel in begun * (ROUNDS - 1):
            if self._clock() >= end_s:
                break
            self._repeat(kernel)
        return self._found

    # What it measures

    @property
    def _quantities(self) -> dict[str, Callable[[], Iterator[_Microbenchmark]]]:
        others = {f"the multiply-adds of {dtype}": partial(self._multiply, dtype) for dtype in OTHER_TYPES}
        return {
            "the multiply-adds of float32": partial(self._multiply, FLOAT32),
            "the launch of threads": self._launch,
            "the rates of caches and memory": self._draw,
            "the latency of multiply-adds": self._wait,
            "gathers": self._gather,
            "the multiply-adds of int8": self._multiply_bytes,
            "the memory's rate for all cores": self._draw_together,
            **others,
        }

    def _count_cycles(self) -> None:
        """Prepares the chain that counts cycles."""
        main = self._compiled(_chain)
        self._chain = partial(main, _tensor(2, "uint32"), _tensor(1, "uint32"))
        self._overhead_s = min(self._secs(self._chain, 0) for _ in range(20))
        self._chain_steps = self._steps(self._chain, CHAIN_S)

    def _multiply(self, dtype: str) -> Iterator[_Microbenchmark]:
        size = np.dtype(dtype).itemsize
        lanes = self._device.vector_bytes // size
        # TVM sums up in 32 bits what is narrower.
        chains = self._chains * min(size, 4) // 4
        main = self._compiled(partial(_multiply_adds, dtype, dtype, lanes, lanes, chains, _multiply_add))

        def note(cycles: float, hertz: float) -> None:
            self._add(dtype, chains / cycles)
            if dtype == FLOAT32:
                self._found["hertz"] = hertz

        yield _Microbenchmark(partial(main, _tensor(2 * lanes, dtype), _tensor(chains * lanes, dtype)), note)

    def _multiply_bytes(self) -> Iterator[_Microbenchmark]:
        """By the instruction that sums up products of bytes, where the search would use it."""
        size, lanes, chains = self._device.vector_bytes, self._device.vector_bytes // 4, self._chains
        instruction = next((step for feature, step in DOT_PRODUCTS if feature in self._device.features), None)
        if instruction is not None:
            main = self._compiled(partial(_multiply_adds, "int8", "int32", size, lanes, chains, instruction))
            call = partial(main, _tensor(2 * size, "int8"), _tensor(chains * lanes, "int32"))
            yield _Microbenchmark(call, lambda cycles, hertz: self._add("int8", chains / cycles))
            return
        main = self._compiled(partial(_widened_multiply_adds, lanes))
        rows = _tensor(WIDENED_STEPS * WIDENED_ROWS, "int8")
        columns = _tensor(WIDENED_STEPS * WIDENED_COLUMNS * lanes, "int8")
        call = partial(main, rows, columns, _tensor(WIDENED_ROWS * WIDENED_COLUMNS * lanes, "int32"))
        # A vector of bytes is four of whole numbers.
        vectors = WIDENED_STEPS * WIDENED_ROWS * WIDENED_COLUMNS / 4
        yield _Microbenchmark(call, lambda cycles, hertz: self._add("int8", vectors / cycles))

    def _wait(self) -> Iterator[_Microbenchmark]:
        lanes = self._device.vector_bytes // 4
        main = self._compiled(partial(_dependent_multiply_adds, lanes))
        call = partial(main, _tensor(SMALL_BYTES // 4, FLOAT32), _tensor(lanes, FLOAT32))
        waits = SMALL_BYTES // 4 // (WAITED * lanes) * WAITED
        yield _Microbenchmark(call, self._noted("latency_cycles", lambda cycles: cycles / waits))

    def _gather(self) -> Iterator[_Microbenchmark]:
        lanes = self._device.vector_bytes // 4
        main = self._compiled(partial(_gathers, lanes))
        call = partial(
            main, _tensor(GATHERED * lanes * ROW_ELEMENTS, FLOAT32), _tensor(GATHERED * lanes, FLOAT32)
        )
        gathered = ROW_COLUMNS * GATHERED * lanes
        yield _Microbenchmark(call, self._noted("gather_cycles", lambda cycles: cycles / gathered))

    def _draw(self) -> Iterator[_Microbenchmark]:
        device = self._device
        main = self._compiled(partial(_stream, device.vector_bytes // 4, 1))
        yield self._drawn("loads", main, SMALL_BYTES, unit=device.vector_bytes)
        yield self._drawn("l1_rate", main, device.l1_bytes // 2)
        yield self._drawn("l2_rate", main, device.l2_bytes // 2)
        if device.l3_bytes // 2 > device.l2_bytes:
            yield self._drawn("l3_rate", main, device.l3_bytes // 2)
        yield self._drawn("memory_rate", main, self._memory_bytes)

    def _draw_together(self) -> Iterator[_Microbenchmark]:
        cores = self._device.cores
        main = self._compiled(partial(_stream, self._device.vector_bytes // 4, cores))
        yield self._drawn("memory_rate_all", main, self._memory_bytes, cores)

    def _launch(self) -> Iterator[_Microbenchmark]:
        cores = self._device.cores
        library = tvm.compile(_module(partial(_launched, cores)), target=self._target)
        result = _tensor(cores * 16, "int32")
        timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=LAUNCHES)

        def launch(steps: int) -> None:
            """TVM's own timer calls it: Python would take as long as the threads do."""
            self._launches += timer(result).results
            self._found["launch_s"] = statistics.median(self._launches)

        library["main"](result)
        yield _Microbenchmark(launch, lambda cycles, hertz: None, everyone=True)

    # How it measures

    @property
    def _chains(self) -> int:
        """Accumulators that leave registers for operands, and are enough to hide the latency."""
        return self._registers * 3 // 4

    def _add(self, dtype: str, rate: float) -> None:
        self._found.setdefault("multiply_adds", {})[dtype] = rate

    def _noted(self, name: str, value: Callable[[float], float]) -> Callable[[float, float], None]:
        """Notes a field of the profile."""

        def note(cycles: float, hertz: float) -> None:
            self._found[name] = value(cycles)

        return note

    def _drawn(self, name: str, main: Any, size: int, cores: int = 1, unit: int = 1) -> _Microbenchmark:
        """`cores` read a working set; what they draw in a cycle is noted in units of so many bytes."""
        block = self._device.vector_bytes * SIDE_BY_SIDE * cores
        read = size // block * block
        call = partial(main, self._working_set(size), _tensor(block // 4, "int32"))
        note = self._noted(name, lambda cycles: read / cycles / unit)
        # What lies far away comes through what all cores share: it is disturbed more often.
        repeat_s = REPEAT_S if read <= self._device.l2_bytes else FAR_REPEAT_S
        # Zen 5 draws 512-bit vectors from its second cache at two rates, at the higher one now and then.
        return _Microbenchmark(call, note, cores > 1, repeat_s, typical=name == "l2_rate")

    def _working_set(self, size: int) -> Any:
        """One for each size."""
        if size not in self._working_sets:
            self._working_sets[size] = _tensor(size // 4, "int32")
        return self._working_sets[size]

    @cached_property
    def _memory_bytes(self) -> int:
        """What is in memory only. Raises MemoryError when there is too little to leave the caches."""
        l3_bytes = self._device.l3_bytes
        wanted = min(max(int(TIMES_L3 * l3_bytes), LEAST_BYTES), MOST_BYTES)
        size = min(wanted, int(FREE_SHARE * free_bytes()))
        if size < LEAST_TIMES_L3 * l3_bytes:
            raise MemoryError(f"{size >> 20} MiB may be used, too few beside a cache of {l3_bytes >> 20} MiB")
        return size

    def _compiled(self, body: Callable[[], None]) -> Any:
        return tvm.compile(_module(body), target=self._target)["main"]

    def _repeat(self, kernel: _Microbenchmark) -> None:
        """Calls it for a round. The fastest of the chain counts as well: a clock that is fast for one of them
        is so for the other."""
        if not kernel.steps:
            kernel.steps = self._steps(kernel.call, CALL_S)
        # The pool's threads are there, after a first call.
        with off_pool_cores() if kernel.everyone else nullcontext():
            end_s = self._clock() + kernel.repeat_s
            fastest_s = math.inf
            while fastest_s == math.inf or self._clock() < end_s:
                fastest_s = min(fastest_s, self._secs(kernel.call, kernel.steps))
                kernel.chain_s = min(kernel.chain_s, self._secs(self._chain, self._chain_steps))
        kernel.fastest_s.append(fastest_s)
        hertz = self._chain_steps * CHAINED / kernel.chain_s
        secs = statistics.median(kernel.fastest_s) if kernel.typical else min(kernel.fastest_s)
        kernel.note(secs / kernel.steps * hertz, hertz)

    def _steps(self, call: Call, secs: float) -> int:
        """How many steps take so long."""
        steps = 1
        while (took_s := self._secs(call, steps)) < secs:
            steps = math.ceil(steps * min(max(1.2 * secs / took_s, 2.0), 64.0))
        return steps

    def _secs(self, call: Call, steps: int) -> float:
        start_s = self._clock()
        call(steps)
        return max(self._clock() - start_s - self._overhead_s, 1e-9)


def free_bytes() -> int:
    """Memory that is available, and no more than a container may have; none where the kernel doesn't tell."""
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


# The kernels: each does `steps` steps, and stores what it computes, or LLVM would leave it out.


def _module(body: Callable[[], None]) -> tvm.IRModule:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        body()
    return tvm.IRModule({"main": builder.get()})


def _steps_argument() -> Any:
    return T.arg("steps", T.int64())


def _vector(buffer: Any, start: Any, lanes: int) -> Any:
    return buffer[T.ramp(start, 1, lanes)]


def _accumulators(result: Any, dtype: str, lanes: int, count: int) -> list[Any]:
    """In registers, each of a value of its own: equal ones would be computed once."""
    sums = [T.alloc_buffer((lanes,), dtype, scope="local") for _ in range(count)]
    for i, one in enumerate(sums):
        T.buffer_store(one, _vector(result, i * lanes, lanes), [T.ramp(0, 1, lanes)])
    return sums


def _store(result: Any, sums: Sequence[Any], lanes: int, start: Any = 0) -> None:
    for i, one in enumerate(sums):
        T.buffer_store(result, _vector(one, 0, lanes), [T.ramp(start + i * lanes, 1, lanes)])


def _chain() -> None:
    source = T.arg("source", T.buffer((2,), "uint32"))
    result = T.arg("result", T.buffer((1,), "uint32"))
    steps = _steps_argument()
    value = T.alloc_buffer((1,), "uint32", scope="local")
    T.buffer_store(value, result[0], [0])
    with T.serial(steps):
        chained = value[0]
        for _ in range(CHAINED // 2):
            chained = T.bitwise_xor(chained + source[0], source[1])
        T.buffer_store(value, chained, [0])
    T.buffer_store(result, value[0], [0])


def _multiply_adds(
    factor: str, total: str, lanes: int, total_lanes: int, chains: int, step: Callable[[Any, Any, Any], Any]
) -> None:
    """All in registers."""
    source = T.arg("source", T.buffer((2 * lanes,), factor))
    result = T.arg("result", T.buffer((chains * total_lanes,), total))
    steps = _steps_argument()
    sums = _accumulators(result, total, total_lanes, chains)
    with T.serial(steps):
        for one in sums:
            added = step(
                _vector(one, 0, total_lanes), _vector(source, 0, lanes), _vector(source, lanes, lanes)
            )
            T.buffer_store(one, added, [T.ramp(0, 1, total_lanes)])
    _store(result, sums, total_lanes)


def _multiply_add(total: Any, factor: Any, summand: Any) -> Any:
    return total * factor + summand


def _vnni(total: Any, rows: Any, columns: Any) -> Any:
    if tvm.get_global_func("target.llvm_version_major")() < BYTES_SINCE_LLVM:
        rows, columns = (T.reinterpret(one, dtype="int32x16") for one in (rows, columns))
    intrinsic = T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512")
    return T.call_llvm_pure_intrin(intrinsic, total, rows, columns, dtype="int32x16")


def _sdot(total: Any, rows: Any, columns: Any) -> Any:
    intrinsic = T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.sdot.v4i32.v16i8")
    return T.call_llvm_pure_intrin(intrinsic, total, rows, columns, dtype="int32x4")


# As in search.sketches.intrinsics: the kernel's word for the feature, and what it does.
DOT_PRODUCTS = (("avx512_vnni", _vnni), ("asimddp", _sdot))
# The tile of bytes that are multiplied as whole numbers of 32 bits.
WIDENED_STEPS, WIDENED_ROWS, WIDENED_COLUMNS = 64, 4, 2


def _widened_multiply_adds(lanes: int) -> None:
    rows = T.arg("rows", T.buffer((WIDENED_STEPS * WIDENED_ROWS,), "int8"))
    columns = T.arg("columns", T.buffer((WIDENED_STEPS * WIDENED_COLUMNS * lanes,), "int8"))
    result = T.arg("result", T.buffer((WIDENED_ROWS * WIDENED_COLUMNS * lanes,), "int32"))
    steps = _steps_argument()
    sums = _accumulators(result, "int32", lanes, WIDENED_ROWS * WIDENED_COLUMNS)
    with T.serial(steps), T.serial(WIDENED_STEPS) as k:
        for i, one in enumerate(sums):
            row = rows[k * WIDENED_ROWS + i // WIDENED_COLUMNS]
            column = _vector(columns, (k * WIDENED_COLUMNS + i % WIDENED_COLUMNS) * lanes, lanes)
            product = T.broadcast(T.cast(row, "int32"), lanes) * T.cast(column, f"int32x{lanes}")
            T.buffer_store(one, _vector(one, 0, lanes) + product, [T.ramp(0, 1, lanes)])
    _store(result, sums, lanes)


def _dependent_multiply_adds(lanes: int) -> None:
    """One accumulator. What is multiplied comes from memory, or LLVM would do so once."""
    source = T.arg("source", T.buffer((SMALL_BYTES // 4,), FLOAT32))
    result = T.arg("result", T.buffer((lanes,), FLOAT32))
    steps = _steps_argument()
    (total,) = _accumulators(result, FLOAT32, lanes, 1)
    with T.serial(steps), T.serial(SMALL_BYTES // 4 // (WAITED * lanes)) as i:
        for j in range(WAITED):
            product = _vector(source, (i * WAITED + j) * lanes, lanes) * _vector(source, 0, lanes)
            T.buffer_store(total, _vector(total, 0, lanes) + product, [T.ramp(0, 1, lanes)])
    _store(result, [total], lanes)


def _gathers(lanes: int) -> None:
    source = T.arg("source", T.buffer((GATHERED * lanes * ROW_ELEMENTS,), FLOAT32))
    result = T.arg("result", T.buffer((GATHERED * lanes,), FLOAT32))
    steps = _steps_argument()
    sums = _accumulators(result, FLOAT32, lanes, GATHERED)
    with T.serial(steps), T.serial(ROW_COLUMNS) as column:
        for i, one in enumerate(sums):
            gathered = source[T.ramp(column + i * lanes * ROW_ELEMENTS, ROW_ELEMENTS, lanes)]
            T.buffer_store(one, _vector(one, 0, lanes) + gathered, [T.ramp(0, 1, lanes)])
    _store(result, sums, lanes)


def _stream(lanes: int, cores: int) -> None:
    """A step reads everything once; every core reads a part."""
    length = T.int64()
    handle = T.arg("source", T.handle())
    result = T.arg("result", T.buffer((cores * SIDE_BY_SIDE * lanes,), "int32"))
    steps = _steps_argument()
    source = T.match_buffer(handle, (length,), "int32")
    blocks = T.floordiv(length, cores * SIDE_BY_SIDE * lanes)
    with T.parallel(cores) if cores > 1 else T.serial(1) as core:
        sums = [T.alloc_buffer((lanes,), "int32", scope="local") for _ in range(SIDE_BY_SIDE)]
        for one in sums:
            T.buffer_store(one, T.broadcast(T.int32(0), lanes), [T.ramp(0, 1, lanes)])
        with T.serial(steps), T.serial(blocks) as block:
            for i, one in enumerate(sums):
                start = ((core * blocks + block) * SIDE_BY_SIDE + i) * lanes
                loaded = _vector(one, 0, lanes) + _vector(source, start, lanes)
                T.buffer_store(one, loaded, [T.ramp(0, 1, lanes)])
        _store(result, sums, lanes, core * SIDE_BY_SIDE * lanes)


def _launched(cores: int) -> None:
    result = T.arg("result", T.buffer((cores * 16,), "int32"))
    with T.parallel(cores) as core:
        T.buffer_store(result, core, [core * 16])


def _tensor(length: int, dtype: str) -> Any:
    """Of numbers whose products and sums stay ordinary ones. Every page of it is there."""
    if length * np.dtype(dtype).itemsize < LEAST_BYTES:
        value = 0.5 if "float" in dtype else 1
        return tvm.runtime.tensor(np.full(length, value).astype(dtype))
    tensor = tvm.runtime.empty((length,), dtype)
    ctypes.memset(np.from_dlpack(tensor).ctypes.data, 1, length * np.dtype(dtype).itemsize)
    return tensor


def _tail(error: BaseException, length: int = 500) -> str:
    return str(error)[-length:]
