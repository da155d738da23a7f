"""TVM's lowering pipelines with our passes added.

`PIPELINE` is for scheduled functions. `UNTUNED` adds only the passes that correct results need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline

from compiler.codegen.aligned_stack import align_stack
from compiler.codegen.bfloat16_instructions import import_functions
from compiler.codegen.broadcasts import store_bfloat16
from compiler.codegen.byte_offsets import add_byte_offsets
from compiler.codegen.byte_tables import take_by_shuffles
from compiler.codegen.element_types import compute_in_known_types
from compiler.codegen.fragments import declare_as_halves, point_by_types, use_mma_sync
from compiler.codegen.half_products import multiply_halves
from compiler.codegen.interior_tiles import split_interior
from compiler.codegen.lane_loads import load_lanes
from compiler.codegen.nan_propagation import propagate_nan, propagate_nan_in_kernels
from compiler.codegen.packed_bytes import pack_bytes
from compiler.codegen.partial_tiles import split_full_tiles
from compiler.codegen.prefetch import prefetch_operands
from compiler.codegen.shared_factors import lower_shared, share_factors
from compiler.codegen.stack_buffers import keep_on_stack
from compiler.codegen.tensor_maps import pass_maps
from compiler.codegen.tile_instructions import use_tiles
from compiler.codegen.unrolling import keep_rolled
from compiler.codegen.warpgroups import wait_for_all_operands

PIPELINE = "tunefarm"
UNTUNED = "tunefarm_untuned"

_Lower = Callable[[tvm.IRModule], tvm.IRModule]


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    lower, finish_host, finish_device = _untuned(lower_shared)

    def finish_on_stack() -> Callable[[tvm.IRModule], tvm.IRModule]:
        finish = finish_host()

        def prepare(module: tvm.IRModule) -> tvm.IRModule:
            shared = share_factors(split_interior(split_full_tiles(module)))
            packed = take_by_shuffles(pack_bytes(shared))
            loaded = keep_rolled(load_lanes(multiply_halves(packed)))
            return align_stack(use_tiles(keep_on_stack(prefetch_operands(loaded))))

        return lambda module: finish(prepare(module))

    def finish_fragments() -> Callable[[tvm.IRModule], tvm.IRModule]:
        finish = finish_device()
        return lambda module: finish(declare_as_halves(point_by_types(wait_for_all_operands(module))))

    return lambda module: pass_maps(lower(module)), finish_on_stack, finish_fragments


def _untuned(
    lower_by: Callable[[tvm.IRModule, _Lower], tvm.IRModule] = lambda module, lower: lower(module),
) -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    """Return TVM's pipeline with the passes that correct results need. `lower_by` takes a module and TVM's
    lowering, and lowers the module.
    """
    lower, finish_host, finish_device = get_tir_pipeline("s_tir")

    def finish_with_nan() -> Callable[[tvm.IRModule], tvm.IRModule]:
        finish = finish_host()
        return lambda module: propagate_nan(finish(import_functions(add_byte_offsets(module))))

    return (
        lambda module: store_bfloat16(compute_in_known_types(module), lambda module: lower_by(module, lower)),
        finish_with_nan,
        finish_device,
    )


register_tir_pipeline(PIPELINE, _pipeline)
register_tir_pipeline(UNTUNED, _untuned)
# TVM passes the CUDA C and the target to the registered function of this name, which may exist already.
_POSTPROCESS = "tvm_callback_cuda_postproc"
_before = tvm_ffi.get_global_func(_POSTPROCESS, allow_missing=True)


def _postprocess(source: str, target: Any) -> str:
    written = use_mma_sync(propagate_nan_in_kernels(source))
    return written if _before is None else str(_before(written, target))


tvm_ffi.register_global_func(_POSTPROCESS, _postprocess, override=True)
