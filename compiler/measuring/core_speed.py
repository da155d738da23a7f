"""Watch the speed of a CPU's cores while kernels are timed.

A hot processor lowers its clock. Another program on the same core halves the core's rate. A kernel that is
timed then seems slow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import tvm

from compiler.measuring.cores import off_pool_cores
from compiler.measuring.microkernels import multiply_adds_on_all_cores

# A reading is the median of CALLS calls of the reference kernel, each of STEPS steps: 0.07 ms on a fast core,
# 0.5 ms on a small one.
CALLS, STEPS = 3, 50_000
# The steps of one long call before the timed calls. Some processors keep a lower clock for 0.7 ms after
# vectors of 512 bits. One call is enough: on busy cores, each call waits for its threads.
SETTLING_STEPS = 10 * STEPS
# Every processor has vectors of four floats. CHAINS independent vectors reach its full rate.
LANES, CHAINS = 4, 12


def reference_timer(target: tvm.target.Target) -> Callable[[], Sequence[float]]:
    """Return a function that calls the reference kernel CALLS times, and returns the seconds of each call.

    The kernel multiplies and adds on all cores of TVM's pool. It uses registers only, so it doesn't change
    the caches.
    """
    threads = tvm.get_global_func("runtime.NumThreads")()
    library = tvm.compile(multiply_adds_on_all_cores(threads, LANES, CHAINS), target=target)
    factors = tvm.runtime.tensor(np.full(2 * LANES, 0.5, "float32"))
    sums = tvm.runtime.tensor(np.ones(threads * CHAINS * LANES, "float32"))
    settle = library["main"]
    timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=CALLS)

    def timed() -> Sequence[float]:
        with off_pool_cores():
            settle(factors, sums, SETTLING_STEPS)
            return tuple(timer(factors, sums, STEPS).results)

    return timed


class CoreSpeed:
    """Reads the speed of the cores, as a share of the fastest speed that it has read.

    `timed` returns the seconds of some calls of the reference kernel.
    """

    def __init__(self, timed: Callable[[], Sequence[float]]) -> None:
        self._timed = timed
        self._fastest_s = math.inf

    def read(self) -> float:
        """Return the current speed: more than 0, at most 1."""
        now_s = max(statistics.median(self._timed()), 1e-9)
        self._fastest_s = min(self._fastest_s, now_s)
        return self._fastest_s / now_s

    def watch(self, measure: Callable[[], tuple[float, ...]]) -> tuple[tuple[float, ...], float]:
        """Call `measure`. Return its result, and the lower of the speeds before and after it."""
        before = self.read()
        measured = measure()
        return measured, min(before, self.read())
