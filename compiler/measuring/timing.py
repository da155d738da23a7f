"""Time a candidate for as long as ranking it takes. A candidate that is clearly slower than the best known
one is timed once, and a possible new best is timed longest.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
import tvm_ffi

from compiler.measuring.cores import off_pool_cores
from compiler.measuring.cuda_graphs import CudaGraph

PREPARE_CACHES = "tunefarm.prepare_caches"
# A kernel is called repeatedly for at least this long; the mean of these calls is one repeat.
REPEAT_MS = 1
# A candidate is repeated until its timing has taken TIMING_S, within these bounds.
TIMING_S = 0.02
MIN_REPEATS, MAX_REPEATS = 3, 20
# A candidate whose median is then at most CLOSE times the best latency may become the best. It is repeated
# until its timing has taken CLOSE_TIMING_S, even if its repeats agree, because disturbances of the machine
# last longer than a few repeats. Half of a job's candidates are CLOSE, so those beyond CLOSER, whose rank
# matters only to the cost model, take half of that.
CLOSE, CLOSER = 1.1, 1.03
CLOSE_TIMING_S = 0.1
MAX_CLOSE_REPEATS = 100
# Two calls are enough for a candidate whose faster one takes more than SLOW times the best latency. Noise
# only adds time, and seldom doubles the faster of two calls. Changes of clock rate or load since the best
# latency was measured make less difference, too.
SLOW = 2.0
# Noise is a smaller part of a call that takes at least LONG_S, so these are slow from LONG_SLOW on.
LONG_S, LONG_SLOW = TIMING_S, 1.3
# The most time that a first call needs to wake threads and to load code into the caches.
COLD_S = 1e-3


# A graph launches the candidate at least this often, so that the graph's own launch, about 5 us, hardly
# counts. Capturing MAX_LAUNCHES takes milliseconds. A graph of a slow candidate takes about GRAPH_S.
MIN_LAUNCHES, MAX_LAUNCHES = 16, 256
GRAPH_S = 4e-3


class Timer(Protocol):
    """Times a kernel. A repeat takes at least `min_repeat_s`."""

    min_repeat_s: float

    def prepare(self, first_s: float) -> float:
        """Prepare to time a kernel whose first call took `first_s` seconds. Return the overhead of a repeat
        in seconds.
        """

    def repeat(self, repeats: int) -> tuple[float, ...]:
        """Return the seconds per call, one value per repeat."""

    def close(self) -> None:
        """Free the timer's resources."""


@dataclass(frozen=True)
class TimedKernel:
    """A built candidate with its tensors on the device, and its timer. `function` calls it with them."""

    function: Callable[[], object]
    device: Any
    arguments: list[Any]
    timer: Timer

    def call(self) -> float:
        """Return the seconds of one call, with any state of the caches."""
        start = time.perf_counter()
        self.function()
        self.device.sync()
        return time.perf_counter() - start

    @off_pool_cores()
    def timed(self, first_s: float, best_s: float | None) -> tuple[float, ...]:
        """Return the seconds per call, one value per repeat. The closer a candidate comes to `best_s`, the
        workload's best known latency, the more repeats it gets. `first_s` are the seconds of the first call.
        """
        try:
            return self._timed(first_s, best_s)
        finally:
            self.timer.close()

    def _timed(self, first_s: float, best_s: float | None) -> tuple[float, ...]:
        beside_s = self.timer.prepare(first_s)
        once_s = self.call()
        # A repeat takes longer than the timed calls: flushing may take longer than the kernel.
        cost_s = max(beside_s + once_s, self.timer.min_repeat_s)
        if best_s is None:
            return self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS))
        fastest_s = min(first_s, once_s)
        if fastest_s > SLOW * best_s + COLD_S or fastest_s > max(LONG_S, LONG_SLOW * best_s):
            return (once_s,)
        secs: tuple[float, ...] = ()
        if fastest_s > SLOW * best_s:
            # The calls may be slow only because threads and caches were cold.
            secs = self._repeat(MIN_REPEATS)
            if min(secs) > SLOW * best_s:
                return secs
        secs += self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS) - len(secs))
        for limit, timing_s in ((CLOSE, CLOSE_TIMING_S / 2), (CLOSER, CLOSE_TIMING_S)):
            if statistics.median(secs) <= limit * best_s:
                # Interruptions lengthen repeats.
                cost_s = max(cost_s, statistics.fmean(secs))
                secs += self._repeat(_repeats(timing_s / cost_s, MAX_CLOSE_REPEATS) - len(secs))
        return secs

    def _repeat(self, repeats: int) -> tuple[float, ...]:
        return self.timer.repeat(repeats) if repeats > 0 else ()


