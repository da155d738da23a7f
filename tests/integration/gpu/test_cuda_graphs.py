"""A model's calls with static shapes are captured as a CUDA graph, which later calls launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import onnx_models
from tests.cuda_emulator.driver import StandIn

RUN = """
import sys
from pathlib import Path
import numpy as np, tvm
from tvm import relax
from compiler.importing.model import fuse, fuse_untuned, read_onnx
from compiler.packaging.artifact import build_library
from compiler.packaging.cuda import load_cuda
from tests.compiled import build_module
from tests.devices import GPU

model = read_onnx(Path(sys.argv[1]).read_bytes(), {})
load_cuda()
inputs = [np.random.default_rng(seed).standard_normal((8, 16)).astype("float32") for seed in (0, 1, 0)]
reference = relax.VirtualMachine(relax.build(fuse(model, GPU.target), tvm.target.Target("llvm")), tvm.cpu())
paths = [Path(sys.argv[2]) / name for name in ("tuned.so", "untuned.so")]
build_module(fuse(model, GPU.target), {}, GPU.target, paths[0])
build_library(fuse_untuned(model, GPU.target), GPU.target, paths[1])
for path in paths:
    assert b"vm.builtin.cuda_graph.run_or_capture" in path.read_bytes()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cuda(0))
    for one in inputs:
        found = machine["main"](tvm.runtime.tensor(one, tvm.cuda(0))).numpy()
        expected = reference["main"](tvm.runtime.tensor(one)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow_lane(seconds=7)
def test_a_model_runs_from_its_graph_with_other_inputs(stand_in: StandIn, tmp_path: Path) -> None:
    builder = onnx_models.Builder()
    hidden = "input"
    for _ in range(3):
        hidden = builder.op("Relu", builder.op("Gemm", hidden, builder.weight(16, 16), builder.weight(16)))
    model = tmp_path / "model.onnx"
    model.write_bytes(builder.model({"input": [8, 16]}, {builder.op("Softmax", hidden, axis=-1): [8, 16]}))
    command = [sys.executable, "-c", RUN, str(model), str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, **stand_in.environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
