"""Fragments of matrices on tensor cores.

TVM writes them for CUDA's WMMA. Here they become registers of `mma.sync` (fragments.cuh).

TVM has no TF32 type and rejects float32 fragments. So these fragments are declared as float16 fragments of
shape 16 x 16 x 8, which float16 itself doesn't have.
"""

from __future__ import annotations

import re
from pathlib import Path

import tvm
from tvm.ir import Call, Var
from tvm.tirx import AllocBuffer, DeclBuffer, PrimFunc, buffer_data, decl_buffer

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.codegen.tensor_maps import define_fetches
from compiler.codegen.warpgroups import define_warpgroups
from compiler.tir_nodes import find_all, op_name

KERNELS_START = 'extern "C"'
OPERANDS = ("wmma.matrix_a", "wmma.matrix_b")
# What TVM calls for fragments, and the file that has the same functions for `mma.sync`.
_WMMA, _OURS = "nvcuda::wmma::", "tensor_cores::"
_WMMA_HEADER = re.compile(r"#include <mma\.h>\n")
_FUNCTIONS = Path(__file__).with_name("fragments.cuh").read_text()
_ATTENTION = Path(__file__).with_name("attention.cuh").read_text()
_CALLS_ATTENTION = f"{_OURS}weigh_scores<"


def declare_as_halves(module: tvm.IRModule) -> tvm.IRModule:
    """Declare the fragments of float32 operands as float16, which TVM can generate."""
    return rewrite_prim_funcs(module, _declare)


def _declare(function: PrimFunc) -> PrimFunc:
    declared = {
        buffer: decl_buffer(buffer.shape, "float16", buffer.name, scope=buffer.scope())
        for buffer in (allocation.buffer for allocation in find_all(function.body, AllocBuffer))
        if buffer.scope() in OPERANDS and str(buffer.dtype) == "float32"
    }
    if not declared:
        return function
    rename = (Var, lambda variable: declared.get(variable, variable))
    return map_body(function, rename)


def point_by_types(module: tvm.IRModule) -> tvm.IRModule:
    """Make pointers to shared memory refer to a buffer of their own type.

        a = T.decl_buffer((64,), "float32", data=buf_dyn_shmem.data)
        b = T.decl_buffer((128,), "float16", data=buf_dyn_shmem.data)
        T.tvm_access_ptr(T.type_annotation("float16"), a.data, ...)
    ->
        T.tvm_access_ptr(T.type_annotation("float16"), b.data, ...)

    TVM gives reused memory the type of its first user, and then refuses pointers of other types. Offsets
    count elements of the pointer's type from the same start.
    """
    return rewrite_prim_funcs(module, _point_by_types)


def _point_by_types(function: PrimFunc) -> PrimFunc:
    buffers = [one.buffer for one in find_all(function.body, DeclBuffer)]
    of_type = {str(one.dtype): one for one in buffers if one.scope() == "shared.dyn"}

    def point(call: Call) -> Call:
        if op_name(call) != "tvm_access_ptr":
            return call
        annotation, data, *rest = call.args
        if not isinstance(data, Call):  # a parameter of the kernel
            return call
        pointed, dtype = data.args[0], str(annotation.ty.dtype)
        if pointed.scope() != "shared.dyn" or str(pointed.dtype) == dtype:
            return call
        own = buffer_data(of_type[dtype])
        return Call(call.op, [annotation, own, *rest], call.attrs, call.ty_args, ret_ty=call.ty)

    return map_body(function, (Call, point))


def use_mma_sync(source: str) -> str:
    """Make CUDA C compute fragments by `ldmatrix` and `mma.sync`, with the functions of fragments.cuh. An
    attention's online softmax needs those of attention.cuh, too.

        nvcuda::wmma::mma_sync(c[0], a[0], b[0], c[0]);
    ->
        tensor_cores::mma_sync(c[0], a[0], b[0], c[0]);
    """
    attention = _ATTENTION if _CALLS_ATTENTION in source else ""
    if _WMMA not in source and not attention:
        return source
    functions, kernels = define_warpgroups(_WMMA_HEADER.sub("", source).replace(_WMMA, _OURS))
    fetches, kernels = define_fetches(kernels)
    added = _FUNCTIONS + functions + fetches + attention
    return kernels.replace(KERNELS_START, added + KERNELS_START, 1)
