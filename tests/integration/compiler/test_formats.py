"""Every format that models come in is recognised, imported, verified and compiled alike."""

from __future__ import annotations

import io
import json
import re
import tempfile
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from compiler.children.models import compile_untuned, import_model
from compiler.children.verification import Verification, verify_import
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.reading import read_model
from compiler.importing.formats.tvm_module import to_json
from compiler.importing.spec import ModelError, NoReference
from compiler.verifying.imported import Imported, verify_file
from tests.marks import slow_lane_except
from tests.models_by_format import (
    FORMATS,
    SIZE,
    WEIGHT,
    exported_program,
    onnx_archive,
    prim_func,
    tvm_module,
)

TARGET = '{"kind":"llvm","num-cores":1}'


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> str:
    return str(request.param)


EACH_IN_A_CHILD = pytest.mark.parametrize("format_", slow_lane_except(FORMATS, "onnx"))


def test_every_format_computes_the_same(format_: str) -> None:
    file = read_model(FORMATS[format_]().data, {})
    (spec,) = file.inputs
    assert (spec.shape, spec.dtype) == ((1, SIZE), "float32")
    x = np.linspace(-1, 1, SIZE, dtype=np.float32).reshape(1, SIZE)
    (found,) = Imported(file.to_relax(), TARGET).compute({spec.name: x}).values()
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHT, 0), rtol=1e-3, atol=1e-3)


