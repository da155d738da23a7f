"""How long a candidate is timed: as long as it takes to know what to do with it.

What is clearly slower than the best known program is timed once, what may be the new best for the longest.
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

FLUSH = "tunefarm.flush_constants"
# What runs shorter is called again and again until so much time went by, which counts as one repeat.
REPEAT_MS = 1
# A candidate is repeated until its timing has taken this long, within these bounds.
TIMING_S = 0.02
MIN_REPEATS, MAX_REPEATS = 3, 20
# One whose median is then at most CLOSE times the best may be the one to choose: it is repeated further, even
# if its repeats agree: what disturbs a machine comes and goes in more time than they take.
CLOSE = 1.1
CLOSE_TIMING_S = 0.1
MAX_CLOSE_REPEATS = 100
# The fastest call of one that takes more than SLOW times the best is enough. Noise only ever adds time, and
# the fastest of two calls is seldom off by half; what a device does at another hour, at another clock rate or
# beside other work, differs by less than that as well.
SLOW = 2.0
# A first call may find the threads asleep and its code in no cache, which matters for short kernels only.
COLD_S = 1e-3


@dataclass(frozen=True)
class TimedKernel:
    """A built candidate with its arguments on the device. Those at `constants` are flushed from the caches
    before every timed call."""

    library: Any
    function: Any
    device: Any
    arguments: list[Any]
    constants: Sequence[int]

    def call(self) -> float:
        """Seconds of one call, on caches as they are."""
        start = time.perf_counter()
        self.function(*self.arguments)
        self.device.sync()
        return time.perf_counter() - start

    @off_pool_cores()
    def timed(self, first_s: float, best_s: float | None) -> tuple[float, ...]:
        """Seconds of a call in every repeat: the more repeats, the closer they come to `best_s`, the best
        latency known of the workload. `first_s` is what a first call took."""
        flush = _flusher(self.constants)
        # The timer finds it by its name.
        tvm_ffi.register_global_func(FLUSH, flush, override=True)
        start = time.perf_counter()
        flush(*self.arguments)
        once_s = self.call()
        # Flushing takes longer than many a kernel, so what a repeat costs is not what it times.
        cost_s = max(time.perf_counter() - start, self._repeat_ms / 1e3)
        if best_s is None:
            return self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS))
        return self._as_far_as_needed(min(first_s, once_s), once_s, cost_s, best_s)

    def _as_far_as_needed(
        self, fastest_s: float, once_s: float, cost_s: float, best_s: float
    ) -> tuple[float, ...]:
        if fastest_s > SLOW * best_s + COLD_S:
            return (once_s,)
        secs: tuple[float, ...] = ()
        if fastest_s > SLOW * best_s:
            secs = self._repeat(MIN_REPEATS)
            if min(secs) > SLOW * best_s:
                return secs
        secs += self._repeat(_repeats(TIMING_S / cost_s, MAX_REPEATS) - len(secs))
        if statistics.median(secs) <= CLOSE * best_s:
            # Interruptions take their time too.
            cost_s = max(cost_s, statistics.fmean(secs))
            secs += self._repeat(_repeats(CLOSE_TIMING_S / cost_s, MAX_CLOSE_REPEATS) - len(secs))
        return secs

    @property
    def _repeat_ms(self) -> int:
        """Constants are in no cache for one call only."""
        return 0 if self.constants else REPEAT_MS

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


def _flusher(constants: Sequence[int]) -> Callable[..., None]:
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def flush_constants(*arguments: Any) -> None:
        if constants:
            flush(arguments[0], *(arguments[i] for i in constants))

    return flush_constants


def _repeats(wanted: float, most: int) -> int:
    return min(max(int(wanted), MIN_REPEATS), most)
