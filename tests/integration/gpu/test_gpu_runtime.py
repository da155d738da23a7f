"""tunefarm-runtime runs a GPU's model on the stand-in, and takes tensors that are on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import onnx_models
from tests.cuda_emulator.driver import StandIn

COMPILE = """
import sys
from pathlib import Path
from compiler.importing.model import fuse, read_onnx
from compiler.packaging.artifact import Manifest
from compiler.packaging.cuda import load_cuda
from tests.compiled import build_module
from tests.devices import GPU

model, folder = read_onnx(Path(sys.argv[1]).read_bytes(), {}), Path(sys.argv[2])
load_cuda()
folder.mkdir()
build_module(fuse(model, GPU.target), {}, GPU.target, folder / "model.so")
manifest = Manifest("net", "sha", GPU.target, "gpu", model.inputs, model.outputs, 1, {}, 0.0)
(folder / "manifest.json").write_text(manifest.to_json())
"""
RUN = """
import sys
import numpy as np, tunefarm_runtime
from tunefarm_runtime import InferenceSession, RunError

class FromElsewhere:
    # An array of CuPy, PyTorch or JAX: DLPack, on the GPU.
    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), f"other.{tensor.dtype}"
    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)
    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

model = tunefarm_runtime.load(sys.argv[1])
assert "tvm" not in sys.modules
x = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
w = np.load(sys.argv[2])
once = np.maximum(x @ w, 0)
twice = np.maximum(once @ w, 0)

(y,) = model(x)
assert y.__dlpack_device__() == (2, 0), "outputs stay on the GPU"
np.testing.assert_allclose(model.to_numpy([y])[0], once, rtol=1e-4, atol=1e-5)
for tensor in (y, FromElsewhere(y)):
    (z,) = model(tensor)
    np.testing.assert_allclose(model.to_numpy([z])[0], twice, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(model.to_numpy([y])[0], once, rtol=1e-4, atol=1e-5)

class OnTheCpu(FromElsewhere):
    def __init__(self, array):
        self.tensor, self.shape, self.dtype = array, array.shape, f"other.{array.dtype}"
(on_gpu,) = model(OnTheCpu(x))
np.testing.assert_allclose(model.to_numpy([on_gpu])[0], once, rtol=1e-4, atol=1e-5)
class OnAnother(OnTheCpu):
    def __dlpack_device__(self):
        return (2, 1)
try:
    model(OnAnother(x))
except RunError as error:
    assert "is on device (2, 1), and the model runs on (2, 0): copy it there" in str(error)
(session,) = InferenceSession(sys.argv[1]).run(None, {"input": x})
np.testing.assert_allclose(session, once, rtol=1e-4, atol=1e-5)
assert len(model.benchmark(seconds=0).call_s) == 10
"""


@pytest.mark.slow_lane(seconds=7)
def test_tensors_stay_on_the_gpu(stand_in: StandIn, tmp_path: Path) -> None:
    builder = onnx_models.Builder()
    weight = np.random.default_rng(1).standard_normal((16, 16), dtype=np.float32)
    np.save(tmp_path / "weight.npy", weight)
    model = tmp_path / "model.onnx"
    hidden = builder.op("Relu", builder.op("MatMul", "input", builder.constant(weight)))
    model.write_bytes(builder.model({"input": [8, 16]}, {hidden: [8, 16]}))
    environment = {**os.environ, **stand_in.environment}
    for program, last in ((COMPILE, tmp_path / "net"), (RUN, tmp_path / "weight.npy")):
        first = model if program is COMPILE else tmp_path / "net"
        command = [sys.executable, "-c", program, str(first), str(last)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
