"""What scheduled modules go through before TVM's pipeline: steps of code generation that no trace records."""

from __future__ import annotations

from typing import Any

import tvm

from compiler.codegen.row_sums import add_as_trees
from compiler.codegen.vector_math import expand_math
from compiler.constants.packing import PackedWorkload, split_packing


def apply_passes(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Candidates and whole models alike, so that what is timed is what is deployed."""
    return expand_math(add_as_trees(module, target), target)


def compile_scheduled(
    scheduled: tvm.IRModule, target: tvm.target.Target
) -> tuple[Any, PackedWorkload | None]:
    """A candidate as TVM's Executable, without machine code yet, and what it packs ahead of time.

    Raises whatever class TVM's C++ side names.
    """
    parts = split_packing(scheduled)
    return tvm.compile(apply_passes(parts.module if parts else scheduled, target), target=target), parts
