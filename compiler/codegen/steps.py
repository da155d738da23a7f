"""Compile scheduled modules: our passes first, then TVM's pipeline and our passes in it."""

from __future__ import annotations

from typing import Any

import tvm

from compiler.codegen.last_steps import count_in_int32
from compiler.codegen.pipeline import PIPELINE
from compiler.codegen.row_sums import add_as_trees
from compiler.codegen.vector_math import expand_math
from compiler.constants.packing import PackedWorkload, split_packing
from compiler.target import capability_of
from core.device import ASYNC_COPIES_SINCE

# TVM's passes that take time and do nothing for CPUs: they are about threads of GPUs, or LLVM does the same.
_NOT_FOR_CPUS = (
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
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
    "s_tir.VerifyVTCMLimit",
    "tirx.CommonSubexprElim",
    "tirx.RemoveNoOp",
)


def apply_passes(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Apply our passes. Candidates and whole models share them, so what is timed is what is deployed."""
    return expand_math(add_as_trees(count_in_int32(module, target), target), target)


def pass_context(target: tvm.target.Target, **options: object) -> tvm.transform.PassContext:
    """Return the options of TVM's pipeline for a target, and others that the caller wants."""
    if target.kind.name == "cuda":
        options["tirx.use_async_copy"] = capability_of(target) >= ASYNC_COPIES_SINCE
        return tvm.transform.PassContext(config=options)
    return tvm.transform.PassContext(config=options, disabled_pass=_NOT_FOR_CPUS)


def compile_scheduled(
    scheduled: tvm.IRModule, target: tvm.target.Target, check_arguments: bool = True
) -> tuple[Any, PackedWorkload | None]:
    """Compile a candidate to a tvm.runtime.Executable, without machine code yet.

    Checks of types and shapes at each call are a third of a small kernel's code. A caller that makes the
    arguments from the same workload needs none. The second value describes what the candidate packs ahead of
    time; None when it packs nothing. Raises whatever class TVM's C++ side names.
    """
    parts = split_packing(scheduled)
    options = {} if check_arguments else {"tirx.disable_assert": True}
    with target, pass_context(target, **options):  # nvcc is called for the target
        module = apply_passes(parts.module if parts else scheduled, target)
        return tvm.compile(module, target=target, tir_pipeline=PIPELINE), parts
