"""Use instructions for bfloat16 of AVX-512 and Arm, whose operands have a type of LLVM's that TVM lacks.

They are called by functions in LLVM's IR that take the bits of bfloat16 as integers. LLVM inlines them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx import AttrStmt, PrimFunc

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body
from compiler.codegen.tile_instructions import tile_calls
from compiler.tir_nodes import find_all

# The prefixes of the functions' names; the number of lanes follows.
DPBF16PS, _ROUND = "tunefarm_dpbf16ps_", "tunefarm_to_bfloat16_"
BFDOT, BFMMLA = "tunefarm_bfdot_", "tunefarm_bfmmla_"
_ARM = """
declare <{n} x float> @llvm.aarch64.neon.INSTRUCTION(<{n} x float>, <{m} x bfloat>, <{m} x bfloat>)
define linkonce_odr hidden <{n} x float> @{name}(<{n} x float> %sums, <{n} x i32> %a, <{n} x i32> %b) #0 {{
  %rows = bitcast <{n} x i32> %a to <{m} x bfloat>
  %columns = bitcast <{n} x i32> %b to <{m} x bfloat>
  %result = call <{n} x float> @llvm.aarch64.neon.INSTRUCTION(
      <{n} x float> %sums, <{m} x bfloat> %rows, <{m} x bfloat> %columns)
  ret <{n} x float> %result
}}
attributes #0 = {{ alwaysinline nounwind "target-features"="+neon,+bf16" }}
"""
_FUNCTIONS = {
    BFDOT: _ARM.replace("INSTRUCTION", "bfdot.v4f32.v8bf16"),
    BFMMLA: _ARM.replace("INSTRUCTION", "bfmmla"),
    DPBF16PS: """
declare <{n} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(<{n} x float>, <{m} x bfloat>, <{m} x bfloat>)
define linkonce_odr hidden <{n} x float> @{name}(<{n} x float> %sums, <{n} x i32> %a, <{n} x i32> %b) #0 {{
  %rows = bitcast <{n} x i32> %a to <{m} x bfloat>
  %columns = bitcast <{n} x i32> %b to <{m} x bfloat>
  %result = call <{n} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
      <{n} x float> %sums, <{m} x bfloat> %rows, <{m} x bfloat> %columns)
  ret <{n} x float> %result
}}
attributes #0 = {{ alwaysinline nounwind "target-features"="+avx512f,+avx512vl,+avx512bf16" }}
""",
    _ROUND: """
define linkonce_odr hidden <{n} x i16> @{name}(<{n} x float> %floats) alwaysinline nounwind {{
  %halves = fptrunc <{n} x float> %floats to <{n} x bfloat>
  %bits = bitcast <{n} x bfloat> %halves to <{n} x i16>
  ret <{n} x i16> %bits
}}
""",
}


def bfloat16_dot(total: Any, rows: Any, columns: Any, sums: int, instruction: str = DPBF16PS) -> tirx.Expr:
    """Return `total` plus the dot products of pairs, or with BFMMLA of rows of four.

    `total` is a vector of `sums` float32. `rows` and `columns` are vectors of `sums` int32, and each int32
    holds two bfloat16.
    """
    return tirx.call_pure_extern(f"float32x{sums}", f"{instruction}{sums}", total, rows, columns)


def bfloat16_bits(floats: Any, lanes: int) -> tirx.Expr:
    """Return the bits of float32s rounded to bfloat16, as a vector of uint16."""
    return tirx.call_pure_extern(f"uint16x{lanes}", f"{_ROUND}{lanes}", floats)


def import_functions(module: tvm.IRModule) -> tvm.IRModule:
    """Add the functions in LLVM's IR that a module's functions call."""
    return rewrite_prim_funcs(module, _import)


def calls_dot_products(function: PrimFunc) -> bool:
    """Return whether a function has dot products of bfloat16, or products of tiles of them."""
    if any(name.startswith((DPBF16PS, BFDOT, BFMMLA)) for name in _called(function)):
        return True
    return any(product.rows == "bfloat16" for _, product in tile_calls(function.body))


def _called(function: PrimFunc) -> set[str]:
    """Return the names of the functions in LLVM's IR that a function calls."""
    texts = {str(each.value) for each in find_all(function.body, StringImm)}
    return {text for text in texts if text.startswith(tuple(_FUNCTIONS))}


def _import(function: PrimFunc) -> PrimFunc:
    called = _called(function)
    body = function.body
    for name in sorted(called):
        prefix = next(prefix for prefix in _FUNCTIONS if name.startswith(prefix))
        lanes = int(name.removeprefix(prefix))
        text = _FUNCTIONS[prefix].format(name=name, n=lanes, m=2 * lanes, bits=32 * lanes)
        body = AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(text), body)
    return with_body(function, body) if called else function
