"""Import nodes that move elements of less than a byte, or floats of a byte.

Each element's code is stored in a byte. Operators that move elements move these bytes. Operators that convert
them to another type have their own converters. ONNX has no other operators for these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.importing.spec import NARROW, STORAGE
from compiler.importing.values import Node, UnsupportedOperator, Value

_MOVES = {
    *(
        "Concat",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
    ),
    *("TensorScatter", "Tile", "Transpose", "Unsqueeze", "Where"),
}
_CONVERTS = {
    *("BitCast", "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "If", "Loop", "Scan"),
    *("IsInf", "IsNaN", "OptionalHasElement", "QLinearMatMul", "Shape", "Size"),
}


def convert_narrow(
    node: Node, plainly: Callable[[Node], Sequence[Value | None]]
) -> Sequence[Value | None] | None:
    """Import a node that moves narrow elements; `plainly` imports it for their codes. Return None for a node
    that converts them. Raises UnsupportedOperator for other nodes."""
    if node.domain or node.kind in _CONVERTS:
        return None
    dtypes = {value.dtype for value in node.inputs if value is not None and value.dtype in NARROW}
    (dtype,) = dtypes if len(dtypes) == 1 else ("",)
    if node.kind not in _MOVES or not dtype:
        names = " and ".join(sorted(dtypes))
        raise UnsupportedOperator(f"ONNX doesn't define it for {names}: cast to a wider type before it")
    codes = tuple(
        value.stored() if value is not None and value.dtype in NARROW else value for value in node.inputs
    )
    results = plainly(replace(node, inputs=codes))
    return [result and (result.narrowed(dtype) if result.dtype == STORAGE else result) for result in results]
