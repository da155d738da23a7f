"""A kernel's threads run on the right cores. Each test uses a separate process, because TVM's pool is
permanent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tvm

from compiler.measuring.core_speed import CoreSpeed, reference_timer
from compiler.measuring.cores import off_pool_cores
from compiler.measuring.microkernels import multiply_adds_on_all_cores

CORES = sorted(os.sched_getaffinity(0))
# Prints the cores of the threads that were started after the imports, the caller's first.
SCRIPT = """
import json, os, sys, threading
import numpy as np, tvm
from compiler.measuring.cores import off_pool_cores, bind_thread_pool
from tests.workloads import matmul

def cores():
    pool = sorted(thread for thread in map(int, os.listdir("/proc/self/task")) if thread not in others)
    return [sorted(os.sched_getaffinity(thread)) for thread in (threading.get_native_id(), *pool)]

threads = int(os.environ["TVM_NUM_THREADS"])
os.sched_setaffinity(0, json.loads(sys.argv[1]))
schedule = tvm.s_tir.Schedule(matmul(8, 8, 8))
(block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
schedule.parallel(schedule.get_loops(block)[0])
function = tvm.compile(schedule.mod, target="llvm")["main"]
others = set(map(int, os.listdir("/proc/self/task")))
bind_thread_pool(threads)
function(*(tvm.runtime.tensor(np.ones((8, 8), "float32")) for _ in range(3)))
before = cores()
with off_pool_cores():
    timed = cores()
print(json.dumps([before, timed, cores()]))
"""


def _cores(allowed: list[int], threads: int) -> list[list[list[int]]]:
    """Return the cores of a pool's threads, the caller's first: before, during and after a timing."""
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(allowed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[list[list[int]]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
@pytest.mark.slow
def test_every_thread_has_its_own_core_during_timing() -> None:
    before, timed, after = _cores(CORES, threads=2)
    assert [len(cores) for cores in before] == [len(CORES), 1]
    assert set(timed[0]) == set(CORES) - set(timed[1])
    assert after == before


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
@pytest.mark.parametrize("count", range(1, min(len(CORES), 3)))
def test_a_process_uses_only_the_cores_it_may_use(count: int) -> None:
    allowed = CORES[-count:]
    for found in _cores(allowed, threads=count):
        assert len(found) == count
        assert set().union(*found) == set(allowed)


@pytest.mark.slow
def test_with_more_threads_than_cores_timing_uses_all_allowed_cores() -> None:
    for found in _cores(CORES[:1], threads=2):
        assert set().union(*found) == set(CORES[:1])


def test_without_a_pool_a_thread_keeps_its_cores() -> None:
    before = os.sched_getaffinity(threading.get_native_id())
    with pytest.raises(ValueError, match="while it ran"), off_pool_cores():
        raise ValueError("while it ran")
    assert os.sched_getaffinity(threading.get_native_id()) == before


def test_the_reference_kernel_computes_on_every_core() -> None:
    cores, lanes, chains, steps = 3, 4, 2, 5
    module = multiply_adds_on_all_cores(cores, lanes, chains)
    before = np.arange(cores * chains * lanes, dtype="float32")
    sums = tvm.runtime.tensor(before)
    factors = tvm.runtime.tensor(np.array([2.0] * lanes + [1.0] * lanes, "float32"))
    tvm.compile(module, target="llvm")["main"](factors, sums, steps)
    np.testing.assert_array_equal(sums.numpy(), before * 2**steps + 2**steps - 1)


def test_the_speed_of_the_cores_is_read() -> None:
    speed = CoreSpeed(reference_timer(tvm.target.Target("llvm")))
    assert speed.read() == 1.0
    assert 0.0 < speed.read() <= 1.0
