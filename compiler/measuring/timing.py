"""Time a candidate for as long as it takes to rank it.

A candidate that is clearly slower than the best known one is timed once, one that may be the new best is
timed longest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from compiler.measuring.cores import off_pool_cores

FLUSH = "tunefarm.flush"
# A kernel is called repeatedly for at least this long; the mean of these calls is one repeat.
REPEAT_MS = 1
# A candidate is repeated until its timing has taken TIMING_S, within these bounds.
TIMING_S = 0.02
MIN_REPEATS, MAX_REPEATS = 3, 20
# A candidate whose median is then at most CLOSE times the best latency may become the best. It is repeated
# until its timing has taken CLOSE_TIMING_S, even if its repeats agree: disturbances of the machine last
# longer than a few repeats.
CLOSE = 1.1
CLOSE_TIMING_S = 0.1
MAX_CLOSE_REPEATS = 100
# Two calls are enough for a candidate whose faster one takes more than SLOW times the best latency. Noise
# only ever adds time and seldom doubles the faster of two calls. A change of the clock rate or the load since
# the best latency was measured makes less of a difference, too.
SLOW = 2.0
# A first call may have to wake threads and to load code into the caches, which takes up to this long.
COLD_S = 1e-3


@dataclass(frozen=True)
class TimedKernel:
    """A built candidate with its arguments on the device.

    Before every timed call `flush`, which is given the arguments, takes from the caches what a network would
    not find there. With `is_cold`, a second call would find it there.
    """

    library: Any
    function: Any
    device: Any
    arguments: list[Any]
    flush: Callable[..., None]
    is_cold: bool

    def call(self) -> float:
        """Return the seconds of one call, without flushing the caches."""
        start = time.perf_counter()
        self.function(*self.arguments)
        self.device.sync()
        return time.perf_counter() - start

    @off_pool_cores()
    def timed(self, first_s: float, best_s: float | None) -> tuple[float, ...]:
        """Return the seconds of a call, one value per repeat.

        The closer a candidate comes to `best_s`, the best latency known of the workload, the more repeats it
        gets. `first_s` is what an earlier first call took.
        """
        # TVM's timer finds the function by its name, and keeps it: it must not keep this kernel alive.
        tvm_ffi.register_global_func(FLUSH, self.flush, override=True)
        start = time.perf_counter()
        self.flush(*self.arguments)
        once_s = self.call()
        # A repeat takes longer than what it times: flushing takes longer than many a kernel.
        cost_s = max(time.perf_counter() - start, self._repeat_ms / 1e3)
        if best_s is None:
            return self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS))
        fastest_s = min(first_s, once_s)
        if fastest_s > SLOW * best_s + COLD_S:
            return (once_s,)
        secs: tuple[float, ...] = ()
        if fastest_s > SLOW * best_s:
            # Perhaps the calls were slow only because threads and caches were cold.
            secs = self._repeat(MIN_REPEATS)
            if min(secs) > SLOW * best_s:
                return secs
        secs += self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS) - len(secs))
        if statistics.median(secs) <= CLOSE * best_s:
            # Interruptions make repeats take longer than they should.
            cost_s = max(cost_s, statistics.fmean(secs))
            secs += self._repeat(_repeats(CLOSE_TIMING_S / cost_s, MAX_CLOSE_REPEATS) - len(secs))
        return secs

    @property
    def _repeat_ms(self) -> int:
        """A repeat of what is cold is one call."""
        return 0 if self.is_cold else REPEAT_MS

    def _repeat(self, repeats: int) -> tuple[float, ...]:
        if repeats < 1:
            return ()
        timer = self.library.mod.time_evaluator(
            "main",
            self.device,
            number=1,
            repeat=repeats,
            min_repeat_ms=self._repeat_ms,
            f_preproc=FLUSH,
        )
        return tuple(float(secs) for secs in timer(*self.arguments).results)


def flushes_constants(constants: Sequence[int]) -> Callable[..., None]:
    """Return a function that flushes the arguments at these positions from a CPU's caches: a network streams
    its weights, while the activations stay."""
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def flush_constants(*arguments: Any) -> None:
        if constants:
            flush(arguments[0], *(arguments[i] for i in constants))

    return flush_constants


def flushes_gpu(device: Any, cache_bytes: int) -> Callable[..., None]:
    """Return a function that fills the cache of a GPU, which has `cache_bytes`, with something else.

    The device does so while this process submits the kernel that is timed next.
    """
    source, target = (tvm.runtime.empty((2 * cache_bytes,), "uint8", device) for _ in range(2))

    def flush_all(*arguments: Any) -> None:
        source.copyto(target)

    return flush_all


def _repeats(wanted: float, maximum: int) -> int:
    return min(max(int(wanted), MIN_REPEATS), maximum)
