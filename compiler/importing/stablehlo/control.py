"""Calls, which are inlined, and loops and branches, which constants decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.importing.operators.control import choose
from compiler.importing.stablehlo.attributes import tensor_type
from compiler.importing.stablehlo.elementwise import CONVERTERS as ELEMENTWISE
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor, TensorOrParts
from compiler.importing.stablehlo.sorting import top_k
from compiler.importing.values import UnsupportedOperator

# Calls that another operation computes, by the name of the call's target.
_TARGETS: Mapping[str, Converter] = {
    "mhlo.erf": ELEMENTWISE["chlo.erf"],
    "mhlo.tan": ELEMENTWISE["stablehlo.tan"],
}
# Calls that say something about their operands alone.
_MARKS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
_TOP_K = "mhlo.topk"
CALL_TARGETS = frozenset((*_TARGETS, *_MARKS, _TOP_K))


def _call(importer: Importer, op: Any) -> list[TensorOrParts]:
    return importer.call(str(op.attributes["callee"].value), importer.given(op))


def _composite(importer: Importer, op: Any) -> Sequence[TensorOrParts] | TensorOrParts:
    """Import an operation with a name and a body: by the name, if it is known."""
    name = str(op.attributes["name"].value)
    if name.startswith("chlo.") and name in ELEMENTWISE:
        return ELEMENTWISE[name](importer, op)
    if name == "chlo.top_k":
        return top_k(
            importer, importer.operands(op)[0], int(op.attributes["composite_attributes"]["k"].value)
        )
    return importer.call(str(op.attributes["decomposition"].value), importer.given(op))


def _custom_call(importer: Importer, op: Any) -> Sequence[TensorOrParts] | TensorOrParts:
    target = str(op.attributes["call_target_name"].value)
    if target in _MARKS:
        return importer.given(op)
    if target == _TOP_K:
        return top_k(importer, importer.operands(op)[0], tensor_type(op.results[0].type)[0][-1])
    if target not in _TARGETS:
        raise UnsupportedOperator(
            f"it calls '{target}', which the program doesn't define: write the model without it"
        )
    return _TARGETS[target](importer, op)


def _as_given(importer: Importer, op: Any) -> list[TensorOrParts]:
    return importer.given(op)


def _while(importer: Importer, op: Any) -> list[TensorOrParts]:
    """Unroll a loop whose condition depends only on constants, such as a counter."""
    carried = importer.given(op)
    condition, body = op.regions
    is_outermost, importer.in_loop = not importer.in_loop, True
    while True:
        (going,) = (importer.joined(each) for each in importer.region(condition, carried))
        if going.scalar is None:
            raise UnsupportedOperator("the data decides how often the loop runs")
        if not going.scalar:
            importer.in_loop = not is_outermost
            return carried
        carried = importer.region(body, carried)


def _case(importer: Importer, op: Any) -> list[TensorOrParts]:
    """Import the branch that a constant chooses. Otherwise all are computed, and the data selects."""
    (index,) = importer.operands(op)
    branches = list(op.regions)
    # `if` has the branch of true first; an index out of range means the last branch.
    is_if = index.dtype == "bool"
    if index.scalar is not None:
        at = int(not index.scalar) if is_if else int(index.scalar)
        return importer.region(branches[at if 0 <= at < len(branches) else -1], [])
    results = [[importer.joined(each) for each in importer.region(branch, [])] for branch in branches]
    chosen = [importer.full(each) for each in results[-1]]
    for at, result in reversed(list(enumerate(results[:-1]))):
        is_it = index.value if is_if else importer.graph.op("Equal", index.value, np.array(at, index.dtype))
        chosen = choose(importer.graph, is_it, [importer.full(each) for each in result], chosen)
    return [Tensor.of(value) for value in chosen]


CONVERTERS: Mapping[str, Converter] = {
    "func.call": _call,
    "stablehlo.case": _case,
    "stablehlo.composite": _composite,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.if": _case,
    "stablehlo.optimization_barrier": _as_given,
    "stablehlo.while": _while,
}
