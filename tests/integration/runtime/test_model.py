"""tunefarm-runtime runs compiled models, and rejects what it can't run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm_ffi
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tunefarm_runtime import LoadError, NoSuchSize, RunError, load, manifest

from tests.compiled_models import compile_model, elementwise
from tests.onnx_models import residual
from tunefarm.comparison.contestants import aligned

Array = NDArray[Any]


def subtraction() -> bytes:
    """a - b, with inputs named like Python parameters."""
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
    """The same values at an unaligned address."""
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
def test_outputs_equal_onnxruntimes_for_inputs_in_any_memory(
    placed: Callable[[Array], Any], folder: Path, image: Array
) -> None:
    (found,) = load(folder)(placed(image))
    np.testing.assert_allclose(found, by_onnxruntime(residual(), {"input": image})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placed", [shifted, np.asfortranarray, lambda array: OnlyDLPack(shifted(array))])
def test_tvm_raises_nothing_for_an_input_that_is_copied(
    placed: Callable[[Array], Any], folder: Path, image: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of TVM's reads the symbols of all loaded libraries, which takes longer than most models."""
    raised: list[Exception] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return from_dlpack(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    from_dlpack = tvm_ffi.from_dlpack
    monkeypatch.setattr(tvm_ffi, "from_dlpack", watched)
    load(folder)(placed(image))
    assert not raised


def test_an_input_on_a_gpu_is_refused(folder: Path, image: Array) -> None:
    class OnGpu(OnlyDLPack):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(RunError, match=r"is on device \(2, 0\), and the model runs on \(1, 0\): copy it"):
        load(folder)(OnGpu(image))


def test_a_read_only_input_is_run(folder: Path, image: Array) -> None:
    image.flags.writeable = False
    (found,) = load(folder)(image)
    np.testing.assert_allclose(found, by_onnxruntime(residual(), {"input": image})[0], rtol=1e-4, atol=1e-5)


def test_inputs_are_given_by_position_or_name(tmp_path: Path) -> None:
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
def test_each_element_type_is_read_and_returned(kind: str, dtype: str, tmp_path: Path) -> None:
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


def test_a_benchmark_has_a_time_for_each_call(folder: Path) -> None:
    timing = load(folder).benchmark(seconds=0.01)
    assert len(timing.call_s) >= 10
    assert min(timing.call_s) <= timing.median_s <= max(timing.call_s)
    assert timing.percentile_s(10) <= timing.percentile_s(90)
    assert str(len(timing.call_s)) in str(timing)


def test_tvms_compiler_is_never_loaded(folder: Path) -> None:
    """Uses a separate process, because the tests have loaded TVM."""
    program = f"""
import sys, numpy, tunefarm_runtime
model = tunefarm_runtime.load({str(folder)!r}, threads=1)
model(numpy.zeros((1, 3, 8, 8), "float32"))
assert "tvm" not in sys.modules
assert "libtvm_compiler" not in open("/proc/self/maps").read()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
def test_a_library_with_amx_asks_linux_for_permission(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [*json.loads((folder / "manifest.json").read_text())["instructions"], "amx_tile"]
    monkeypatch.setattr(manifest, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t: {' '.join(here)}\n")
    amx = changed(folder, tmp_path / "amx", instructions=here)
    # Linux knows no state of this number.
    monkeypatch.setattr(manifest, "REQUEST_TILES", (*manifest.REQUEST_TILES[:2], 63))
    with pytest.raises(
        LoadError, match=r"uses AMX, and Linux doesn't let this process use it \(.+\): update"
    ):
        load(amx)
    monkeypatch.setattr(manifest, "_libc", SimpleNamespace(syscall=lambda *_: 0))
    load(amx)


def test_a_model_for_another_machine_is_refused(folder: Path, tmp_path: Path) -> None:
    target = json.dumps({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})
    with pytest.raises(LoadError, match="was compiled for riscv64, and this machine is"):
        load(changed(folder, tmp_path / "other", target=target))
    for name, fields in (
        ("no inputs", {"inputs": None}),
        ("no target", {"target": "{"}),
        ("words", {"threads": "two"}),
        ("none", {"threads": 0}),
        ("endless", {"threads": float("inf")}),
        ("long", {"outputs": [{"name": "y", "shape": [float("inf")], "dtype": "float32"}]}),
        ("negative", {"inputs": [{"name": "x", "shape": [-1], "dtype": "float32"}]}),
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


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("nowhere", "doesn't exist: name the folder"),
        ("empty", "holds no compiled model: name a folder"),
        ("compiled/model.so", "is part of a compiled model: load its folder, .*compiled"),
        ("compiled/manifest.json", "is part of a compiled model: load its folder"),
        ("net.onnx", r"is no compiled model: run `tunefarm tune .*net\.onnx`, and load the folder"),
        ("artifact.tar", "is an archive: unpack it"),
    ],
)
def test_the_error_for_another_path_says_what_to_load(
    named: str, why: str, folder: Path, tmp_path: Path
) -> None:
    changed(folder, tmp_path / "compiled")
    (tmp_path / "empty").mkdir()
    for name in ("net.onnx", "artifact.tar"):
        (tmp_path / name).touch()
    with pytest.raises(LoadError, match=why):
        load(tmp_path / named)


def test_bytes_of_a_model_are_refused() -> None:
    with pytest.raises(LoadError, match="takes the folder that tunefarm has written, not bytes"):
        load(residual())  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [">f4", "float16", "int32", "complex64", "object"])
def test_other_element_types_are_refused(odd: str, folder: Path, image: Array) -> None:
    with pytest.raises(RunError, match=r"input input is .*, and the model takes float32: convert it first"):
        load(folder)(image.astype(odd))


def test_inputs_without_elements_are_refused_by_their_shape(folder: Path) -> None:
    with pytest.raises(NoSuchSize, match=r"has the shape \(0, 3, 8, 8\)"):
        load(folder)(np.zeros((0, 3, 8, 8), np.float32))


def test_a_scalar_is_an_array(tmp_path: Path) -> None:
    model = load(compile_model(elementwise("Neg", TensorProto.FLOAT, ()), tmp_path / "scalar"))
    for value in (np.float32(3), np.array(3, np.float32)):
        (found,) = model(value)
        assert (found.shape, float(found)) == ((), -3.0)


def test_strided_and_reversed_inputs_are_read_as_numpy_does(folder: Path, image: Array) -> None:
    model = load(folder)
    wide = np.zeros((1, 3, 8, 16), np.float32)
    wide[..., ::2] = image
    (expected,) = model(image)
    np.testing.assert_array_equal(model(wide[..., ::2])[0], expected)
    np.testing.assert_array_equal(model(image[..., ::-1].copy()[..., ::-1])[0], expected)


@pytest.mark.parametrize("placed", [np.copy, shifted, aligned], ids=["copied", "unaligned", "aligned"])
def test_an_input_that_is_returned_is_copied(placed: Callable[[Array], Array], tmp_path: Path) -> None:
    model = load(compile_model(elementwise("Identity", TensorProto.FLOAT), tmp_path / "net"))
    x = placed(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    (first,) = model(x)
    (second,) = model(x + 1)
    x[...] = 0
    np.testing.assert_array_equal(first, [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(second, first + 1)


def test_outputs_can_be_written(folder: Path, image: Array) -> None:
    model = load(folder)
    (found,) = model(image)
    before = found.copy()
    found += 1
    np.testing.assert_array_equal(found, before + 1)
    np.testing.assert_array_equal(model(image)[0], before)


def test_an_installed_pytorch_is_imported_by_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n")
    program = "\n".join(
        [
            "import sys, tunefarm_runtime",
            "assert 'torch' not in sys.modules",
            "import torch",
            "assert torch.__version__ == '2.13.0'",
        ]
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
