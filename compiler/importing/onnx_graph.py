"""Import the nodes of an ONNX graph one after the other, as relax operators on static shapes.

Every value has a static shape. Nodes of constants are computed at once (`compiler.importing.folding`), so
that shapes and arithmetic on them never reach TVM. The first of these that knows an operator imports it:

1. a converter of ours (`compiler.importing.operators`), mostly in terms of other ONNX operators;
2. TVM's importer;
3. the body that ONNX defines for it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import tvm
from numpy.typing import ArrayLike
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map, onnx_input

from compiler.constants.fold import static_shape
from compiler.importing.folding import check_fits, fold
from compiler.importing.narrow import convert_narrow
from compiler.importing.node_names import NodeNames
from compiler.importing.onnx_file import (
    MAX_NODES,
    FunctionKey,
    OnnxFile,
    call_key,
    function_key,
    node_name,
    plain_domain,
)
from compiler.importing.padding import convert_padded, fill_invalid_rows
from compiler.importing.reasons import reason_of, reason_of_unknown
from compiler.importing.row_writes import write_rows
from compiler.importing.spec import NARROW, STORAGE, ModelError, Shape, TensorSpec, first_line
from compiler.importing.values import OPSET, Array, NameScope, Node, UnsupportedOperator, Value, numpy_dtype

# The largest tensor of a model in bytes, because a small file can describe an enormous computation.
MAX_TENSOR_BYTES = 4 << 30


# Returns the outputs of a node, or None to leave the node to the next importer.
Converter = Callable[["Graph", Node], "Value | Sequence[Value | None] | None"]


class Graph:
    """The relax function under construction. Converters add to it: `op` imports another ONNX operator, `emit`
    takes a relax expression."""

    def __init__(
        self,
        converters: Mapping[tuple[str, str], Converter],
        forms: Mapping[str, Converter] = MappingProxyType({}),
    ) -> None:
        """`converters` are by domain and name. `forms` rewrite older forms of ONNX's operators, by name."""
        self.builder = relax.BlockBuilder()
        self._converters = converters
        self._forms = forms
        self._functions: dict[FunctionKey, onnx.FunctionProto] = {}
        self._count = 0
        self.node_names = NodeNames()
        # The name for new bindings, see compiler.importing.node_names.
        self.binding = ""
        # The outputs of the module.
        self.outputs: tuple[TensorSpec, ...] = ()
        # The buffers of a decoder's cache by name, and its input with the number of earlier tokens.
        self._buffers: dict[str, relax.Var] = {}
        self._past_length: relax.Var | None = None

    def module(self, file: OnnxFile, results: Sequence[str]) -> tvm.IRModule:
        """Return the module that computes these values of a file. Raises ModelError, which names the node
        that can't be imported."""
        graph = file.proto.graph
        self._functions = {function_key(one): one for one in file.proto.functions}
        names = identifiers([spec.name for spec in file.inputs])
        params = [
            relax.Var(name, relax.TensorType(spec.shape, spec.storage))
            for name, spec in zip(names, file.inputs, strict=True)
        ]
        if file.cache is not None:
            by_name = {spec.name: param for spec, param in zip(file.inputs, params, strict=True)}
            self._buffers = {name: by_name[name] for name in file.cache.buffers}
            self._past_length = by_name[file.cache.position]
        with self.builder.function("main", params=params):
            with self.builder.dataflow():
                given = {
                    spec.name: self._input(spec, param)
                    for spec, param in zip(file.inputs, params, strict=True)
                }
                given |= {name: self.constant(array) for name, array in file.weights.items()}
                try:
                    values = self.import_subgraph(graph, given, file.opsets, results)
                except UnsupportedOperator as error:
                    raise ModelError(f"the model isn't valid ONNX: {error}") from error
                values = [fill_invalid_rows(self, value) for value in values]
                self.outputs = tuple(
                    TensorSpec(name, value.shape, value.dtype, value.padding.axis if value.padding else None)
                    for name, value in zip(results, values, strict=True)
                )
                for name, value in zip(results, values, strict=True):
                    if value.size == 0:
                        raise ModelError(f"output '{name}' is empty, of shape {value.shape}: leave it out")
                try:
                    exprs = [value.expr for value in values]
                except MemoryError as error:
                    raise ModelError(
                        f"the model's outputs take too much memory: {first_line(error)}"
                    ) from error
                output = self.builder.emit_output(exprs[0] if len(exprs) == 1 else relax.Tuple(exprs))
            self.builder.emit_func_output(output)
        module = self.builder.get()
        module["main"] = module["main"].with_attr("num_input", len(params))
        return module

    def _input(self, spec: TensorSpec, param: relax.Var) -> Value:
        if 0 in spec.shape:
            # An empty tensor is a constant.
            return Value(np.empty(spec.shape, numpy_dtype(spec.dtype)))
        if spec.dtype not in NARROW:
            return Value(expr=param)
        if NARROW[spec.dtype] == 8:
            return Value(expr=param).narrowed(spec.dtype)
        mask = relax.const(np.array((1 << NARROW[spec.dtype]) - 1, STORAGE), STORAGE)
        return self.emit(relax.op.bitwise_and(param, mask)).narrowed(spec.dtype)

    def import_subgraph(
        self,
        graph: onnx.GraphProto,
        given: Mapping[str, Value],
        opsets: Mapping[str, int],
        results: Sequence[str],
    ) -> list[Value]:
        """Import a graph, and return its `results`. `given` has its inputs and the outer values it reads."""
        values = dict(given)
        inputs = {value.name for value in graph.input}
        for tensor in graph.initializer:
            if tensor.name in given and (tensor.name in inputs or not inputs):
                # A default of an input, or a duplicate name, which ONNX forbids. For duplicates, ONNX Runtime
                # uses the outer value in branches, which have no inputs, and the inner one in loops.
                continue
            try:
                values[tensor.name] = self.constant(numpy_helper.to_array(tensor))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"its values can't be read: {first_line(error)}"
                raise ModelError(f"the model isn't valid ONNX: weight '{tensor.name}': {reason}") from error
        self._nodes(graph.node, values, opsets)
        return [_look_up(values, name) for name in results]

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], values: dict[str, Value], opsets: Mapping[str, int]
    ) -> None:
        outer = self.binding
        for position, proto in enumerate(nodes):
            # Nodes in a loop's body or a branch belong to the loop or the If.
            self.binding = outer or self.node_names.binding(proto.name or next(iter(proto.output), ""))
            try:
                results = self.node(proto, values, opsets)
            except ModelError:
                raise
            except _Unknown as error:
                raise ModelError(
                    f"{described(proto, position, opsets)} can't be imported: {reason_of_unknown(proto)}"
                ) from error
            except Exception as error:
                version = opsets.get(plain_domain(proto.domain), 1)
                reason = reason_of(error, proto, values, version)
                raise _NodeError(described(proto, position, opsets), reason) from error
            values.update(_named(proto.output, results))
        self.binding = outer

    def node(
        self, proto: onnx.NodeProto, values: Mapping[str, Value], opsets: Mapping[str, int]
    ) -> Sequence[Value | None]:
        self._count += 1
        if self._count > MAX_NODES:
            raise ModelError(f"the model's functions and loops stand for more than {MAX_NODES} nodes")
        domain = plain_domain(proto.domain)
        scope = NameScope(values, opsets)
        node = Node(
            domain,
            proto.op_type,
            opsets.get(domain, 1),
            tuple(_look_up(values, name) if name else None for name in proto.input),
            {attribute.name: _attribute(attribute, scope) for attribute in proto.attribute},
            tuple(proto.output),
            proto,
            scope,
        )
        results = self._convert(node)
        for position, result in enumerate(results):
            if node.wants(position) and result is None:
                raise UnsupportedOperator(f"its output {position} can't be computed")
        missing = [name for name in proto.output[len(results) :] if name]
        if missing:
            raise UnsupportedOperator(f"its output '{missing[0]}' can't be computed")
        return results

    def op(
        self,
        kind: str,
        *inputs: Value | ArrayLike | None,
        domain: str = "",
        opset: int = OPSET,
        **attributes: Any,
    ) -> Value:
        """Import an operator with one output."""
        return self.ops(kind, 1, *inputs, domain=domain, opset=opset, **attributes)[0]

    def ops(
        self,
        kind: str,
        num_outputs: int,
        *inputs: Value | ArrayLike | None,
        domain: str = "",
        opset: int = OPSET,
        **attributes: Any,
    ) -> list[Value]:
        """Import an operator with several outputs. Inputs that aren't values are constants."""
        known = [value if value is None else self.value(value) for value in inputs]
        values = {f"i{number}": value for number, value in enumerate(known) if value is not None}
        names = ["" if value is None else f"i{number}" for number, value in enumerate(known)]
        outputs = [f"o{number}" for number in range(num_outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        proto = onnx.helper.make_node(kind, names, outputs, domain=domain, **given)
        results = self.node(proto, values, {domain: opset, "": OPSET if domain else opset})
        return [result for result in results[:num_outputs] if result is not None]

    def value(self, value: Value | ArrayLike) -> Value:
        return value if isinstance(value, Value) else self.constant(np.asarray(value))

    def constant(self, array: Array) -> Value:
        return Value(constant=array)

    def emit(self, expr: relax.Expr) -> Value:
        """Emit an expression. Raises UnsupportedOperator if it isn't a tensor with a valid static shape."""
        if isinstance(expr, tvm.ir.GenericConst):
            return Value(constant=expr.value.numpy())
        if isinstance(expr, relax.ShapeExpr):
            return Value(constant=np.array([int(extent) for extent in expr.values], np.int64))
        variable = expr if isinstance(expr, relax.Var) else self.builder.emit(expr, self.binding)
        if not isinstance(variable.ty, relax.TensorType):
            raise UnsupportedOperator("it computes no tensor")
        shape = static_shape(variable)
        if shape is None:
            raise UnsupportedOperator("the shape of what it computes depends on the data: not supported")
        check_size(shape, str(variable.ty.dtype))
        if 0 in shape:
            # An empty tensor is a constant.
            return self.constant(np.empty(shape, numpy_dtype(str(variable.ty.dtype))))
        return Value(expr=variable)

    def _convert(self, node: Node) -> Sequence[Value | None]:
        buffer = self._buffers.get(node.proto.input[0]) if node.kind == "ScatterElements" else None
        if buffer is not None and self._past_length is not None:
            axis = int(node.attributes["axis"])
            return [self.emit(write_rows(self.builder, buffer, node.input(2).expr, self._past_length, axis))]
        if any(value is not None and value.padding for value in node.inputs):
            results = convert_padded(self, node, self._convert)
            if results is None:
                raise UnsupportedOperator(
                    "the data decides how many rows its inputs have, and it would mix them"
                )
            return results
        function = self._functions.get(call_key(node.proto))
        if function is not None:
            return self._call(node, function)
        form = self._forms.get(node.kind) if node.domain == "" else None
        found = form(self, node) if form is not None else None
        if found is not None:
            return [found] if isinstance(found, Value) else list(found)
        folded = fold(node)
        if folded is not None:
            return self._constants(node, folded)
        if any(value is not None and value.dtype in NARROW for value in node.inputs):
            moved = convert_narrow(node, self._convert)
            if moved is not None:
                return moved
        return self._import(node)

    def _import(self, node: Node) -> Sequence[Value | None]:
        """Import a node by the first importer that knows its operator."""
        converter = self._converters.get((node.domain, node.kind))
        if converter is not None:
            found = converter(self, node)
            if found is not None:
                return [found] if isinstance(found, Value) else list(found)
        if node.kind in TVM_FRONTEND_OPS.get(node.domain, ()):
            try:
                return self.import_with_tvm(node)
            except Exception:
                # TVM's converters lack some types and attributes, and ONNX's function body may not need
                # those.
                if not _has_body(node):
                    raise
        return self._convert_by_body(node)

    def _constants(self, node: Node, arrays: Iterable[Array]) -> list[Value | None]:
        found = iter(arrays)
        results = [Value(constant=next(found)) if name else None for name in node.outputs]
        for result in results:
            if result is not None and result.constant is not None:
                check_fits(result.shape, result.constant.dtype)
        return results

    def import_with_tvm(self, node: Node) -> list[Value]:
        """Import a node as TVM does."""
        attributes = {name: _tvms_attribute(value) for name, value in node.attributes.items()}
        attributes["tvm_custom"] = {"name": node.proto.name, "num_outputs": len(node.outputs)}
        convert = _get_convert_map()[node.kind].get_converter(node.opset)
        inputs = onnx_input(value.expr if value is not None else None for value in node.inputs)
        result = convert(self.builder, inputs, attributes, [{}, {}])
        if isinstance(result, relax.Expr):
            result = self.builder.normalize(result)
        if isinstance(result, relax.Expr) and isinstance(result.ty, relax.TupleType):
            if not isinstance(result, relax.Tuple):
                result = self.builder.emit(result)
                return [
                    self.emit(relax.TupleGetItem(result, position))
                    for position in range(len(result.ty.fields))
                ]
            result = list(result.fields)
        results = list(result) if isinstance(result, list | tuple) else [result]
        return [self.emit(result) for result in results[: len(node.outputs)]]

    def _convert_by_body(self, node: Node) -> Sequence[Value | None]:
        """Import an operator by the body that ONNX defines for it."""
        body = _body(node)
        defaults = onnx.defs.get_schema(node.kind, node.opset, node.domain).attributes.items()
        attributes = {name: attribute.default_value for name, attribute in defaults if not attribute.required}
        attributes = {name: value for name, value in attributes.items() if value.type}
        attributes |= {attribute.name: attribute for attribute in node.proto.attribute}
        try:
            return self._by_function(node, body, attributes)
        except _NodeError as error:
            # The user doesn't know the nodes of ONNX's function bodies.
            raise UnsupportedOperator(f"by its definition, {error.reason}") from error

    def _call(self, node: Node, function: onnx.FunctionProto) -> Sequence[Value | None]:
        """Import the call of a function of the model."""
        attributes = {default.name: default for default in function.attribute_proto}
        attributes |= {attribute.name: attribute for attribute in node.proto.attribute}
        return self._by_function(node, function, attributes)

    def _by_function(
        self, node: Node, function: onnx.FunctionProto, attributes: Mapping[str, onnx.AttributeProto]
    ) -> Sequence[Value | None]:
        values = {
            name: value for name, value in zip(function.input, node.inputs, strict=False) if value is not None
        }
        opsets = {"": node.scope.opsets.get("", OPSET)}
        opsets |= {plain_domain(entry.domain): entry.version for entry in function.opset_import}
        for proto in function.node:
            resolved = _resolve(proto, attributes, values)
            values.update(_named(proto.output, self.node(resolved, values, opsets)))
        return [values.get(name) for name in function.output]


def _named(names: Iterable[str], results: Iterable[Value | None]) -> dict[str, Value]:
    """Return the results that were computed and have a name."""
    pairs = zip(names, results, strict=False)
    return {name: result for name, result in pairs if name and result is not None}


def described(proto: onnx.NodeProto, position: int, opsets: Mapping[str, int]) -> str:
    """Name a node in a message: its operator, the operator's version, and its name or outputs."""
    domain = plain_domain(proto.domain)
    operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
    version = opsets.get(domain, 1)
    if not domain and onnx.defs.has(proto.op_type):
        with contextlib.suppress(onnx.defs.SchemaError):
            version = onnx.defs.get_schema(proto.op_type, version).since_version
    return f"operator {operator} (version {version}) of {node_name(proto, position)}"


class _NodeError(ModelError):
    """A node can't be imported for a reason."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(
            f"{node} can't be imported: {reason}. Change or replace the node and export the model again"
        )
        self.reason = reason


class _Unknown(ValueError):
    """No importer knows the operator."""


@dataclass(frozen=True)
class Subgraph:
    """A graph in an attribute of a node, with the values that it can read of the graphs around it."""

    proto: onnx.GraphProto
    scope: NameScope

    def imported(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """Import the graph once; return its outputs."""
        names = [value.name for value in self.proto.input]
        given = {**self.scope.values, **dict(zip(names, inputs, strict=True))}
        results = [output.name for output in self.proto.output]
        return graph.import_subgraph(self.proto, given, self.scope.opsets, results)


# The operators that TVM imports, by domain. TVM ignores domains: its Attention is Microsoft's, for example.
_MICROSOFTS = frozenset({"EmbedLayerNormalization", "MatMulInteger16"})
_NOT_TENSORS = re.compile("Sequence|Optional")
TVM_FRONTEND_OPS: Mapping[str, frozenset[str]] = {
    "": frozenset(name for name in _get_convert_map() if not _NOT_TENSORS.search(name))
    - _MICROSOFTS
    - {"Attention", "BiasGelu", "FastGelu", "SkipLayerNormalization"},
    "com.microsoft": _MICROSOFTS,
}


def check_size(shape: Shape, dtype: str) -> None:
    """Raise UnsupportedOperator for a tensor with a negative extent, or of more than MAX_TENSOR_BYTES."""
    if any(extent < 0 for extent in shape):
        raise UnsupportedOperator(f"it computes a tensor of shape {shape}: no extent can be negative")
    size = math.prod(shape) * max(tvm.DataType(dtype).bits // 8, 1)
    if size > MAX_TENSOR_BYTES:
        raise UnsupportedOperator(
            f"it computes a tensor of shape {shape}, {size} bytes; the limit is {MAX_TENSOR_BYTES}"
        )


def identifiers(names: Sequence[str]) -> list[str]:
    """Return distinct identifiers similar to these names."""
    plain = [re.sub(r"\W", "_", name) for name in names]
    return [
        name if plain.count(name) == 1 and not name[:1].isdigit() else f"input{number}_{name}"
        for number, name in enumerate(plain)
    ]


def _look_up(values: Mapping[str, Value], name: str) -> Value:
    try:
        return values[name]
    except KeyError:
        raise UnsupportedOperator(f"nothing computes '{name}'") from None


def _attribute(proto: onnx.AttributeProto, scope: NameScope) -> Any:
    if proto.type == onnx.AttributeProto.GRAPH:
        return Subgraph(proto.g, scope)
    value = onnx.helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else value


def _tvms_attribute(value: Any) -> Any:
    """Return an attribute as TVM's converters expect it."""
    if isinstance(value, str):
        return value.encode()
    return tuple(value) if isinstance(value, list) else value


def _has_body(node: Node) -> bool:
    try:
        _body(node)
    except _Unknown:
        return False
    return True


def _body(node: Node) -> onnx.FunctionProto:
    """Return the function body that ONNX defines for an operator. Raises _Unknown if ONNX defines none."""
    try:
        schema: Any = onnx.defs.get_schema(node.kind, node.opset, node.domain)
    except onnx.defs.SchemaError as error:
        raise _Unknown(node.operator) from error
    body = onnx.FunctionProto()
    for versions, text in (
        (schema.function_opset_versions, schema.get_function_with_opset_version),
        (
            schema.context_dependent_function_opset_versions,
            lambda version: schema.get_context_dependent_function_with_opset_version(
                version,
                node.proto.SerializeToString(),
                [
                    (value.onnx_type() if value is not None else onnx.TypeProto()).SerializeToString()
                    for value in node.inputs
                ],
            ),
        ),
    ):
        for version in sorted(versions, reverse=True):
            if version <= max(node.opset, min(versions)):
                body.ParseFromString(text(version))
                return body
    raise _Unknown(node.operator)


def _resolve(
    proto: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto], values: Mapping[str, Value]
) -> onnx.NodeProto:
    """Return a node of a function body with the attributes of the call, and without the inputs that the call
    leaves out."""
    resolved = onnx.NodeProto()
    resolved.CopyFrom(proto)
    _give_attributes(resolved, attributes)
    names = [name if name in values else "" for name in proto.input]
    while names and not names[-1]:
        names.pop()
    del resolved.input[:]
    resolved.input.extend(names)
    return resolved


def _give_attributes(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace references to the call's attributes, also in graphs within the node."""
    own = [*node.attribute]
    del node.attribute[:]
    for attribute in own:
        if not attribute.ref_attr_name:
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes:
            given = node.attribute.add()
            given.CopyFrom(attributes[attribute.ref_attr_name])
            given.name = attribute.name
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                _give_attributes(inner, attributes)
