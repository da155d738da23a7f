"""Compiled models give what ONNX Runtime gives, whatever schedules they are compiled with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from compiler.artifact import build_library, build_module
from compiler.model import Model, extract_tasks, fuse, read_onnx, untuned
from compiler.workload import from_json
from tests.onnx_models import MODELS

TARGET = '{"kind":"llvm","num-cores":2}'


def _inputs(model: Model) -> list[NDArray[Any]]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in model.inputs]


def _run(library: bytes, inputs: list[NDArray[Any]], folder: Path) -> list[NDArray[Any]]:
    path = folder / "model.so"
    path.write_bytes(library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(value) for value in inputs))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [part.numpy() for part in result]


def _reference(data: bytes, model: Model, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    named = {spec.name: value for spec, value in zip(model.inputs, inputs, strict=True)}
    return list(session.run(None, named))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_fused_model_gives_what_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    model = read_onnx(data, {})
    inputs = _inputs(model)
    outputs = _run(build_module(fuse(model, TARGET), {}, TARGET), inputs, tmp_path)
    expected = _reference(data, model, inputs)
    assert [spec.shape for spec in model.outputs] == [value.shape for value in expected]
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)
