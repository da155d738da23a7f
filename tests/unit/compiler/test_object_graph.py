"""TVM objects as text: input that would crash TVM or run code is rejected before TVM reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi

from compiler.object_graph import GraphRefused, ObjectGraph
from compiler.workload import from_json, normalise, to_json
from tests.workloads import WORKLOADS, matmul
from tests.workloads import module as workload_of

ROOT = Path(__file__).parents[3]
Nodes = list[dict[str, Any]]


def changed(change: Callable[[Nodes], object]) -> str:
    graph = json.loads(to_json(matmul(8, 8, 8)))
    change(graph["nodes"])
    return json.dumps(graph)


def fields(nodes: Nodes, kind: str) -> dict[str, Any]:
    """Return the fields of the last object of a kind."""
    found: dict[str, Any] = next(node["data"] for node in reversed(nodes) if node["type"] == kind)
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_come_back_as_they_were(name: str) -> None:
    module = WORKLOADS[name]()
    assert tvm_ffi.structural_equal(from_json(to_json(module)), module)


def test_a_function_with_loops_of_its_own_is_a_workload() -> None:
    """TVM serializes cumulative sums like this, with buffer layouts."""
    data = te.placeholder((3, 5), name="data")
    module = workload_of([data, topi.cumsum(data, axis=1)])
    assert tvm_ffi.structural_equal(from_json(to_json(module)), module)


def _doubled(nodes: Nodes) -> None:
    """Make an index a sum whose tree has more nodes than any memory."""
    fields(nodes, "ir.IntImm")
    ty = fields(nodes, "ir.IntImm")["ty"]
    root = nodes[-1]
    number = next(at for at, node in enumerate(nodes) if node["type"] == "ir.IntImm")
    for _ in range(60):
        nodes.append({"type": "prim.Add", "data": {"span": 0, "ty": ty, "a": number, "b": number}})
        number = len(nodes) - 1
    nodes.append(root)


def _deep(nodes: Nodes) -> None:
    ty, zero = fields(nodes, "ir.IntImm")["ty"], 0
    zero = next(at for at, node in enumerate(nodes) if node["type"] == "ir.IntImm")
    number = zero
    for _ in range(5000):
        nodes.append({"type": "prim.Add", "data": {"span": 0, "ty": ty, "a": number, "b": zero}})
        number = len(nodes) - 1


CRASHES = {
    "no body": lambda nodes: fields(nodes, "tirx.For").update(body=0),
    "no variable": lambda nodes: fields(nodes, "tirx.For").update(loop_var=0),
    "no type": lambda nodes: fields(nodes, "ir.Var").update(ty=0),
    "no buffer": lambda nodes: fields(nodes, "tirx.BufferStore").update(buffer=0),
    "no indices": lambda nodes: fields(nodes, "tirx.BufferStore").update(indices=0),
    "another type": lambda nodes: fields(nodes, "tirx.For").update(extent=fields(nodes, "ir.Var")["name"]),
    "a later node": lambda nodes: fields(nodes, "tirx.For").update(body=len(nodes) - 1),
    "a missing node": lambda nodes: fields(nodes, "tirx.For").update(body=1 << 40),
    "a negative node": lambda nodes: fields(nodes, "tirx.For").update(body=-1),
    "a huge number": lambda nodes: nodes.append({"type": "int", "data": 1 << 80}),
    "an unknown field": lambda nodes: fields(nodes, "tirx.For").update(more=0),
    "a missing field": lambda nodes: fields(nodes, "tirx.For").pop("body"),
    "a map without its last value": lambda nodes: nodes.append({"type": "ffi.Map", "data": [0]}),
    "a sum that doubles": _doubled,
    "a sum 5000 deep": _deep,
}


@pytest.mark.parametrize("name", CRASHES)
def test_values_that_crash_tvm_raise_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match="not a TVM module: "):
        from_json(changed(CRASHES[name]))


def test_a_prepared_workload_does_not_end_the_process_that_shows_it() -> None:
    """`tunefarm show HASH --naive` reads and prints a workload that the service sends."""
    code = (
        "import sys; from compiler.workload import from_json, tvmscript\n"
        "try: print(tvmscript(from_json(sys.stdin.read())))\n"
        "except ValueError as error: print(error)"
    )
    for name in ("no variable", "a later node"):
        text = changed(CRASHES[name])
        done = subprocess.run(
            [sys.executable, "-c", code], input=text, cwd=ROOT, text=True, capture_output=True
        )
        assert done.returncode == 0, f"{name}: {done.stderr[-500:]}"
        assert "not a TVM module" in done.stdout


def _calling(expression: Any) -> str:
    func = matmul(8, 8, 8)["main"]
    return to_json(normalise(func.with_body(tirx.SeqStmt([tirx.Evaluate(expression), func.body]))))


def _annotated(key: str, value: str) -> str:
    func = matmul(8, 8, 8)["main"]
    body = tirx.AttrStmt(tirx.const(0), key, tvm.ir.StringImm(value), func.body)
    return to_json(normalise(func.with_body(body)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _calling(tirx.call_extern("int32", "system", "true")), r"tirx\.call_extern"),
        (lambda: _calling(tirx.call_pure_extern("int32", "system", "true")), r"tirx\.call_pure_extern"),
        (lambda: _calling(tirx.call_packed("runtime.SystemLib")), r"tirx\.tvm_call_packed"),
        (lambda: _calling(tirx.call_cpacked("script.printer.Script")), r"tirx\.tvm_call_cpacked"),
        (lambda: _calling(tirx.call_llvm_intrin("int32", "llvm.debugtrap")), r"tirx\.call_llvm"),
        (lambda: _annotated("pragma_import_llvm", "define void @x() { ret void }"), "pragma_import_llvm"),
        (lambda: _annotated("pragma_import_c", "int system(const char *);"), "pragma_import_c"),
        (
            lambda: to_json(normalise(matmul(8, 8, 8)["main"].with_attr("target", "llvm -cl-opt=x"))),
            "the attribute 'target'",
        ),
    ],
)
def test_a_workload_only_computes(make: Callable[[], str], says: str) -> None:
    with pytest.raises(ValueError, match=f"which only computes: it has .*{says}"):
        from_json(make())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        '{"nodes": [], "nodes": [], "root_index": 0}',
        '{"nodes": [{"type": "None"}], "root_index": true}',
        '{"nodes": [{"type": "None", "more": 1}], "root_index": 0}',
        '{"nodes": [{"type": "None"}], "root_index": 0, "metadata": {"tvm_version": "0.1"}, "nodes": [7]}',
    ],
)
def test_other_texts_are_no_graph(text: str) -> None:
    with pytest.raises(GraphRefused):
        ObjectGraph.parse(text)


def test_a_workload_of_an_older_version_is_read() -> None:
    graph = json.loads(to_json(matmul(8, 8, 8)))
    graph["metadata"]["tvm_version"] = "0.27.0"
    assert tvm_ffi.structural_equal(from_json(json.dumps(graph)), matmul(8, 8, 8))
