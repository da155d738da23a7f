"""Read the outline of a model's file: its inputs, outputs and operators, without importing it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import singledispatch
from typing import IO, Any

import onnx
from tvm import relax
from tvm.ir import Call

from compiler.importing.folding import FOLDED_DOMAINS, RANDOM
from compiler.importing.formats import exported_program
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.model_file import Content, ModelFile
from compiler.importing.formats.reading import READERS, opened
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.importing.formats.tvm_module import TvmModule
from compiler.importing.onnx_file import FunctionKey, call_key, function_key, parse, plain_domain, read_graph
from compiler.importing.onnx_graph import TVM_FRONTEND_OPS
from compiler.importing.operators import CONVERTERS
from compiler.importing.operators.forms import FORMS
from compiler.importing.spec import ModelError
from compiler.importing.stablehlo import CONVERTERS as STABLEHLO_CONVERTERS
from compiler.importing.stablehlo.control import CALL_TARGETS
from core.model_format import ModelFormat
from core.model_outline import MAX_OPERATORS, MAX_TENSORS, InputOutline, ModelOutline, OperatorOutline

# Operations that hold or end others.
_STRUCTURE = frozenset(("builtin.module", "func.func", "func.return", "stablehlo.return"))
# An operator's name, and whether the import supports it.
_Found = tuple[str, bool]


def read_outline(data: bytes | IO[bytes]) -> ModelOutline:
    """Return the outline of a model's file. Inputs of ONNX models and exported programs may
    have dynamic dimensions.

    Raises ModelError. Parsers are native code: strangers' files belong into a child process (see
    compiler.children.child).
    """
    content, format_ = opened(data)
    if format_ in (ModelFormat.ONNX, ModelFormat.ONNX_ARCHIVE):
        proto = _parse(content, format_)
        inputs = [*_onnx_inputs(proto.graph)]
        return _outline(
            format_, inputs, [output.name for output in proto.graph.output], _onnx_operators(proto)
        )
    if format_ is ModelFormat.EXPORTED_PROGRAM:
        program, dimensions = exported_program.read_open(content)
        inputs = [
            InputOutline(spec.name, spec.dtype, dimensions.get(spec.name, spec.shape))
            for spec in program.inputs
        ]
        return _outline(format_, inputs, program.output_names, _operators(program))
    file = READERS[format_](content, {})
    inputs = [InputOutline(spec.name, spec.dtype, spec.shape) for spec in file.inputs]
    return _outline(format_, inputs, file.output_names, _operators(file))


def _outline(
    format_: ModelFormat, inputs: list[InputOutline], outputs: Iterable[str], operators: Iterable[_Found]
) -> ModelOutline:
    """Return an outline with the most frequent operators first."""
    counted = Counter(operators).most_common(MAX_OPERATORS)
    listed = tuple(OperatorOutline(name, count, supported) for (name, supported), count in counted)
    return ModelOutline(format_, tuple(inputs[:MAX_TENSORS]), tuple(outputs)[:MAX_TENSORS], listed)


# ONNX


def _parse(content: Content, format_: ModelFormat) -> onnx.ModelProto:
    """Return the model of a file, without weights that are in other files. Raises ModelError."""
    if format_ is ModelFormat.ONNX:
        return parse(content if isinstance(content, bytes) else bytes(content))
    file: Any = io.BytesIO(content) if isinstance(content, bytes) else content
    return read_graph(memoryview(content), file)[0]


def _onnx_inputs(graph: onnx.GraphProto) -> Iterator[InputOutline]:
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise ModelError(f"input '{value.name}' is not a tensor; only tensors are supported")
        try:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        except KeyError as error:
            raise ModelError(
                f"input '{value.name}' has no element type that ONNX knows: {tensor.elem_type}"
            ) from error
        # Exporters write zero or a negative number for an unknown extent.
        dims = [dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in tensor.shape.dim]
        yield InputOutline(value.name, dtype, tuple(dims) if tensor.HasField("shape") else None)


def _onnx_operators(proto: onnx.ModelProto) -> Iterator[_Found]:
    """Yield the operator of each node, in nested graphs and the model's functions too."""
    functions = {function_key(function) for function in proto.functions}
    constants = {tensor.name for tensor in proto.graph.initializer}
    yield from _of_nodes(proto.graph.node, proto.opset_import, functions, constants)
    for function in proto.functions:
        yield from _of_nodes(function.node, function.opset_import, functions, set())


def _of_nodes(
    nodes: Iterable[onnx.NodeProto], opsets: Any, functions: Collection[FunctionKey], constants: set[str]
) -> Iterator[_Found]:
    """Yield the operators of a graph. `constants` are the names of values that are known without inputs."""
    versions = {plain_domain(entry.domain): int(entry.version) for entry in opsets}
    for node in nodes:
        domain = plain_domain(node.domain)
        # The import computes these nodes at once (compiler.importing.folding).
        is_folded = domain in FOLDED_DOMAINS and node.op_type not in RANDOM
        is_folded &= constants.issuperset(name for name in node.input if name)
        if is_folded or (not domain and node.op_type in ("Shape", "Size")):
            constants.update(node.output)
        if call_key(node) not in functions:
            name = f"{domain}.{node.op_type}" if domain else node.op_type
            yield name, is_folded or _reads(domain, node.op_type, versions.get(domain, 1))
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                inner = constants | {tensor.name for tensor in graph.initializer}
                yield from _of_nodes(graph.node, opsets, functions, inner)


def _reads(domain: str, kind: str, version: int) -> bool:
    """Return whether an importer knows an operator, or ONNX defines it by others."""
    if (
        (domain, kind) in CONVERTERS
        or kind in TVM_FRONTEND_OPS.get(domain, ())
        or (not domain and kind in FORMS)
    ):
        return True
    try:
        schema: Any = onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


# Other formats


@singledispatch
def _operators(file: ModelFile) -> Iterator[_Found]:
    """Yield each operator of a file."""
    raise NotImplementedError(type(file).__name__)


@_operators.register
def _(file: ExportedProgram) -> Iterator[_Found]:
    known = exported_program.known_operators()
    for node in file.decomposed.graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name and name != "getitem":
            yield name.removesuffix(".default"), name in known


@_operators.register
def _(file: TfliteModel) -> Iterator[_Found]:
    yield from file.operators()


@_operators.register
def _(file: StablehloModel) -> Iterator[_Found]:
    for name in file.operations():
        if name not in _STRUCTURE:
            yield name, name in STABLEHLO_CONVERTERS or name in CALL_TARGETS


@_operators.register
def _(file: TvmModule) -> Iterator[_Found]:
    names: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, Call):
            names.append(getattr(expr.op, "name", "a function").removeprefix("relax."))

    relax.analysis.post_order_visit(file.module["main"], visit)
    yield from ((name, True) for name in names)
