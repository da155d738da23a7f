"""A model as one ONNX message with named nodes, which ONNX Runtime's tools quantize."""

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
# A message has a limit, and quantizing adds scales to it.
MAX_BYTES = MAX_FILE_BYTES - (64 << 20)


def prepared(file: OnnxFile) -> onnx.ModelProto:
    """Return the model as ONNX Runtime simplifies it, with its weights, the inputs as the file declares them,
    the types of all values, and a name of its own for each node. Raises ModelError."""
    try:
        tools = importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise ModelError(
            "quantizing needs onnxruntime beside the scheduler: install tunefarm[verify] there"
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
            f"the model has {size} bytes, and at most {MAX_BYTES} are quantized: quantize it where it is made"
        )
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    graph = proto.graph
    graph.initializer.extend(numpy_helper.from_array(weight, name) for name, weight in file.weights.items())
    # Weights that are listed as inputs as well would not be constants.
    del graph.input[:]
    graph.input.extend(file.declared)
    return proto


def _name_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give nodes without a name, or with another node's, a name of their own."""
    taken: set[str] = set()
    for number, node in enumerate(nodes):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{number}"
            while node.name in taken:
                node.name += "_"
        taken.add(node.name)


def float_values(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the values that are tensors of floats and that nodes of the main graph compute: by name, the
    name of the node."""
    makers = {name: node.name for node in proto.graph.node for name in node.output if name}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*proto.graph.value_info, *proto.graph.output)
        if value.type.HasField("tensor_type")
    }
    return {name: maker for name, maker in makers.items() if types.get(name) in FLOATS}
