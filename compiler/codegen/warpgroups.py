"""Matrix products of warpgroups in generated CUDA C, by the functions of warpgroups.cuh."""

from __future__ import annotations

import re
from pathlib import Path

import tvm
import tvm_ffi
from tvm.ir import StringImm
from tvm.tirx import AttrStmt, For, IntImm, PrimFunc

from compiler.codegen.rewrite import map_body, rewrite_prim_funcs
from compiler.tir_nodes import find_all

_FUNCTIONS = Path(__file__).with_name("warpgroups.cuh").read_text()
# The calls that multiply, by the layout of their operands.
_PRODUCTS = ("tensor_cores::multiply_tiles<", "tensor_cores::multiply_swizzled<")
_SUMS = re.compile(r"tensor_cores::fragment<tensor_cores::accumulator, 64, (\d+), 16, (float|int)>")
# By the type of sums: the types of operands in CUDA C, and the end of the instruction's name.
_TYPES = {
    "float": {"half": "k16.f32.f16.f16", "__nv_bfloat16": "k16.f32.bf16.bf16"},
    "int": {"signed char": "k32.s32.s8.s8"},
}
_WAITS = "__syncthreads();"
# TVM's attributes of asynchronous copies.
_COMMITTED, _IN_FLIGHT = "async_commit_queue_scope", "async_wait_inflight_count"
_OPERANDS = 2


def wait_for_all_operands(module: tvm.IRModule) -> tvm.IRModule:
    """Correct how many groups of copies may be in flight while warpgroups multiply.

        for k0: wait(2); multiply(k0); copy a[k0 + 2], b[k0 + 2]; commit()
    ->
        for k0: wait(1); multiply(k0); copy a[k0 + 2], b[k0 + 2]; commit()

    In a loop that computes before it copies, TVM counts a group for each operand, but commits both as one.
    """

    def rewrite(function: PrimFunc) -> PrimFunc:
        if not any(is_product(name) for name in find_all(function.body, StringImm)):
            return function
        return map_body(function, (For, corrected))

    def is_product(name: StringImm) -> bool:
        return str(name.value).startswith(_PRODUCTS)

    def corrected(loop: For) -> For:
        names = [name for name in find_all(loop.body, StringImm) if is_product(name)]
        commits = [one for one in find_all(loop.body, AttrStmt) if one.attr_key == _COMMITTED]
        return tvm_ffi.structural_map(loop, (AttrStmt, halved)) if names and commits else loop

    def halved(wait: AttrStmt) -> AttrStmt:
        if wait.attr_key != _IN_FLIGHT or not isinstance(wait.value, IntImm):
            return wait
        count = IntImm("int32", int(wait.value) // _OPERANDS)
        return AttrStmt(wait.node, wait.attr_key, count, wait.body)

    return rewrite_prim_funcs(module, rewrite)


def has_warpgroups(source: str) -> bool:
    return any(product in source for product in _PRODUCTS)


def architecture(source: str, arch: str) -> str:
    """Return the architecture to compile CUDA C for: sm_90a in place of sm_90 if it has products of
    warpgroups, which only this one architecture has.
    """
    return f"{arch}a" if has_warpgroups(source) else arch


def define_warpgroups(source: str) -> tuple[str, str]:
    """Return the definitions that CUDA C with fragments needs for its products of warpgroups, and the kernels
    with barriers that order what threads wrote before what tensor cores read.
    """
    if not has_warpgroups(source):
        return "", source
    sums = sorted({(int(columns), kind) for columns, kind in _SUMS.findall(source)})
    products = [_product(*one, *types) for one in sums for types in _TYPES[one[1]].items()]
    functions = "\n".join(["namespace tensor_cores {", *products, "}  // namespace tensor_cores", _FUNCTIONS])
    return functions, source.replace(_WAITS, "tensor_cores::synchronize();")


def _product(columns: int, sums_type: str, cuda_type: str, types: str) -> str:
    """Return the function in CUDA C for a product of this many columns.

    C++ can't write an instruction for any number of registers.
    """
    count = columns // 2
    registers = ", ".join(f"%{number}" for number in range(count))
    is_float = sums_type == "float"
    sums = ", ".join(f'"+{"f" if is_float else "r"}"(c[{number}])' for number in range(count))
    operands = f"unsigned long long a, unsigned long long b, {cuda_type}"
    # Only operands of 16 bits may be negated or stored by rows.
    options, by_rows = (f", 1, 1, 0, %{count + 2}", ', "n"(int(ByRows))') if is_float else ("", "")
    return f"""\
template <bool ByRows>
__device__ inline void multiply_columns({sums_type} (&c)[{count}], {operands}) {{
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n{columns}{types} "
      "{{{registers}}}, %{count}, %{count + 1}, 1{options};"
      : {sums}
      : "l"(a), "l"(b){by_rows});
}}"""
