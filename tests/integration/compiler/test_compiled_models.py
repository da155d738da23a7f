"""Compiled models agree with ONNX Runtime under any schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from compiler import fallback
from compiler.importing.model import RelaxModel, fuse, fuse_untuned, read_onnx
from compiler.packaging.artifact import build_library
from tests.compiled import build_module, load_main
from tests.marks import slow_lane_except
from tests.onnx_models import MODELS, Builder

TARGET = '{"kind":"llvm","num-cores":2}'


def _inputs(model: RelaxModel) -> list[NDArray[Any]]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in model.inputs]


def _run(library: Path, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    result = load_main(library)(*(tvm.runtime.tensor(value) for value in inputs))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [part.numpy() for part in result]


def _reference(data: bytes, model: RelaxModel, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    named = {spec.name: value for spec, value in zip(model.inputs, inputs, strict=True)}
    return list(session.run(None, named))


@pytest.mark.parametrize("name", slow_lane_except(sorted(MODELS), "residual"))
def test_a_fused_model_agrees_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    model = read_onnx(data, {})
    inputs = _inputs(model)
    build_module(fuse(model, TARGET), {}, TARGET, tmp_path / "model.so")
    outputs = _run(tmp_path / "model.so", inputs)
    expected = _reference(data, model, inputs)
    assert [spec.shape for spec in model.outputs] == [value.shape for value in expected]
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


def test_only_the_slow_loop_nests_of_an_untuned_model_are_scheduled(tmp_path: Path) -> None:
    b = Builder()
    weights = b.constant(np.random.default_rng(0).standard_normal((128, 128)).astype("float32"))
    product = b.op("MatMul", "input", weights)
    data = b.model({"input": [128, 128]}, {b.op("Softmax", product, axis=0): [128, 128]})
    model = read_onnx(data, {})
    untuned = fallback.schedule_slow(fuse_untuned(model, TARGET))
    kernels = {
        name.name_hint: function.script()
        for name, function in untuned.functions_items()
        if isinstance(function, PrimFunc)
    }
    assert {name: "T.parallel" in text for name, text in kernels.items()} == {
        "matmul": True,
        "softmax": False,
    }
    inputs = _inputs(model)
    build_library(untuned, TARGET, tmp_path / "model.so")
    (output,) = _run(tmp_path / "model.so", inputs)
    np.testing.assert_allclose(output, _reference(data, model, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_untuned_module_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    data = MODELS["residual"]()
    model = read_onnx(data, {})
    inputs = _inputs(model)
    build_library(fuse_untuned(model, TARGET), TARGET, tmp_path / "model.so")
    (output,) = _run(tmp_path / "model.so", inputs)
    np.testing.assert_allclose(output, _reference(data, model, inputs)[0], rtol=1e-4, atol=1e-5)


RUN = """
import sys
import numpy, tvm
from tvm.runtime.vm import VirtualMachine
assert "tvm.relax" not in sys.modules, "the compiler was imported"
machine = VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
numpy.save(sys.argv[3], machine["main"](tvm.runtime.tensor(numpy.load(sys.argv[2]))).numpy())
"""


@pytest.mark.slow
def test_tvms_runtime_alone_runs_a_library(tmp_path: Path) -> None:
    model = read_onnx(MODELS["residual"](), {})
    (data,) = _inputs(model)
    library, given, result = (tmp_path / name for name in ("model.so", "input.npy", "output.npy"))
    build_module(fuse(model, TARGET), {}, TARGET, library)
    np.save(given, data)
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    command = [sys.executable, "-c", RUN, str(library), str(given), str(result)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    (expected,) = _reference(MODELS["residual"](), model, [data])
    np.testing.assert_allclose(np.load(result), expected, rtol=1e-4, atol=1e-5)
