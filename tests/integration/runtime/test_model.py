"""tunefarm-runtime runs what the compiler built, and refuses what it can't run."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tunefarm_runtime import InferenceSession, LoadError, NoSuchSize, RunError, load, manifest

import tunefarm
from tests.compiled_models import compile_model
from tests.onnx_models import residual

Array = NDArray[Any]


def elementwise(kind: str, dtype: int, shape: tuple[int, ...] = (2, 3), outputs: int = 1) -> bytes:
    """A model that computes `kind` of its input `x` once for each of its outputs."""
    nodes = [helper.make_node(kind, ["x"], [f"y{index}"]) for index in range(outputs)]
    values = [helper.make_tensor_value_info(f"y{index}", dtype, shape) for index in range(outputs)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, shape)], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def subtraction() -> bytes:
    """a - b, with inputs whose names Python could mistake for its own."""
    nodes = [helper.make_node("Sub", ["self", "b"], ["y"])]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8)) for name in ("self", "b", "y")
    }
    graph = helper.make_graph(nodes, "g", [values["self"], values["b"]], [values["y"]])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_model(residual(), tmp_path_factory.mktemp("compiled") / "residual")


@pytest.fixture
def image() -> Array:
    return np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)


def by_onnxruntime(model: bytes, feed: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(one) for one in session.run(None, feed)]


def shifted(array: Array) -> Array:
    """The same values at an address that no vector is aligned to."""
    buffer = np.empty(array.nbytes + 128, np.uint8)
    start = -buffer.ctypes.data % 64 + 4
    moved = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


class OnlyDLPack:
    """An array of another library: it has a shape, an element type and DLPack."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, f"other.{array.dtype}"

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "placed",
    [np.copy, shifted, np.asfortranarray, OnlyDLPack, lambda array: OnlyDLPack(shifted(array))],
    ids=["copied", "unaligned", "other order", "DLPack", "unaligned DLPack"],
)
def test_outputs_are_onnxruntimes_wherever_inputs_are(
    placed: Callable[[Array], Any], folder: Path, image: Array
) -> None:
    (found,) = load(folder)(placed(image))
    np.testing.assert_allclose(found, by_onnxruntime(residual(), {"input": image})[0], rtol=1e-4, atol=1e-5)


def test_a_read_only_input_is_run(folder: Path, image: Array) -> None:
    image.flags.writeable = False
    (found,) = load(folder)(image)
    np.testing.assert_allclose(found, by_onnxruntime(residual(), {"input": image})[0], rtol=1e-4, atol=1e-5)


def test_inputs_go_by_position_or_name(tmp_path: Path) -> None:
    model = load(compile_model(subtraction(), tmp_path / "sub"))
    a, b = np.full((4, 8), 5, np.float32), np.full((4, 8), 3, np.float32)
    for outputs in (model(a, b), model(a, b=b), model(b=b, self=a)):
        np.testing.assert_array_equal(outputs[0], np.full((4, 8), 2))
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: model(a), r"takes 2 inputs \(self, b\), not 1"),
        (lambda: model(a, c=b), "has no input c: its inputs are self, b"),
        (lambda: model(a, self=a), "has no input self"),
        (lambda: model(b=b), "also needs the input self"),
        (lambda: model(a, [1.0]), "input b is no array"),
        (lambda: model(a, b.astype(np.float64)), "input b is float64, and the model takes float32"),
    ]
    for call, why in calls:
        with pytest.raises(RunError, match=why):
            call()
    with pytest.raises(NoSuchSize, match=r"input b has the shape \(8, 4\), .* compiled for \(4, 8\)"):
        model(a, np.ones((8, 4), np.float32))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("Neg", "float32"),
        ("Neg", "float64"),
        ("Abs", "int8"),
        ("Abs", "int64"),
        ("Not", "bool"),
        ("Neg", "float16"),
    ],
)
def test_each_element_type_goes_in_and_comes_out(kind: str, dtype: str, tmp_path: Path) -> None:
    model = elementwise(kind, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    x = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype)
    (found,) = load(compile_model(model, tmp_path / "net"))(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, by_onnxruntime(model, {"x": x})[0])


