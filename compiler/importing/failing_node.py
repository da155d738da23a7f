"""Find the node of an ONNX model for which no code can be generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx

from compiler.importing.model import RelaxModel, import_file
from compiler.importing.onnx_file import OnnxFile
from compiler.importing.onnx_graph import described
from compiler.importing.spec import CompileError, ModelError


def failing_node_error(
    error: CompileError, file: OnnxFile, compile_model: Callable[[RelaxModel], object]
) -> ModelError:
    """Return an error that names the first node with which the model can't be compiled. `error` is the error
    of the whole model. `compile_model` raises CompileError."""
    nodes = file.proto.graph.node
    good, bad = 0, len(nodes)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _compiles(file, middle, compile_model):
            good = middle
        else:
            bad = middle
    node = nodes[bad - 1]
    return ModelError(
        f"{described(node, bad - 1, file.opsets)} can't be compiled: {error.REASON}. Change or replace the "
        "node and export the model again"
    )


def _compiles(file: OnnxFile, count: int, compile_model: Callable[[RelaxModel], object]) -> bool:
    """Return whether the first nodes of a model can be compiled."""
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    del proto.graph.node[count:]
    results = [name for node in proto.graph.node for name in node.output if name]
    try:
        compile_model(import_file(replace(file, proto=proto), results[-1:]))
    except CompileError:
        return False
    except ModelError:  # for an output that the model doesn't have, such as an empty one
        return True
    return True
