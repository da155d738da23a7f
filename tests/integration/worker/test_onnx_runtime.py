"""A worker's child times users' ONNX models in ONNX Runtime, in the same sandbox as candidates."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import onnx.external_data_helper
import pytest
from onnx import TensorProto, helper

from compiler.importing.formats.reading import read_model
from compiler.importing.spec import Shape
from compiler.measuring import whole_models
from compiler.measuring.whole_models import OnnxRuntimeTimer
from core.lease import Limits
from core.measurement import Measurement, Outcome
from tests.onnx_models import Builder, residual
from worker.runner.executor import ChildConfig, Executor

pytest.importorskip("onnxruntime")
STABLEHLO = b"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def _measured(model: Path, **shapes: list[int]) -> Measurement:
    async def work() -> Measurement:
        executor = Executor(ChildConfig(2), os.environ)
        try:
            measurement = await executor.measure_onnx(model, Limits(), json.dumps(shapes))
            assert executor.sandbox_gaps == () or os.getuid(), "it is contained as candidates are"
            return measurement
        finally:
            await executor.close()

    return asyncio.run(work())


def _archive(folder: Path) -> bytes:
    """A model with its weights in another file, archived as by the client."""
    b = Builder()
    result = b.op("MatMul", "input", b.constant(np.ones((64, 64), np.float32)))
    proto = onnx.load_from_string(b.model({"input": [1, 64]}, {result: [1, 64]}))
    onnx.external_data_helper.convert_model_to_external_data(proto, location="weights", size_threshold=0)
    onnx.save(proto, folder / "net.onnx")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("net.onnx", "weights"):
            tar.add(folder / name, name)
    return data.getvalue()


def _unknown_operator() -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_a_model_with_dynamic_shapes_is_timed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(residual(batch="n"))
    measurement = _measured(model, input=[2, 3, 8, 8])
    assert measurement.outcome is Outcome.OK, measurement.error
    assert len(measurement.run_s) > 1


@pytest.mark.slow
def test_weights_in_other_files_are_found(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(_archive(tmp_path))
    measurement = _measured(model)
    assert measurement.outcome is Outcome.OK, measurement.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_unknown_operator(), "Frobnicate"),
        (STABLEHLO, "no ONNX model"),
        (residual(batch="n"), "input"),
        (b"nothing", "can't be read"),
    ],
    ids=["an operator that it lacks", "another format", "a shape that nobody gave", "no model"],
)
def test_an_unsupported_model_is_reported(tmp_path: Path, data: bytes, says: str) -> None:
    model = tmp_path / "model"
    model.write_bytes(data)
    measurement = _measured(model)
    assert measurement.outcome is Outcome.RUN_ERROR
    assert says in measurement.error


def test_later_turns_do_not_read_the_model_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[dict[str, Shape]] = []

    def counted(model: IO[bytes], shapes: Mapping[str, Shape]) -> Any:
        read.append(dict(shapes))
        return read_model(model, shapes)

    monkeypatch.setattr(whole_models, "read_model", counted)
    model, link = tmp_path / "model", tmp_path / "link"
    model.write_bytes(residual(batch="n"))
    link.hardlink_to(model)  # each turn gets a new link
    timer = OnnxRuntimeTimer(1)

    def outcome(file: Path, batch: int) -> Outcome:
        with file.open("rb") as opened:
            return timer.time(opened, {"input": (batch, 3, 8, 8)}).outcome

    assert outcome(model, 1) is outcome(link, 1) is Outcome.OK
    assert read == [{"input": (1, 3, 8, 8)}]
    assert outcome(link, 2) is Outcome.OK
    assert len(read) == 2, "other shapes need other inputs"
    model.unlink()
    model.write_bytes(residual(batch="n", size=16))
    assert outcome(model, 2) is Outcome.RUN_ERROR
    assert len(read) == 3, "another file is another model"
