"""Load float32 operands into tensor-core fragments in TF32.

TVM has no TF32 type and rejects float32 fragments. So these fragments are declared as float16 fragments of
shape 16 x 16 x 8, which float16 itself doesn't have. In the CUDA C that TVM generates, they are replaced by
TF32 fragments.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm.ir import Var
from tvm.tirx import AllocBuffer, PrimFunc, decl_buffer

from compiler.codegen.rewrite import rewrite_prim_funcs
from compiler.tir_nodes import find_all

KERNELS_START = 'extern "C"'
OPERANDS = ("wmma.matrix_a", "wmma.matrix_b")
_DECLARED = re.compile(
    r"nvcuda::wmma::fragment<nvcuda::wmma::(matrix_[ab]), 16, 16, 8, half, nvcuda::wmma::(\w+)>"
)
# The result of tensor cores is undefined for operands that aren't rounded to TF32.
_ROUNDED = """\
namespace nvcuda {
namespace wmma {
template <class Use, class Layout>
struct rounded : fragment<Use, 16, 16, 8, precision::tf32, Layout> {};
template <class Use, class Layout>
__device__ inline void load_matrix_sync(rounded<Use, Layout>& loaded, const float* source, unsigned stride) {
  fragment<Use, 16, 16, 8, precision::tf32, Layout>& operand = loaded;
  load_matrix_sync(operand, source, stride);
  for (int i = 0; i < operand.num_elements; ++i) operand.x[i] = __float_to_tf32(operand.x[i]);
}
}  // namespace wmma
}  // namespace nvcuda
"""


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


def round_operands(source: str) -> str:
    """Make CUDA C load the fragments that `declare_as_halves` declared as TF32, rounding each element.

        nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 8, half, nvcuda::wmma::row_major> a[2];
    ->
        nvcuda::wmma::rounded<nvcuda::wmma::matrix_a, nvcuda::wmma::row_major> a[2];
    """
    written, found = _DECLARED.subn(r"nvcuda::wmma::rounded<nvcuda::wmma::\1, nvcuda::wmma::\2>", source)
    return written.replace(KERNELS_START, _ROUNDED + KERNELS_START, 1) if found else source