def test_bfloat16_needs_ml_dtypes_alone(tmp_path: Path) -> None:
    import ml_dtypes

    model = load(compile_model(elementwise("Neg", TensorProto.BFLOAT16), tmp_path / "net"))
    x = np.array([[1.5, -2, 0.5]] * 2).astype(ml_dtypes.bfloat16)
    (found,) = model(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), -x.astype(np.float32))


def test_outputs_of_two_calls_share_no_memory(folder: Path, image: Array) -> None:
    model = load(folder)
    (first,) = model(image)
    kept = first.copy()
    model(image + 1)
    np.testing.assert_array_equal(first, kept)


def test_the_session_answers_as_onnxruntimes(tmp_path: Path, folder: Path, image: Array) -> None:
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
    binding.bind_output(session.get_outputs()[0].name, place)
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


def test_a_benchmark_has_a_time_for_each_call(folder: Path) -> None:
    timing = load(folder).benchmark(seconds=0.01)
    assert len(timing.secs) >= 10
    assert min(timing.secs) <= timing.median_s <= max(timing.secs)
    assert timing.percentile_s(10) <= timing.percentile_s(90)
    assert str(len(timing.secs)) in str(timing)


def test_tvms_compiler_is_never_loaded(folder: Path) -> None:
    """In a process of its own, since the tests have loaded TVM."""
    program = f"""
import sys, numpy, tunefarm_runtime
model = tunefarm_runtime.load({str(folder)!r}, threads=1)
model(numpy.zeros((1, 3, 8, 8), "float32"))
assert "tvm" not in sys.modules
assert "libtvm_compiler" not in open("/proc/self/maps").read()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_number_of_threads_is_checked(folder: Path) -> None:
    with pytest.raises(RunError, match="at least one thread, not 0"):
        load(folder, threads=0)


def changed(folder: Path, copy: Path, **fields: Any) -> Path:
    """A copy of a compiled model whose manifest has other fields."""
    copy.mkdir()
    (copy / "model.so").write_bytes((folder / "model.so").read_bytes())
    data = json.loads((folder / "manifest.json").read_text()) | fields
    (copy / "manifest.json").write_text(json.dumps(data))
    return copy


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
def test_a_machine_without_the_instructions_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = json.loads((folder / "manifest.json").read_text())["instructions"]
    assert "sse4_2" in here
    cpu_info = tmp_path / "cpuinfo"
    monkeypatch.setattr(manifest, "CPU_INFO", cpu_info)
    cpu_info.write_text(f"processor : 0\nflags\t: {' '.join(here)}\n")
    load(changed(folder, tmp_path / "same"))
    cpu_info.write_text(f"processor : 0\nflags\t: {' '.join(set(here) - {'sse4_2', 'popcnt'})}\n")
    with pytest.raises(LoadError, match=r"lacks \(popcnt, sse4_2\): tune the model for this machine"):
        load(changed(folder, tmp_path / "lacking"))


def test_what_is_not_for_this_machine_is_refused(folder: Path, tmp_path: Path) -> None:
    target = json.dumps({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})
    with pytest.raises(LoadError, match="was compiled for riscv64, and this machine is"):
        load(changed(folder, tmp_path / "other", target=target))
    for name, fields in (
        ("no inputs", {"inputs": None}),
        ("no target", {"target": "{"}),
        ("words", {"threads": "two"}),
    ):
        with pytest.raises(LoadError, match="is damaged or of another version"):
            load(changed(folder, tmp_path / name, **fields))
    broken = changed(folder, tmp_path / "broken")
    (broken / "model.so").write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(LoadError, match=r"model\.so can't be loaded"):
        load(broken)
    (broken / "model.so").unlink()
    with pytest.raises(LoadError, match=r"model\.so can't be loaded"):
        load(broken)
    with pytest.raises(LoadError, match="holds no compiled model"):
        load(tmp_path / "nowhere")
