"""A model of large constants."""

from __future__ import annotations

from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax

EXTENT = 300


def adder(*weights: NDArray[Any], extent: int = EXTENT) -> tvm.IRModule:
    """Return a model that adds all weights to its input of `extent` x `extent` elements."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((extent, extent), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            total: relax.Expr = x
            for weight in weights:
                constant = relax.const(weight, str(weight.dtype))
                total = builder.emit(relax.op.add(total, relax.op.astype(constant, "float32")))
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    return builder.finalize()