class CallTimer:
    """Times single calls on a CPU with TVM's timer. Before every repeat, `prepare_caches` brings the caches
    into the state that a network leaves. With `is_cold`, a second call would find flushed arguments there, so
    a repeat is one call.
    """

    def __init__(
        self,
        library: Any,
        device: Any,
        arguments: list[Any],
        prepare_caches: Callable[..., None],
        is_cold: bool,
    ) -> None:
        self._library = library
        self._device = device
        self._arguments = arguments
        self._prepare_caches = prepare_caches
        self._repeat_ms = 0 if is_cold else REPEAT_MS
        self.min_repeat_s = self._repeat_ms / 1e3

    def prepare(self, first_s: float) -> float:
        # TVM's timer looks the function up by name, and keeps it for ever. It must not keep this kernel
        # alive.
        tvm_ffi.register_global_func(PREPARE_CACHES, self._prepare_caches, override=True)
        start = time.perf_counter()
        self._prepare_caches(*self._arguments)
        return time.perf_counter() - start

    def repeat(self, repeats: int) -> tuple[float, ...]:
        timer = self._library.mod.time_evaluator(
            "main",
            self._device,
            number=1,
            repeat=repeats,
            min_repeat_ms=self._repeat_ms,
            f_preproc=PREPARE_CACHES,
        )
        return tuple(float(secs) for secs in timer(*self._arguments).results)

    def close(self) -> None:
        pass


class GraphTimer:
    """Times launches inside a CUDA graph, as a published model runs its kernels.

    Successive launches use successive copies of the `constants`. The copies fill the working set, so a launch
    finds as much of its constants in the cache as it would in the model. The other operands stay the same,
    because in a model the previous kernel has just written them.
    """

    min_repeat_s = 0.0

    def __init__(
        self,
        function: Callable[..., object],
        device: Any,
        arguments: list[Any],
        constants: Sequence[int],
        working_set: WorkingSet,
    ) -> None:
        self._function = function
        self._device = device
        self._arguments = arguments
        self._constants = constants
        self._working_set = working_set
        self._graph: CudaGraph | None = None
        self._launches = 1

    def prepare(self, first_s: float) -> float:
        copies = self._working_set.copies([self._arguments[i] for i in self._constants])
        affordable = max(int(GRAPH_S / max(first_s, 1e-6)), 1)
        self._launches = min(max(len(copies), MIN_LAUNCHES), affordable)

        def launch_all() -> None:
            for number in range(self._launches):
                arguments = list(self._arguments)
                for i, tensor in zip(self._constants, copies[number % len(copies)], strict=True):
                    arguments[i] = tensor
                self._function(*arguments)

        self._graph = CudaGraph(self._device, launch_all)
        self._graph.launch_s()  # the first launch uploads the graph
        return self._graph.launch_s()

    def repeat(self, repeats: int) -> tuple[float, ...]:
        assert self._graph is not None, "prepared"
        # CUDA events have a resolution of half a microsecond, so two events may show the same time.
        return tuple(max(self._graph.launch_s(), 1e-9) / self._launches for _ in range(repeats))

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()


class WorkingSet:
    """Copies of constants on a GPU, with as many bytes as a model's constants, but at most `TIMES_CACHE`
    times the cache, which evicts all of them.
    """

    TIMES_CACHE = 3

    def __init__(self, device: Any, cache_bytes: int) -> None:
        self._device = device
        self._most_bytes = self.TIMES_CACHE * cache_bytes
        self._bytes = self._most_bytes
        # Tensors by the signature of the constants. A workload's candidates share them.
        self._signature: tuple[tuple[tuple[int, ...], str], ...] = ()
        self._tensors: list[list[Any]] = []

    def resize(self, model_bytes: int) -> None:
        """Set the size of a model's constants in bytes; 0, for unknown, counts as large."""
        self._bytes = min(model_bytes or self._most_bytes, self._most_bytes)

    def copies(self, constants: Sequence[Any]) -> list[list[Any]]:
        """Return the constants and as many copies as the working set holds."""
        size = sum(map(_num_bytes, constants))
        count = min(self._bytes // size, MAX_LAUNCHES) - 1 if size else 0
        signature = tuple((tuple(map(int, tensor.shape)), str(tensor.dtype)) for tensor in constants)
        if signature != self._signature:
            self._signature, self._tensors = signature, []
        # Each copy is a separate allocation, because kernels ignore a view's offset.
        while len(self._tensors) < count:
            self._tensors.append([tvm.runtime.empty(*each, self._device) for each in signature])
        copies = self._tensors[: max(count, 0)]
        for copy in copies:
            for tensor, target in zip(constants, copy, strict=True):
                tensor.copyto(target)
        return [list(constants), *copies]


def prepares_caches(
    count: int, constants: Sequence[int], rewrite: Callable[..., None]
) -> Callable[..., None]:
    """Return a function that brings a CPU's caches into the state in which a network calls a kernel. The
    first `count` arguments are the kernel's tensors.

    A network streams its weights, so the arguments at the positions `constants` are flushed. The threads of
    the previous kernels have just written the other arguments, each thread a contiguous part. A kernel whose
    threads read other parts gets them from other cores' caches. `rewrite` writes a tensor of int32 that way
    (`rewriting_kernel`).
    """
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def prepare(*arguments: Any) -> None:
        if constants:
            flush(arguments[0], *(arguments[i] for i in constants))
        # Outputs come last, and inputs were written later.
        for i, tensor in reversed(list(enumerate(arguments[:count]))):
            if i not in constants and (words := _num_bytes(tensor) // 4):
                rewrite(tensor._create_view((words,), "int32"), 0)

    return prepare


def _num_bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * -(-tvm.DataType(str(tensor.dtype)).bits // 8)


def _repeats(wanted: float, maximum: int) -> int:
    return min(max(int(wanted), MIN_REPEATS), maximum)
