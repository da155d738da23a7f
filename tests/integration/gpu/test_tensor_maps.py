"""TVM's host code encodes tensor maps and passes them to kernels. CUDA graphs keep them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_emulator.driver import StandIn

RUN = """
import sys
from pathlib import Path
import numpy as np, tvm
from tvm import relax, te
from compiler.lowering.trace import apply_trace, lower
from compiler.packaging.artifact import build_scheduled
from compiler.packaging.cuda import load_cuda
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.hopper import HOPPER
from tests.suite import Case

case = Case("GMM", (64, 64, 256), dtype="float16")
module = case.module()
sketch = next(one for one in generate(read_dag(module), HOPPER) if one.of_kind(StageKind.WARPGROUPS))
tile = {"warpgroups": 1, "columns": 64, "depth": 64, "stages": 3, "tensor maps": 1}
product = apply_trace(module, lower(module, choose(sketch, tile), HOPPER))["main"]
types = [relax.TensorType((1, 64, 256), "float16"), relax.TensorType((1, 64, 64), "float32")]


def doubled(shape, dtype):
    given = te.placeholder(shape, dtype)
    return te.create_prim_func([given, te.compute(shape, lambda *at: given[at] + given[at])])


first, second, _ = case.arguments()
builder = relax.BlockBuilder()
data = relax.Var("data", types[0])
with builder.function("main", [data]):
    with builder.dataflow():
        before, after = (doubled([int(n) for n in one.shape], one.dtype) for one in types)
        named = {"before": before, "product": product, "after": after}
        names = [builder.add_func(one.without_attr("global_symbol"), name) for name, one in named.items()]
        # The graph has neither what reads the input nor what writes the output.
        twice = builder.emit(relax.call_tir(names[0], (data,), types[0]))
        summed = builder.emit(relax.call_tir(names[1], (twice, relax.const(second)), types[1]))
        result = builder.emit_output(relax.call_tir(names[2], (summed,), types[1]))
    builder.emit_func_output(result)
load_cuda()
library = Path(sys.argv[1]) / "model.so"
build_scheduled(builder.get(), HOPPER.target, library)
assert b"vm.builtin.cuda_graph.run_or_capture" in library.read_bytes()
machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cuda(0))
for one in (first, -first, first):
    found = machine["main"](tvm.runtime.tensor(one, tvm.cuda(0))).numpy()
    assert case.difference(found, case.reference([4 * one, second])) == ""
"""


@pytest.mark.slow_lane(seconds=15)
def test_the_runtime_encodes_tensor_maps(stand_in: StandIn, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, **stand_in.environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
