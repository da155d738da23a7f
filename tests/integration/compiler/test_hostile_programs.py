"""Exported programs and StableHLO that contain code: no reader runs it."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.children.models import import_model
from compiler.importing.formats.reading import read_model
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.spec import ModelError, NoReference
from tests.models_by_format import exported_program

TARGET = '{"kind":"llvm","num-cores":1}'
MODEL = "models/model.json"
Change = Callable[[Any], Any]


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that a model's code would create, or the module `a_canary` when it is imported."""
    path = tmp_path / "canary"
    (tmp_path / "a_canary.py").write_text(f"open({str(path)!r}, 'w').close()\nclass A:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("a_canary", None)
    assert not path.exists(), "code of the model ran"


def changed(change: Change) -> bytes:
    """Return an exported program with a changed graph."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(exported_program().data)) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(MODEL):
                content = json.dumps(change(json.loads(content))).encode()
            new.writestr(info.filename, content)
    return made.getvalue()


def renamed(old: str, new: str) -> Change:
    """Rename a value everywhere, also as a key."""

    def rename(part: Any) -> Any:
        if isinstance(part, dict):
            return {new if key == old else key: rename(item) for key, item in part.items()}
        if isinstance(part, list):
            return [rename(item) for item in part]
        return new if part == old else part

    return rename


def calling(target: str, *inputs: tuple[str, dict[str, Any]]) -> Change:
    """Have the last node call something else."""

    def change(part: Any) -> Any:
        node = part["graph_module"]["graph"]["nodes"][-1]
        node["target"] = target
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in inputs]
        return part

    return change


def returning(kind: str, context: object) -> Change:
    """Have the program return a container whose description names a module."""

    def change(part: Any) -> Any:
        for call in part["graph_module"]["module_call_graph"]:
            call["signature"]["out_spec"] = container(kind, context)
        return part

    return change


def container(kind: str, context: object) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


CODE = "__import__('pathlib').Path({!r}).touch()"
ENUM = json.dumps({"__enum__": True, "fqn": "a_canary:A", "name": "B"})
FACTORY = {"default_factory_module": "a_canary", "default_factory_name": "A", "dict_context": []}
MATMUL = {"as_tensor": {"name": "matmul"}}
ATTACKS: dict[str, tuple[Callable[[str], Change], str]] = {
    "an input's name": (lambda code: renamed("x", f"x={code}"), "has a name"),
    "a weight's name": (lambda code: renamed("p_weight", f"p_weight={code}"), "has a name"),
    "a weight's path": (lambda code: renamed("weight", f"w');{code}#"), "has a name"),
    "a node's name": (lambda code: renamed("relu", f"a;{code};b"), "has a name"),
    "an argument's name": (
        lambda code: calling("torch.ops.aten.relu.default", (f"a={code}, b", MATMUL)),
        "has a name",
    ),
    "a dictionary of a module's enum": (lambda code: returning("builtins.dict", ENUM), "takes or returns"),
    "a module's factory": (lambda code: returning("collections.defaultdict", FACTORY), "takes or returns"),
    "an operator that saves": (
        lambda code: calling(
            "torch.ops.aten.save.default", ("item", MATMUL), ("filename", {"as_string": code})
        ),
        "doesn't have for tensors",
    ),
    "a method": (
        lambda code: calling("torch.ops.aten.__getattr__.__call__", ("name", {"as_string": "save"})),
        "doesn't have for tensors",
    ),
    "another method": (lambda code: calling("torch.ops.aten.relu.overloads"), "doesn't have for tensors"),
    "a function as an argument": (
        lambda code: calling("torch.ops.aten.relu.default", ("self", {"as_operator": "torch.os.system"})),
        "calls 'torch.os.system'",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_no_code_of_an_exported_program_runs(name: str, canary: Path) -> None:
    change, says = ATTACKS[name]
    program = changed(change(CODE.format(str(canary))))
    with pytest.raises(ModelError, match=says):
        read_model(program, {})
    if name == "an input's name":
        with pytest.raises(ModelError, match=says):
            import_model(program, {}, TARGET)


def zipped(graph: object) -> bytes:
    """Return an archive that holds only a graph."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"m/{MODEL}", graph if isinstance(graph, bytes) else json.dumps(graph))
    return made.getvalue()


NESTED = b'{"in_spec": "' + b"[" * 100_000 + b'"}'


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        ({"inputs": [{"as_tensor": {"name": "x=print()"}}]}, "has a name 'x=print"),
        ({"tensor_values": {"x=print()": {}}}, "has a name 'x=print"),
        (
            {"out_spec": container("builtins.dict", ENUM)},
            "enum",
        ),
        (
            {"in_spec": container("m.A", None)},
            "takes or returns",
        ),
        ({"in_spec": "[1, 2]"}, "is damaged"),
        ({"in_spec": "5"}, "is damaged"),
        ({"args": [{"as_operator": "torch.os.system"}]}, "calls 'torch.os.system'"),
        (b"[" * 100_000, "nested too deeply"),
        (NESTED, "nested too deeply"),
    ],
)
def test_code_is_refused_before_pytorch_is_loaded(graph: object, says: str) -> None:
    with pytest.raises(ModelError, match=says) as refused:
        read_model(zipped(graph), {})
    assert "\n" not in str(refused.value)


def test_a_compilers_child_refuses_code_too() -> None:
    with pytest.raises(ModelError, match=r"calls 'torch\.os\.system'"):
        import_model(zipped({"args": [{"as_operator": "torch.os.system"}]}), {}, TARGET)
    with pytest.raises(ModelError, match="nested too deeply"):
        import_model(zipped(NESTED), {}, TARGET)


def test_archives_with_two_directories_are_rejected() -> None:
    """A reader that searches the directory from the end finds another archive."""
    with pytest.raises(ModelError, match="directory is damaged"):
        read_model(zipped({}) + zipped({}), {})


COMPOSITE = """
func.func private @body(%x: tensor<4xf32>) -> tensor<4xf32> {{
  {}
  return %y : tensor<4xf32>
}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %y = stablehlo.composite "chlo.erf" %x {{decomposition = @body}} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}}
"""


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        *(
            (
                f"stablehlo.custom_call @{name}(%x) {{api_version = {version} : i32{config}}}",
                f"calls '{name}'",
            )
            for name, version, config in (
                ("abort", 1, ""),
                ("abort", 2, ""),
                ("xla_python_cpu_callback", 2, ', backend_config = "139637976727552"'),
                ("xla_ffi_python_cpu_callback", 4, ", backend_config = {index = 0 : ui64}"),
            )
        ),
        ('"mhlo.custom_call"(%x) {call_target_name = "abort"}', "an operation mhlo.custom_call"),
    ],
)
def test_custom_calls_are_rejected_before_xla(operation: str, says: str) -> None:
    """The name says what a composite computes; XLA would run its body."""
    body = f"%y = {operation} : (tensor<4xf32>) -> tensor<4xf32>"
    model = read_model(COMPOSITE.format(body).encode(), {})
    assert isinstance(model, StablehloModel)
    (spec,) = model.inputs
    with pytest.raises(NoReference, match=says):
        model.compute({spec.name: np.zeros(4, np.float32)})
