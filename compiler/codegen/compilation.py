"""Compile scheduled modules: our passes first, then TVM's pipeline with our passes added."""

from __future__ import annotations

from typing import Any

import tvm

from compiler.codegen.gathered_lanes import gather_short_vectors
from compiler.codegen.last_steps import count_in_int32
from compiler.codegen.online_attention import write_attention
from compiler.codegen.pipeline import PIPELINE
from compiler.codegen.quantizers import quantize_in_vectors
from compiler.codegen.row_sums import add_as_trees
from compiler.codegen.tensor_maps import fetch_by_maps
from compiler.codegen.unrolling import limit_unrolling
from compiler.codegen.vector_math import expand_math
from compiler.constants.packing import PackedWorkload, split_packing
from compiler.target import capability_of
from core.device import ASYNC_COPIES_SINCE

# TVM passes to skip on CPUs: they concern GPU threads, or LLVM does the same work.
_NOT_FOR_CPUS = (
    "s_tir.HoistIfThenElse",
    "s_tir.InferFragment",
    "s_tir.InjectDoubleBuffer",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.InjectVirtualThread",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LowerThreadAllreduce",
    "s_tir.LowerVtcmAlloc",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.RenormalizeSplitPattern",
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
    "s_tir.VerifyVTCMLimit",
    "tirx.CommonSubexprElim",
    "tirx.RemoveNoOp",
    "tirx.SplitHostDevice",
)


def apply_passes(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Apply our passes. Candidates and whole models share them, so the timed code is the deployed code."""
    counted = count_in_int32(fetch_by_maps(write_attention(module)), target)
    limited = limit_unrolling(gather_short_vectors(counted, target), target)
    return expand_math(quantize_in_vectors(add_as_trees(limited, target), target), target)


def pass_context(target: tvm.target.Target, **options: object) -> tvm.transform.PassContext:
    """Return TVM's PassContext for a target, with the caller's additional options."""
    if target.kind.name == "cuda":
        options["tirx.use_async_copy"] = capability_of(target) >= ASYNC_COPIES_SINCE
        return tvm.transform.PassContext(config=options)
    return tvm.transform.PassContext(config=options, disabled_pass=_NOT_FOR_CPUS)


def compile_scheduled(
    scheduled: tvm.IRModule, target: tvm.target.Target, check_arguments: bool = True
) -> tuple[Any, PackedWorkload | None]:
    """Compile a candidate to a tvm.runtime.Executable, without machine code yet.

    Checking types and shapes at each call takes a third of a small kernel's code. A caller that makes the
    arguments from the same workload doesn't need these checks. The second value describes the constants that
    the candidate packs ahead of time; None if it packs none. TVM's C++ code may raise any exception class.
    """
    parts = split_packing(scheduled)
    return compile_functions(parts.module if parts else scheduled, target, check_arguments), parts


def compile_functions(module: tvm.IRModule, target: tvm.target.Target, check_arguments: bool) -> Any:
    """Compile scheduled functions that pack nothing to a tvm.runtime.Executable. See `compile_scheduled`."""
    options = {} if check_arguments else {"tirx.disable_assert": True}
    with target, pass_context(target, **options):  # nvcc is called for the current target
        return tvm.compile(apply_passes(module, target), target=target, tir_pipeline=PIPELINE)
