"""Fragments of matrices on tensor cores.

TVM writes them for CUDA's WMMA. Here they become registers of `mma.sync` (fragments.cuh).

TVM has no TF32 type and rejects float32 fragments. So these fragments are declared as float16 fragments of
shape 16 x 16 x 8, which float16 itself doesn't have.
"""

from __future__ import annotations

import re
from pathlib import Path

import tvm
import tvm_ffi
from tvm.ir import Var
from tvm.tirx import AllocBuffer, PrimFunc, decl_buffer

from compiler.codegen.rewrite import rewrite_prim_funcs
from compiler.tir_nodes import find_all

KERNELS_START = 'extern "C"'
OPERANDS = ("wmma.matrix_a", "wmma.matrix_b")
# What TVM calls for fragments, and the file that has the same functions for `mma.sync`.
_WMMA, _OURS = "nvcuda::wmma::", "tensor_cores::"
_WMMA_HEADER = re.compile(r"#include <mma\.h>\n")
_FUNCTIONS = Path(__file__).with_name("fragments.cuh").read_text()


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
    return function.with_body(tvm_ffi.structural_map(function.body, rename))


def use_mma_sync(source: str) -> str:
    """Make CUDA C compute fragments by `ldmatrix` and `mma.sync`, with the functions of fragments.cuh.

        nvcuda::wmma::mma_sync(c[0], a[0], b[0], c[0]);
    ->
        tensor_cores::mma_sync(c[0], a[0], b[0], c[0]);
    """
    if _WMMA not in source:
        return source
    without_header = _WMMA_HEADER.sub("", source).replace(_WMMA, _OURS)
    return without_header.replace(KERNELS_START, _FUNCTIONS + KERNELS_START, 1)
