"""`tunefarm_runtime.InferenceSession` has what programs use of `onnxruntime`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tunefarm_runtime
from numpy.typing import NDArray
from onnx import TensorProto
from tunefarm_runtime import InferenceSession, LoadError, RunError

import tunefarm
from tests.compiled_models import compile_model, elementwise
from tests.onnx_models import residual

Array = NDArray[Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_model(residual(), tmp_path_factory.mktemp("compiled") / "residual")


@pytest.fixture
def image() -> Array:
    return np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)


def test_the_session_answers_as_onnxruntimes(folder: Path, image: Array) -> None:
    peer = onnxruntime.InferenceSession(residual(), providers=["CPUExecutionProvider"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(folder, options, providers=["CPUExecutionProvider"])
    for own, other in (
        (session.get_inputs(), peer.get_inputs()),
        (session.get_outputs(), peer.get_outputs()),
    ):
        assert [(one.name, one.shape, one.type) for one in own] == [
            (one.name, one.shape, one.type) for one in other
        ]
    expected = peer.run(None, {"input": image})[0]
    np.testing.assert_allclose(session.run(None, {"input": image})[0], expected, rtol=1e-4, atol=1e-5)
    binding, place = session.io_binding(), np.empty((1, 10), np.float32)
    with pytest.raises(RunError, match="call run_with_iobinding first"):
        binding.copy_outputs_to_cpu()
    binding.bind_cpu_input("input", image)
    binding.bind_output(session.get_outputs()[0].name, "cpu", 0, np.float32, place.shape, place.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(place, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(RunError, match="has no output nothing"):
        session.run(["nothing"], {"input": image})
    assert tunefarm.InferenceSession is InferenceSession


def test_several_outputs_are_chosen_by_name(tmp_path: Path) -> None:
    session = InferenceSession(
        compile_model(elementwise("Neg", TensorProto.FLOAT, outputs=2), tmp_path / "two")
    )
    x = np.ones((2, 3), np.float32)
    assert [len(session.run(names, {"x": x})) for names in (None, ["y1"], ["y1", "y0"])] == [2, 1, 2]
    np.testing.assert_array_equal(session.run(["y1"], {"x": [[1.0] * 3] * 2 and x})[0], -x)


@pytest.mark.parametrize("runtime", [onnxruntime, tunefarm_runtime], ids=["onnxruntime", "tunefarm_runtime"])
def test_a_program_for_onnxruntime_needs_another_import_and_path(
    runtime: Any, folder: Path, image: Array, tmp_path: Path
) -> None:
    """Run a typical program with both libraries."""
    model = tmp_path / "residual.onnx"
    model.write_bytes(residual())
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = str(model if runtime is onnxruntime else folder)
    providers = runtime.get_available_providers()
    session = runtime.InferenceSession(path, sess_options=options, providers=providers)
    assert set(session.get_providers()) <= set(providers)
    [name] = (one.name for one in session.get_inputs())
    [output] = (one.name for one in session.get_outputs())
    expected = session.run(None, {name: image})[0]
    for names in ([], [output], None):
        np.testing.assert_array_equal(session.run(names, {name: image}, None)[0], expected)
    binding, place = session.io_binding(), np.empty((1, 10), np.float32)
    shape, address = tuple(image.shape), image.ctypes.data
    binding.bind_input(name, "cpu", 0, np.float32, shape, address)
    binding.bind_output(output, "cpu", 0, np.float32, place.shape, place.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place, expected)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_cpu_input(name, image)
    binding.bind_output(output)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    assert runtime.__version__


def test_an_invalid_binding_is_refused(folder: Path, image: Array) -> None:
    session = InferenceSession(folder)
    binding = session.io_binding()
    binding.bind_cpu_input("input", image)
    with pytest.raises(RunError, match="no output is bound: call bind_output first"):
        session.run_with_iobinding(binding)
    [output] = (one.name for one in session.get_outputs())
    with pytest.raises(RunError, match="can't be bound on cuda: bind it on the CPU"):
        binding.bind_output(output, "cuda")
    place = np.empty((2, 10), np.float32)
    binding.bind_output(output, "cpu", 0, np.float32, place.shape, place.ctypes.data)
    with pytest.raises(RunError, match=r"of the shape \(1, 10\), and was bound to float32 of \(2, 10\)"):
        session.run_with_iobinding(binding)


def test_dimensions_of_several_sizes_are_open(tmp_path: Path) -> None:
    for rows in (2, 4):
        compile_model(elementwise("Neg", TensorProto.FLOAT, (rows, 3)), tmp_path / "sizes" / str(rows))
    session = InferenceSession(tmp_path / "sizes")
    assert [one.shape for one in (*session.get_inputs(), *session.get_outputs())] == [[None, 3]] * 2
    for rows in (2, 4):
        assert session.run(None, {"x": np.ones((rows, 3), np.float32)})[0].shape == (rows, 3)


def test_the_bytes_or_the_file_of_a_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(residual())
    with pytest.raises(LoadError, match="run `tunefarm tune "):
        InferenceSession(tmp_path / "net.onnx")
    with pytest.raises(LoadError, match="not bytes"):
        InferenceSession(residual())  # type: ignore[arg-type]
