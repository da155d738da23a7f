"""Mark weights of narrow integers, which x86's pmaddubsw multiplies exactly.

ONNX Runtime's quantization makes weights of 7 bits by its option `reduce_range`, and recommends it for x86
processors without VNNI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm.ir import Call, GenericConst

from compiler.target import target_features
from compiler.vocabulary import NARROW_BUFFERS
from search.dag import NARROW
from search.sketches.intrinsics import dot_product

# A number of sums that any instruction divides.
MANY_LANES = 64


def is_narrow(values: NDArray[Any]) -> bool:
    """Return whether all integers of an array are from -NARROW to NARROW."""
    return values.size > 0 and bool(values.min() >= -NARROW and values.max() <= NARROW)


def mark_narrow_weights(mod: tvm.IRModule, calls: Sequence[Call], target: tvm.target.Target) -> tvm.IRModule:
    """List the narrow weights of each function in its attribute NARROW_BUFFERS, if the target has an
    instruction for narrow weights only. `calls` are all calls of the module's functions.

        gv = call_tir(conv2d, (x, w))         # w: int8, a constant from -64 to 64
    ->
        def conv2d(...): attr = {"narrow_buffers": [1]}
    """
    intrinsic = dot_product(target_features(target), MANY_LANES, "int8", narrow=True)
    if intrinsic is None or not intrinsic.narrow:
        return mod
    found: dict[Any, set[int]] = {}
    for call in calls:
        variable, arguments = call.args[:2]
        narrow = {
            number
            for number, argument in enumerate(arguments)
            if isinstance(argument, GenericConst)
            and str(argument.ty.dtype) == intrinsic.columns
            and is_narrow(argument.value.numpy())
        }
        found[variable] = found.get(variable, narrow) & narrow
    marked = {
        variable: mod[variable].with_attr(NARROW_BUFFERS, sorted(narrow))
        for variable, narrow in found.items()
        if narrow
    }
    return tvm.IRModule(
        {**dict(mod.functions_items()), **marked}, attrs=mod.attrs, global_infos=mod.global_infos
    )
