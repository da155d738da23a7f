"""Outputs are compared on the GPU that computed them, here on its stand-in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cuda_emulator.driver import StandIn

# A kernel is checked when its type is first used. One that leaves out the last two values is refused.
EVERY_TYPE = """
from functools import partial
import numpy as np, tvm
from compiler.measuring.gpu_comparison import GpuComparison, checked_values
from compiler.packaging.cuda import load_cuda
from tests.gpu_programs import TARGET

def without_tail(kernel, size, *tensors):
    kernel(size - 2, *tensors)

load_cuda()
on_gpu = GpuComparison(TARGET, tvm.cuda(0))
for dtype in sys.argv[1:]:
    expected, found = checked_values(dtype)
    count = on_gpu.count_far(tvm.runtime.tensor(found, tvm.cuda(0)), on_gpu.upload(expected))
    assert count == np.count_nonzero(expected.far(found)), dtype
compiled = GpuComparison._compile
GpuComparison._compile = lambda self, dtype: partial(without_tail, compiled(self, dtype))
try:
    expected, found = checked_values("float32")
    GpuComparison(TARGET, tvm.cuda(0)).count_far(None, on_gpu.upload(expected))
except RuntimeError as error:
    print(error)
"""

# Programs of `data * 2 + shift` with a fault, measured like any candidate.
FAULTS = """
import numpy as np, tvm
from tvm import te, tirx
from compiler.codegen.compilation import compile_scheduled
from compiler.measuring.builder import BuiltKernel
from compiler.measuring.expected import Expected
from compiler.measuring.runner import LocalRunner
from compiler.workload import to_json
from tests.gpu_programs import TARGET

SIZE = 20011

def program(fault, name="main", threads=0):
    data, shift = (te.placeholder((SIZE,), name=each) for each in ("data", "shift"))
    moved = te.compute((SIZE,), lambda i: fault(i, data[i] * 2.0 + shift[i]), name="moved")
    module = tvm.IRModule({"main": te.create_prim_func([data, shift, moved])})
    if threads:
        schedule = tvm.s_tir.Schedule(module)
        (loop,) = schedule.get_loops(schedule.get_sblock("moved"))
        block, thread = schedule.split(loop, [None, threads])
        schedule.bind(block, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
        module = schedule.mod
    return module["main"].with_attr("global_symbol", name)

choose = tirx.if_then_else
faults = {
    "main": lambda i, value: value,
    "close": lambda i, value: value * 1.0000001,
    "nan": lambda i, value: choose(i == 7, tirx.sqrt(tirx.const(-1.0) - value * value), value),
    "one": lambda i, value: choose(i == 11234, value + 0.125, value),
    "tail": lambda i, value: choose(i < SIZE - SIZE % 128, value, 0.0),
    "last": lambda i, value: choose(i < SIZE - 1, value, value * 1.01),
}
runner = LocalRunner(str(TARGET))
module = to_json(tvm.IRModule({"main": program(faults["main"])}))
scheduled = tvm.IRModule({name: program(fault, name, 128) for name, fault in faults.items()})
library, _ = compile_scheduled(scheduled, TARGET, check_arguments=False)
copied = []
compare = Expected.difference
Expected.difference = lambda self, actual: copied.append(1) or compare(self, actual)
for name in faults:
    copied.clear()
    measured = runner.run(BuiltKernel(library, library[name], 0.0), module, ())
    print(name, measured.outcome, len(copied), measured.error)
# A candidate may write beyond its output, into the accepted values. The CPU's verdict counts.
operands = runner._operands(module)
damaged = dict(operands._accepted)
for one in damaged.values():
    one.greatest.copyfrom(np.full(SIZE, -(2**31), "int32"))
measured = runner.run(BuiltKernel(library, library["main"], 0.0), module, ())
print("damaged", measured.outcome, len(operands._accepted), measured.error)
"""


def printed(stand_in: StandIn, script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", "import sys\n" + script, *arguments]
    environment = {**os.environ, **stand_in.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow_lane(seconds=12)
def test_each_type_is_counted_as_on_the_cpu_and_a_miscounting_kernel_is_refused(stand_in: StandIn) -> None:
    types = ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool"]
    (refusal,) = printed(stand_in, EVERY_TYPE, *types)
    assert refusal.startswith("the GPU counts ")
    assert "where the CPU counts" in refusal


@pytest.mark.slow
def test_a_candidate_with_one_wrong_value_is_called_wrong_on_the_gpu(stand_in: StandIn) -> None:
    said = dict(line.split(" ", 1) for line in printed(stand_in, FAULTS))
    # Right programs are never copied to the CPU.
    assert said["main"] == said["close"] == "ok 0 "
    for name, wrong in {"nan": 1, "one": 1, "tail": 20011 % 128, "last": 1}.items():
        outcome, copies, error = said[name].split(" ", 2)
        assert (outcome, copies) == ("wrong_result", "2"), "it is tried again with new operands"
        assert error.startswith(f"output 2 of large values: {wrong} of 20011 values differ"), name
    assert said["damaged"].startswith("ok ")
