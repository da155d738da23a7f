"""Watch the speed of a CPU's cores while kernels are timed.

A warm processor slows its clock. A program on the other thread of a core, or on another virtual machine
there, halves the core's rate. A kernel timed meanwhile seems slow, and the next one fast.
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
# The steps of the call before it. After vectors of 512 bits, some processors keep a lower clock for 0.7 ms.
# It is one long call, because on busy cores each call waits for its threads.
SETTLING_STEPS = 10 * STEPS
# Every processor multiplies vectors of four floats, and CHAINS of them at its full rate.
LANES, CHAINS = 4, 12


def reference_timer(target: tvm.target.Target) -> Callable[[], Sequence[float]]:
    """Return a function that returns the seconds of CALLS calls of the reference kernel.

    The kernel multiplies and adds in registers on all cores of TVM's pool, so it leaves the caches as they
    are.
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
    """The speed of the cores, as a share of the fastest that this object has read. `timed` returns the
    seconds of some calls of the reference kernel.
    """

    def __init__(self, timed: Callable[[], Sequence[float]]) -> None:
        self._timed = timed
        self._fastest_s = math.inf

    def read(self) -> float:
        """Return the present speed: more than 0, at most 1."""
        now_s = max(statistics.median(self._timed()), 1e-9)
        self._fastest_s = min(self._fastest_s, now_s)
        return self._fastest_s / now_s

    def beside(self, measure: Callable[[], tuple[float, ...]]) -> tuple[tuple[float, ...], float]:
        """Measure. Return the measurement, and the lower speed of the cores before and after it."""
        before = self.read()
        measured = measure()
        return measured, min(before, self.read())
