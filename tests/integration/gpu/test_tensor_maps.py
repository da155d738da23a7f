"""TVM's host code encodes tensor maps and passes them to kernels, also to those of a CUDA graph."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cuda_emulator.driver import StandIn

RUN = """
import numpy as np, tvm
from compiler.codegen.compilation import compile_scheduled
from compiler.codegen.nvcc import register
from compiler.lowering.trace import apply_trace, lower
from compiler.packaging.cuda import load_cuda
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.hopper import HOPPER, TARGET
from tests.suite import Case

case = Case("GMM", (64, 64, 256), dtype="float16")
module = case.module()
sketch = next(one for one in generate(read_dag(module), HOPPER) if one.of_kind(StageKind.WARPGROUPS))
tile = {"warpgroups": 1, "columns": 64, "depth": 64, "stages": 3, "tensor maps": 1}
scheduled = apply_trace(module, lower(module, choose(sketch, tile), HOPPER))
load_cuda()
register()
library, _ = compile_scheduled(scheduled, TARGET)
kernel = library.jit()
*inputs, output = case.arguments()
arguments = [tvm.runtime.tensor(one, tvm.cuda(0)) for one in (*inputs, output)]
kernel["main"](*arguments)
assert case.difference(arguments[-1].numpy(), case.reference(inputs)) == ""
"""


@pytest.mark.slow_lane(seconds=15)
def test_the_runtime_encodes_tensor_maps(stand_in: StandIn) -> None:
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(
        command, env={**os.environ, **stand_in.environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
