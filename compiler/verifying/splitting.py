"""Split a model at some of its values: the nodes after them read given values instead of computed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile
from compiler.importing.spec import TensorSpec
from compiler.verifying.steps.step import GIVEN

Array = NDArray[Any]


def split_at(file: OnnxFile, names: Iterable[str], wanted: Mapping[str, Array]) -> OnnxFile:
    """Return the model with these values as additional inputs, with the shapes in `wanted`.

    All nodes read these inputs. The model still computes the values themselves.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    cut = {*names}
    for node in proto.graph.node:
        node.input[:] = [f"{name}{GIVEN}" if name in cut else name for name in node.input]
    inputs = list(file.inputs)
    for name in sorted(cut):
        array = wanted[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.graph.input.append(onnx.helper.make_tensor_value_info(f"{name}{GIVEN}", kind, array.shape))
        inputs.append(TensorSpec(f"{name}{GIVEN}", array.shape, str(array.dtype)))
    return replace(file, proto=proto, inputs=tuple(inputs))


def given_values(names: Iterable[str], wanted: Mapping[str, Array]) -> dict[str, Array]:
    """Return the additional inputs of the model that `split_at` returns."""
    return {f"{name}{GIVEN}": wanted[name] for name in names}


def selected_from(file: OnnxFile) -> list[str]:
    """Return the names of the boxes and scores that a model computes and selects from.

    A rounding error that changes the order of two scores, or whether two boxes overlap, changes all later
    values. So selections are compared for the reference's boxes and scores, unless these are a selection
    themselves, whose shapes depend on the inputs.
    """
    computed: set[str] = set()
    selected: set[str] = set()
    names: list[str] = []
    for node in file.proto.graph.node:
        if node.op_type == "NonMaxSuppression":
            names += [name for name in node.input[:2] if name in computed - selected]
        if node.op_type in ("NonMaxSuppression", "NonZero") or selected.intersection(node.input):
            selected.update(node.output)
        computed.update(node.output)
    return list(dict.fromkeys(names))
