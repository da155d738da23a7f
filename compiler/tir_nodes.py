"""Find nodes in TIR, name their operators, and tell how large values are and how a loop moves an index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad, Var
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import And, BufferStore, IntImm, IterVar, SeqStmt
from tvm_ffi import core

# What `tvm_ffi.structural_walk` calls; that function checks its arguments for longer than a walk over one
# statement takes.
_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_INNER_FIRST = int(tvm_ffi.WalkOrder.POSTORDER)


def find_all(expression: Any, *kinds: type) -> list[Any]:
    """Return every node of one of these kinds below `expression`, inner ones first."""
    found: list[Any] = []
    _walk(expression, [(_number(kind), found.append) for kind in kinds], (), _INNER_FIRST)
    return found


@cache
def _number(kind: type) -> int:
    """Return the number of a class of TVM's objects."""
    return int(core.TypeSchema.from_annotation(kind).origin_type_index)


def statements_of(statement: Any) -> list[Any]:
    """Return the statements of a sequence, or a list of any other statement."""
    if not isinstance(statement, SeqStmt):
        return [statement]
    sequence = statement.seq
    # Python's iteration over TVM's arrays takes three times as long.
    return [_item(sequence, at) for at in range(len(sequence))]


def op_name(call: Any) -> str:
    """Return the operator's name without its dialect: TVM registers some operators in several."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def reduced(block: SBlock) -> int:
    """Return the number of terms that a block reduces into each result; 1 without a reduction."""
    axes = [axis for axis in block.iter_vars if axis.iter_type == IterVar.CommReduce]
    return math.prod(int(axis.dom.extent) for axis in axes)


def reads_itself(store: BufferStore) -> bool:
    """Return whether a stored value depends on the buffer, as a sum does."""
    return any(load.source.same_as(store.buffer) for load in find_all(store.value, TensorLoad))


def conjunction(conditions: Sequence[Any]) -> Any:
    """Return the condition that all of one or more conditions hold."""
    return reduce(And, conditions)


def contains(nodes: Iterable[Any], node: Any) -> bool:
    """Return whether `node` itself, not only an equal one, is among `nodes`."""
    return any(node.same_as(each) for each in nodes)


def num_bits(dtype: Any) -> int:
    """Return the bits of all lanes of a type together."""
    found = tvm.DataType(str(dtype))
    return int(found.bits * found.lanes)


def num_lanes(value: Any) -> int:
    """Return the lanes of a value; 1 for a scalar."""
    return int(value.ty.dtype.lanes)


def num_bytes(value: Any) -> int:
    """Return the bytes of all lanes of a value together."""
    return -(-num_bits(value.ty.dtype) // 8)


def step_of(index: Any, variable: Any, analyzer: Analyzer) -> int | None:
    """Return how much an index grows when a loop's variable grows by 1; None if that isn't constant."""
    following = tvm_ffi.structural_map(
        index, (Var, lambda each: each + 1 if each.same_as(variable) else each)
    )
    step = analyzer.simplify(following - index)
    return int(step) if isinstance(step, IntImm) else None
