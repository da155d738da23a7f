"""The generated stubs are current, and their types name every method."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import proto
from proto import fleet_pb2, fleet_pb2_grpc

FOLDER = Path(proto.__file__).parent


def test_the_stubs_are_current(tmp_path: Path) -> None:
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER.parent}"]
    stubs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    for name, more in (("fleet", [f"--grpc_python_out={tmp_path}"]), ("child", [])):
        subprocess.run([*protoc, *stubs, *more, f"proto/{name}.proto"], check=True, timeout=60)
    for name in ("fleet_pb2.py", "fleet_pb2.pyi", "fleet_pb2_grpc.py", "child_pb2.py", "child_pb2.pyi"):
        current = (tmp_path / "proto" / name).read_text()
        assert (FOLDER / name).read_text() == current, f"{name} is stale: run make proto"


def test_the_service_stubs_types_name_every_method() -> None:
    methods = {method.name for method in fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods}
    typed = ast.parse((FOLDER / "fleet_pb2_grpc.pyi").read_text())
    classes = {node.name: node for node in typed.body if isinstance(node, ast.ClassDef)}
    servicer = {node.name for node in classes["FleetServicer"].body if isinstance(node, ast.FunctionDef)}
    stub = {
        node.target.id
        for node in classes["FleetStub"].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert servicer == stub == methods
    assert {name for name in classes if hasattr(fleet_pb2_grpc, name)} == set(classes)
