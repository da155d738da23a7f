"""What scheduled modules go through before TVM's pipeline: steps of code generation that no trace records."""

from __future__ import annotations

import tvm

from compiler.row_sums import add_as_trees
from compiler.vector_math import expand_math


def prepared(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Candidates and whole models alike, so that what is timed is what is deployed."""
    return expand_math(add_as_trees(module, target), target)
