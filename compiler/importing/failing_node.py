"""Find the node of a model for which no code can be generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
from tvm import relax

from compiler.importing.model import RelaxModel, import_file
from compiler.importing.node_names import node_number
from compiler.importing.onnx_file import OnnxFile
from compiler.importing.onnx_graph import described
from compiler.importing.spec import CompileError, ModelError

CompileModel = Callable[[RelaxModel], object]


def failing_node_error(error: CompileError, file: OnnxFile, compile_model: CompileModel) -> ModelError:
    """Return an error that names the first node with which the model can't be compiled. `error` is the error
    of the whole model. `compile_model` raises CompileError."""
    nodes = file.proto.graph.node
    bad = _first_failing(len(nodes), lambda count: _compiles(file, count, compile_model))
    return ModelError(
        f"{described(nodes[bad], bad, file.opsets)} can't be compiled: {error.REASON}. Change or replace the "
        "node and export the model again"
    )


def failing_binding_error(
    error: CompileError, model: RelaxModel, describe: Callable[[str], str], compile_model: CompileModel
) -> ModelError:
    """Like `failing_node_error`, for a model of another format. `describe` takes a name of `node_names`, and
    describes the node in the model's file."""
    bindings = [binding for block in model.module["main"].body.blocks for binding in block.bindings]

    def compiles(count: int) -> bool:
        try:
            compile_model(replace(model, module=_prefix(model.module, count)))
        except CompileError:
            return False
        return True

    bad = _first_failing(len(bindings), compiles)
    # A binding without a number belongs to the node whose binding follows.
    numbers = (node_number(binding.var.name) for binding in bindings[bad:])
    number = next((number for number in numbers if number is not None), None)
    if number is None:
        return error
    operator = getattr(getattr(getattr(bindings[bad], "value", None), "op", None), "name", "")
    computing = f"{operator.removeprefix('relax.')} in " if operator.startswith("relax.") else ""
    return ModelError(
        f"{computing}{describe(model.node_names[number])} can't be compiled: {error.REASON}. Change or "
        "replace it and export the model again"
    )


def _first_failing(count: int, compiles: Callable[[int], bool]) -> int:
    """Return the index of the first part with which a model of `count` parts can't be compiled. `compiles`
    takes the number of parts."""
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if compiles(middle):
            good = middle
        else:
            bad = middle
    return bad - 1


def _prefix(module: Any, count: int) -> Any:
    """Return a module whose `main` computes the first bindings, and returns the last of them."""
    main, blocks = module["main"], []
    for block in main.body.blocks:
        kept = list(block.bindings)[:count]
        count -= len(kept)
        if kept:
            blocks.append(type(block)(kept))
    last = blocks[-1].bindings[-1].var
    result = relax.Var("result", last.ty)
    blocks[-1] = type(blocks[-1])([*blocks[-1].bindings, relax.VarBinding(result, last)])
    module = module.clone()
    module["main"] = relax.Function(
        main.params, relax.SeqExpr(blocks, result), last.ty, main.is_pure, main.attrs
    )
    return module


def _compiles(file: OnnxFile, count: int, compile_model: CompileModel) -> bool:
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