@EACH_IN_A_CHILD
def test_every_format_is_mapped_from_a_file_and_compiled_in_a_child(format_: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(FORMATS[format_]().data)
        file.flush()
        library = io.BytesIO()
        imported = compile_untuned(file, {}, TARGET, library)
        assert [task.weight for task in imported.tasks] == [1]
        assert library.getvalue().startswith(b"\x7fELF")
        assert imported == import_model(file, {}, TARGET)


@EACH_IN_A_CHILD
def test_every_format_is_verified_or_says_why_not(format_: str) -> None:
    sample = FORMATS[format_]()
    if format_ == "tflite":
        pytest.importorskip("ai_edge_litert")
    assert verify_import(sample.data, {}, TARGET) == Verification(
        "" if sample.verified else "a TVM module is defined by TVM alone"
    )


def test_a_file_with_fixed_shapes_takes_no_other_shape(format_: str) -> None:
    data = FORMATS[format_]().data
    name = read_model(data, {}).inputs[0].name
    with pytest.raises(ModelError, match="shape"):
        read_model(data, {name: (2, SIZE)})
    with pytest.raises(ModelError, match="no input 'nobody'"):
        read_model(data, {"nobody": (2, SIZE)})


def test_a_damaged_file_is_a_model_error(format_: str) -> None:
    data = FORMATS[format_]().data
    for end in (len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(ModelError):
            read_model(data[:end], {}).to_relax()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"other.bin": b""}, "is in the file 'weights.bin', which wasn't sent"),
        ({"weights.bin": bytes(100)}, "should be 1440000 bytes from byte 64"),
    ],
)
def test_weights_that_are_missing_are_named(files: dict[str, bytes], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_model(onnx_archive(files).data, {})


def test_a_tir_function_is_a_model() -> None:
    file = read_model(to_json(prim_func()).encode(), {})
    x = np.ones((1, SIZE), np.float32)
    (found,) = Imported(file.to_relax(), TARGET).compute({file.inputs[0].name: x}).values()
    np.testing.assert_allclose(found, np.full((1, SIZE), SIZE / 2), rtol=1e-5)


def _with(change: Any) -> bytes:
    graph = json.loads(tvm_module().data)
    change(graph["nodes"])
    return json.dumps(graph).encode()


def _calls_out(nodes: list[Any]) -> None:
    next(node for node in nodes if node["type"] == "ir.Op")["data"] = "relax.call_pure_packed"


def _is_extern(nodes: list[Any]) -> None:
    nodes.append({"type": "relax.expr.ExternFunc", "data": {"global_symbol": 0}})


def _brings_code(nodes: list[Any]) -> None:
    nodes += [{"type": "ffi.String", "data": "external_mods"}]
    nodes += [{"type": "ffi.Map", "data": [len(nodes) - 1, 0]}]
    nodes += [{"type": "ir.DictAttrs", "data": {"__dict__": len(nodes) - 1}}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_calls_out, "calls 'relax.call_pure_packed'"),
        (_is_extern, "contains a relax.expr.ExternFunc"),
        (_brings_code, "annotation 'external_mods'"),
        (lambda nodes: nodes.clear(), "TVM module"),
        (lambda nodes: nodes.append(7), "no TVM module"),
    ],
)
def test_a_tvm_module_only_computes(change: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_model(_with(change), {})


def test_a_tir_function_that_calls_or_is_scheduled_is_refused() -> None:
    x = te.placeholder((4,), name="x")
    calls = te.create_prim_func(
        [x, te.compute((4,), lambda i: tvm.tirx.call_extern("float32", "system", x[i]))]
    )
    with pytest.raises(ModelError, match=r"calls 'tirx.call_(pure_)?extern'"):
        read_model(to_json(calls).encode(), {})
    schedule = tvm.s_tir.Schedule(prim_func())
    schedule.parallel(schedule.get_loops(schedule.get_sblock("T_matmul"))[0])
    with pytest.raises(ModelError, match="scheduled already"):
        read_model(to_json(schedule.mod).encode(), {})


def _repacked(data: bytes, changes: dict[str, Any]) -> bytes:
    """Return a zip with changed parts; a function changes a part that is JSON."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        folder = old.namelist()[0].partition("/")[0]
        for info in old.infolist():
            change = changes.pop(info.filename.partition("/")[2], None)
            content = old.read(info)
            new.writestr(
                info.filename, content if change is None else json.dumps(change(json.loads(content)))
            )
        for name, content in changes.items():
            new.writestr(f"{folder}/{name}", content)
    return buffer.getvalue()


def _renamed(old: str, new: str) -> Any:
    return lambda part: json.loads(json.dumps(part).replace(old, new))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"models/model.json": _renamed("torch.ops.aten.relu.default", "torch.os.system")},
            "'torch.os.system'",
        ),
        (
            {"models/model.json": _renamed("torch.ops.aten.relu.default", "torch.ops.aten.from_file.out")},
            "from_file",
        ),
        (
            {"models/model.json": _renamed('"as_int": 1}', '"as_expr": {"expr_str": "exit()"}}')},
            "dynamic dimension 'exit",
        ),
        ({"models/model.json": lambda part: {**part, "guards_code": ["exit()"]}}, "condition 'exit"),
        (
            {"data/weights/model_weights_config.json": _renamed('"use_pickle": false', '"use_pickle": true')},
            "pickled",
        ),
        ({"data/constants/custom_obj_0": b"pickled"}, "part 'data/constants/custom_obj_0'"),
        ({"data/constants/opaque_obj_0": b"pickled"}, "part 'data/constants/opaque_obj_0'"),
        ({"data/weights/model.pt": b"pickled"}, "part 'data/weights/model.pt'"),
    ],
)
def test_an_exported_program_runs_nothing_of_its_own(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_model(_repacked(exported_program().data, changes), {})


def _in_node(change: Any) -> Any:
    """Change the last node of the graph. `change` takes its description."""

    def changed(part: Any) -> Any:
        change(part["graph_module"]["graph"]["nodes"][-1])
        return part

    return changed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"models/model.json": lambda part: {**part, "schema_version": None}}, "a part of its description"),
        ({"models/model.json": lambda _: []}, "a part of its description is missing or of a wrong kind"),
        (
            {"models/model.json": _in_node(lambda node: node.update(inputs=None))},
            r"its node that calls 'torch.ops.aten.relu.default' has missing or wrong inputs",
        ),
        (
            {"models/model.json": _in_node(lambda node: node["inputs"][0].pop("name"))},
            "a part of its description is missing",
        ),
        (
            {"data/weights/model_weights_config.json": _renamed('"weight_0"', '"weight_7"')},
            "its part data/weights/weight_7 is missing",
        ),
    ],
)
def test_a_damaged_exported_program_is_refused_in_plain_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as raised:
        read_model(_repacked(exported_program().data, dict(changes)), {})
    assert not re.search("__|object|attribute '|argument|INTERNAL|warnings above|codec", str(raised.value))


def test_a_program_that_pytorch_refuses_has_no_reference() -> None:
    file = read_model(exported_program().data, {})
    assert isinstance(file, ExportedProgram)
    with pytest.raises(NoReference, match="PyTorch can't run it"):
        file.compute({"x": np.zeros((1, SIZE + 1), np.float32)})


def test_example_inputs_that_are_code_are_not_run() -> None:
    """PyTorch unpickles them, but nothing except tensors and containers."""
    torch = pytest.importorskip("torch")

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return exec, ("raise SystemExit('it ran')",)

    buffer = io.BytesIO()
    torch.save(((Bomb(),), {}), buffer)
    data = exported_program().data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, buffer.getvalue() if "sample_inputs" in name else content)
    with pytest.raises(ModelError, match="can't load the exported program"):
        read_model(changed.getvalue(), {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_exported_program_may_be_narrow(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        torch.nn.Conv1d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(18, 4), torch.nn.LayerNorm(4)
    )
    wanted = getattr(torch, dtype)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = (torch.zeros(1, 2, 8, dtype=wanted),)
        torch.export.save(torch.export.export(network.to(wanted).eval(), example), buffer)
    file = read_model(buffer.getvalue(), {})
    assert file.to_relax().outputs[0].dtype == dtype
    assert len(list(verify_file(file, TARGET, TARGET))) > 1
