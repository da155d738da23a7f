"""Let compiled functions take tensors that begin inside an allocation.

TVM's functions refuse a tensor with a byte offset: they take the allocation's address for the tensor's.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import EQ, DeclBuffer, IntImm, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.tir_nodes import op_name

# Offsets are multiples of a cache line, so that tensors stay as aligned as their allocation.
ALIGNMENT = 64
# TVM's numbers for the fields of a tensor.
_DATA, _BYTE_OFFSET = 1, 8


def add_byte_offsets(module: tvm.IRModule) -> tvm.IRModule:
    """Add the byte offset of each argument of a packed function to its address.

        assert 0 == x.byte_offset
        X = decl_buffer((64,), data=x.data)
    ->
        assert 0 == x.byte_offset % 64
        X = decl_buffer((64,), data=x.data + x.byte_offset)
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    return map_body(function, [(EQ, _checked), (DeclBuffer, _moved)])


def _moved(declared: DeclBuffer) -> DeclBuffer:
    data = tvm_ffi.structural_map(declared.data, (Call, _with_offset))
    return declared if data.same_as(declared.data) else DeclBuffer(declared.buffer, data=data)


def _with_offset(call: Call) -> Call:
    if not _gets(call, _DATA):
        return call
    handle, index, _ = call.args
    offset = tirx.tvm_struct_get(handle, index, _BYTE_OFFSET, "uint64")
    return tirx.handle_add_byte_offset(call, offset)


def _checked(equation: EQ) -> EQ:
    if not _gets(equation.b, _BYTE_OFFSET):
        return equation
    return EQ(equation.a, tirx.truncmod(equation.b, tirx.const(ALIGNMENT, "uint64")))


def _gets(value: Any, field: int) -> bool:
    """Return whether a call reads a field of a tensor."""
    if not isinstance(value, Call) or op_name(value) != "tvm_struct_get":
        return False
    return isinstance(value.args[2], IntImm) and int(value.args[2]) == field
