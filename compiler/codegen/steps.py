"""Compile scheduled modules: our passes first, then TVM's pipeline and our pass in it."""

from __future__ import annotations

from typing import Any

import tvm

from compiler.codegen.row_sums import add_as_trees
from compiler.codegen.stack import PIPELINE
from compiler.codegen.vector_math import expand_math
from compiler.constants.packing import PackedWorkload, split_packing


def apply_passes(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Apply our passes. Candidates and whole models share them, so what is timed is what is deployed."""
    return expand_math(add_as_trees(module, target), target)


def compile_scheduled(
    scheduled: tvm.IRModule, target: tvm.target.Target
) -> tuple[Any, PackedWorkload | None]:
    """Compile a candidate to a tvm.runtime.Executable, without machine code yet.

    The second value describes what it packs ahead of time; None when it packs nothing. Raises whatever class
    TVM's C++ side names.
    """
    parts = split_packing(scheduled)
    with target:  # nvcc is called for it
        module = apply_passes(parts.module if parts else scheduled, target)
        return tvm.compile(module, target=target, tir_pipeline=PIPELINE), parts
