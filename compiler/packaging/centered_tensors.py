"""Lay tensors into the middle of the memory that they share with larger ones.

A kernel's threads write a tensor in equal contiguous parts. Tensors of several sizes that begin at one
address have their parts in different places, so a thread writes what another core's cache holds. Where cores
share no cache, that takes longer than the arithmetic of small layers. Around a common middle, each half of
the threads keeps its half of the memory.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, Op
from tvm.tirx import IntImm

from compiler.codegen.byte_offsets import ALIGNMENT
from compiler.tir_nodes import find_all, num_bits

_ALLOC_STORAGE = Op.get("relax.vm.alloc_storage")
_ALLOC_TENSOR = Op.get("relax.vm.alloc_tensor")


def center_tensors(module: tvm.IRModule) -> tvm.IRModule:
    """Give each tensor in planned memory the offset that puts it into the middle of its storage.

        storage = vm.alloc_storage(4096)
        small = vm.alloc_tensor(storage, 0, (256,), float32)
    ->
        storage = vm.alloc_storage(4096)
        small = vm.alloc_tensor(storage, 1536, (256,), float32)

    Run this after memory was planned. Kernels have to add the offset (`compiler.codegen.byte_offsets`).
    Tensors of dynamic size stay at the beginning.
    """
    functions = {
        name: _centered(function) if isinstance(function, relax.Function) else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _centered(function: relax.Function) -> relax.Function:
    sizes = {
        binding.var: _bytes(binding.value.args[0], 8)
        for binding in find_all(function.body, relax.VarBinding)
        if isinstance(binding.value, Call) and binding.value.op.same_as(_ALLOC_STORAGE)
    }

    def center(call: Call) -> Call:
        if not call.op.same_as(_ALLOC_TENSOR):
            return call
        storage, offset, shape, dtype, *others = call.args
        whole, part = sizes.get(storage), _bytes(shape, num_bits(dtype.value))
        if whole is None or part is None or int(offset):
            return call
        middle = IntImm(offset.ty.dtype, (whole - part) // 2 // ALIGNMENT * ALIGNMENT)
        arguments = [storage, middle, shape, dtype, *others]
        return Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)

    body = tvm_ffi.structural_map(function.body, (Call, center))
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _bytes(shape: Any, bits: int) -> int | None:
    """Return the bytes of a shape of elements of `bits`; None for a dynamic shape."""
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(each, IntImm) for each in shape.values):
        return None
    return -(-math.prod(map(int, shape.values)) * bits // 8)
