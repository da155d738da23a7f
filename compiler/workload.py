"""Workloads: fused subgraphs as TVM modules, their JSON text and their hash.

A workload is an IRModule with a single PrimFunc `main`, in the form that MetaSchedule looks up. So a record
of ours and one of MetaSchedule with the same hash are about the same subgraph.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm.tirx import PrimFunc

from compiler import reducers
from compiler.object_graph import GraphRefused, ObjectGraph
from compiler.vocabulary import WORKLOAD, describe

# Every process that schedules or compiles workloads imports this module.
reducers.register()

# A fused subgraph is tens of kilobytes of text; TVM needs about fifty times the text in memory.
MAX_TEXT_BYTES = 32 << 20
_IMPLIED = re.compile(r"\s*(#|@T\.prim_func|T\.(reads|writes|func_attr)\()")


def normalise(func: PrimFunc) -> tvm.IRModule:
    """Make a workload of a PrimFunc, as MetaSchedule's extract_tasks and ApplyDatabase do.

        @T.prim_func(private=True)
        def fused_matmul(A: T.Buffer(...), B: T.Buffer(...), C: T.Buffer(...)): ...
    ->
        @T.prim_func                             # global_symbol "main", tirx.noalias
        def main(A: T.Buffer(...), B: T.Buffer(...), C: T.Buffer(...)): ...
    """
    if "global_symbol" not in func.attrs:
        func = func.with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})


def workload_hash(mod: tvm.IRModule) -> str:
    """Return the structural hash in decimal digits, as in a MetaSchedule database."""
    return str(tvm_ffi.structural_hash(mod))


def to_json(mod: tvm.IRModule) -> str:
    return tvm.ir.save_json(mod)


def tvmscript(mod: tvm.IRModule) -> str:
    """Return a workload as TVMScript for people: without the types of indices and without implied lines.

        T.reads(A[v_i, v_j])
        B[v_i, v_j + T.int64(1)] = A[v_i, v_j]
    ->
        B[v_i, v_j + 1] = A[v_i, v_j]
    """
    lines = re.sub(r"T\.int64\((-?\d+)\)", r"\1", mod["main"].script()).splitlines()
    return "\n".join(line for line in lines if not _IMPLIED.match(line)).strip()


def from_json(text: str) -> tvm.IRModule:
    """Read a workload that `to_json` wrote, in this version of TVM or an older one.

    Raises ValueError for other texts, and for workloads that do more than compute (`compiler.vocabulary`).
    TVM gets the objects that were checked, not the text.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"a workload of {len(text)} characters is larger than the limit of {MAX_TEXT_BYTES}")
    try:
        graph = ObjectGraph.parse(text)
        foreign = WORKLOAD.foreign(graph)
        mod = None if foreign else graph.load()
    except GraphRefused as error:
        raise ValueError(f"not a TVM module: {error}") from error
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise ValueError(f"not a TVM module: {type(error).__name__}") from error
    if foreign:
        raise ValueError(f"not a workload, which only computes: it has {describe(foreign)}")
    if not isinstance(mod, tvm.IRModule):
        raise ValueError(f"not a TVM module: the text holds a {type(mod).__name__}")
    functions = {name.name_hint: function for name, function in mod.functions_items()}
    if list(functions) != ["main"] or not isinstance(functions["main"], PrimFunc):
        raise ValueError("not a workload: a workload is one PrimFunc called main")
    return mod
