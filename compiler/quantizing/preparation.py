"""Prepare a model for ONNX Runtime's quantization tools: one ONNX message with named nodes."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import numpy_helper

from compiler.importing.onnx_file import MAX_FILE_BYTES, OnnxFile
from compiler.importing.spec import ModelError

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
# ONNX limits the size of a message, and quantizing adds scales.
MAX_BYTES = MAX_FILE_BYTES - (64 << 20)


def prepared(file: OnnxFile) -> onnx.ModelProto:
    """Return the model as one message, simplified by ONNX Runtime.

    It has the weights, the inputs as the file declares them, and the types of all values. Each node has a
    unique name. Raises ModelError.
    """
    try:
        tools = importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise ModelError(
            "quantizing needs ONNX Runtime on the scheduler's machine: install tunefarm[verify] there"
        ) from error
    with tempfile.TemporaryDirectory(prefix="tunefarm-quantize-") as folder:
        source, target = Path(folder) / "whole.onnx", Path(folder) / "prepared.onnx"
        onnx.save(_whole(file), source)
        tools.quant_pre_process(source, target, skip_symbolic_shape=True)
        proto = onnx.load(target)
    _name_nodes(proto.graph.node)
    return proto


def _whole(file: OnnxFile) -> onnx.ModelProto:
    size = file.proto.ByteSize() + sum(weight.nbytes for weight in file.weights.values())
    if size > MAX_BYTES:
        raise ModelError(
            f"the model has {size} bytes; the limit for quantizing is {MAX_BYTES}: upload a quantized model"
        )
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    graph = proto.graph
    graph.initializer.extend(numpy_helper.from_array(weight, name) for name, weight in file.weights.items())
    # A weight that is also listed as an input isn't a constant.
    del graph.input[:]
    graph.input.extend(file.declared)
    return proto


def _name_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give each node a unique name. The first node with a name keeps it."""
    taken: set[str] = set()
    for number, node in enumerate(nodes):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}"
            while node.name in taken:
                node.name += "_"
        taken.add(node.name)


def float_values(proto: onnx.ModelProto) -> dict[str, str]:
    """Map each float tensor that the main graph computes to the name of the node that computes it."""
    makers = {name: node.name for node in proto.graph.node for name in node.output if name}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*proto.graph.value_info, *proto.graph.output)
        if value.type.HasField("tensor_type")
    }
    return {name: maker for name, maker in makers.items() if types.get(name) in FLOATS}
