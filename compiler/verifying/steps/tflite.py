"""Split a TFLite model into its operators."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.tflite_model import TfliteModel, read
from compiler.importing.spec import NoReference
from compiler.verifying.edges import DYNAMIC_RANGE
from compiler.verifying.steps.step import GIVEN, Step, StepwiseModel

Array = NDArray[Any]
# The positions of the tensor and of the index.
_INDEXES = {"GATHER": (0, 1), "EMBEDDING_LOOKUP": (1, 0)}


def split_into_steps(file: TfliteModel) -> StepwiseModel:
    """Return the operators of a model. Raises NoReference without LiteRT."""
    schema, model = _unpacked(file)
    graph = model.subgraphs[0]
    steps, produced = [], []
    for op in graph.operators:
        numbers = [int(number) for number in op.outputs]
        label = f"operator {_kind(schema, model, op)} that computes '{_name(graph, numbers[0])}'"
        inputs = tuple(_name(graph, int(number)) for number in op.inputs if number >= 0)
        steps.append(
            Step(
                _kinds(schema, model, op),
                label,
                inputs,
                tuple(_name(graph, number) for number in numbers),
            )
        )
        produced += numbers
    graph.outputs = produced
    observed = read(_packed(schema, model), {})

    def reference(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(observed.output_names, observed.compute(inputs), strict=True))

    def to_relax() -> Any:
        given = {}
        for number in produced:
            tensor = copy.copy(graph.tensors[number])
            tensor.name = f"{_name(graph, number)}{GIVEN}"
            given[number] = len(graph.tensors)
            graph.tensors.append(tensor)
        for op in graph.operators:
            op.inputs = [given.get(int(number), int(number)) for number in op.inputs]
        graph.inputs = [*graph.inputs, *given.values()]
        return read(_packed(schema, model), {}).to_relax()

    return StepwiseModel(tuple(steps), reference, to_relax)


def index_extents(file: TfliteModel) -> dict[str, int]:
    """Return the number of indexed parts for each input that holds indices, by name."""
    schema, model = _unpacked(file)
    graph = model.subgraphs[0]
    found: dict[str, int] = {}
    for op in graph.operators:
        kind = _kind(schema, model, op)
        if kind not in _INDEXES:
            continue
        data, index = (int(op.inputs[place]) for place in _INDEXES[kind])
        axis = op.builtinOptions.axis if kind == "GATHER" and op.builtinOptions else 0
        name, extent = _name(graph, index), int(graph.tensors[data].shape[axis])
        found[name] = min(extent, found.get(name, extent))
    return found


def _unpacked(file: TfliteModel) -> tuple[Any, Any]:
    try:
        schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
    except ImportError as error:
        raise NoReference("LiteRT isn't installed (pip install 'tunefarm[tflite]')") from error
    return schema, schema.ModelT.InitFromPackedBuf(file.content, 0)


def _packed(schema: Any, model: Any) -> bytes:
    builder = importlib.import_module("flatbuffers").Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _name(graph: Any, number: int) -> str:
    name = graph.tensors[number].name
    return name.decode() if isinstance(name, bytes) else str(name)


def _kinds(schema: Any, model: Any, op: Any) -> frozenset[str]:
    """Return the kind of an operator, and whether it has weights of bytes beside floats."""
    types, numbers = schema.TensorType, [int(number) for number in op.inputs if number >= 0]
    kinds = [model.subgraphs[0].tensors[number].type for number in numbers]
    is_mixed = types.FLOAT32 in kinds[:1] and types.INT8 in kinds[1:]
    return frozenset({_kind(schema, model, op), *([DYNAMIC_RANGE] if is_mixed else [])})


def _kind(schema: Any, model: Any, op: Any) -> str:
    code = model.operatorCodes[op.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    return next(name for name, value in vars(schema.BuiltinOperator).items() if value == number)
