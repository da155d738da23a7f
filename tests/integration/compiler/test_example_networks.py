"""The example networks are imported completely: every subgraph is a task, and the outputs are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto

from benchmarks.timing.deviation import random_inputs
from compiler.importing.model import extract_tasks, fuse, import_file, read_onnx
from compiler.importing.onnx_file import read_file
from compiler.verifying.imported import verify
from examples import make_models
from examples.quantization import narrowed
from tests.compiled import build_module, load_main
from tests.marks import slow_lane_except

TARGET = '{"kind":"llvm","num-cores":2}'


@pytest.mark.slow
@pytest.mark.parametrize("network", slow_lane_except(sorted(make_models.NETWORKS), "resnet18", "bert_base"))
def test_a_tiny_network_agrees_with_onnx_runtime(network: str, tmp_path: Path) -> None:
    data = make_models.make(network, tiny=True).SerializeToString()
    model = read_onnx(data, {})
    fused = fuse(model, TARGET)
    tasks = extract_tasks(fused)
    assert any("conv2d" in task.name or "matmul" in task.name for task in tasks)
    path = tmp_path / "model.so"
    build_module(fused, {}, TARGET, path)
    inputs = random_inputs([(spec.shape, spec.dtype) for spec in model.inputs], seed=1)
    result = load_main(path)(*(tvm.runtime.tensor(array) for array in inputs))
    outputs = [result] if len(model.outputs) == 1 else list(result)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    named = {spec.name: array for spec, array in zip(model.inputs, inputs, strict=True)}
    for output, expected in zip(outputs, session.run(None, named), strict=True):
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow_lane(seconds=5)
@pytest.mark.parametrize("element_type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("network", ["resnet18", "mobilenet_v2", "bert_base"])
def test_a_tiny_network_in_half_precision_is_imported_rightly(network: str, element_type: int) -> None:
    model = narrowed(make_models.make(network, tiny=True), element_type)
    file = read_file(model.SerializeToString(), {})
    imported = import_file(file)
    assert list(verify(file, imported, TARGET, TARGET))
    assert extract_tasks(fuse(imported, TARGET))
