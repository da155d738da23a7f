"""Read untrusted ONNX files. The result is a valid model with static input shapes, or a ModelError."""

from __future__ import annotations

import math
import re
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import IO, Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from compiler.importing.spec import NARROW, CacheSpec, ModelError, Shape, TensorSpec, first_line

# Protobuf's own limit. Larger models store weights in other files.
MAX_FILE_BYTES = (2 << 30) - 1
# Weights in other files of up to this size become part of the model.
MAX_INLINE_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_INPUT_ELEMENTS = 1 << 28
MAX_RANK = 64
_MAX_INT32 = (1 << 31) - 1
# The types in which a model may compute, the finest first: float types, and "quantized" for values that pass
# through bytes.
COARSENESS = ("float64", "float32", "float16", "quantized", "bfloat16")
# The accuracy level of MatMulNBits that rounds activations to int8.
INT8_LEVEL = 4
# Bounds of attributes by which TVM divides, or with which it computes extents.
_BOUNDS = {
    **dict.fromkeys(("group", "strides", "dilations", "kernel_shape", "blocksize"), (1, _MAX_INT32)),
    **dict.fromkeys(("output_shape", "output_padding"), (0, _MAX_INT32)),
    **dict.fromkeys(("axis", "axes", "perm", "batch_dims"), (-MAX_RANK, MAX_RANK)),
    "pads": (-_MAX_INT32, _MAX_INT32),
}
# A domain of operators that ONNX's checker doesn't know.
_HIDDEN = "tunefarm.hidden"
MAX_REASON_CHARS = 300
# The domain, name and overload that identify one of the model's own functions.
FunctionKey = tuple[str, str, str]


@dataclass(frozen=True)
class OnnxFile:
    """A checked model. `proto` has the static shapes of `inputs`; `declared` are the inputs as in the file.

    `opsets` are the versions of its operators by domain. `weights` come from other files, and are inputs of
    `proto`. `original` is the model before its functions were inlined. `cache` is set if a decoder keeps its
    cache in place, else `no_cache` says why it doesn't. `source` is the decoder's file before it was
    rewritten, without weights (`compiler.importing.decoders`).
    """

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    opsets: Mapping[str, int]
    weights: Mapping[str, NDArray[Any]]
    original: onnx.ModelProto
    declared: tuple[onnx.ValueInfoProto, ...]
    cache: CacheSpec | None = None
    no_cache: str = ""
    source: onnx.ModelProto | None = None

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of inputs and weights, and the target types of casts."""
        graph = self.proto.graph
        types = {weight.data_type for weight in graph.initializer}
        types |= {value.type.tensor_type.elem_type for value in graph.input}
        types |= {
            one.i
            for node in self._nodes
            if node.op_type == "Cast"
            for one in node.attribute
            if one.name == "to"
        }
        return frozenset(onnx.helper.tensor_dtype_to_np_dtype(kind).name for kind in types if kind)

    @cached_property
    def computed_in(self) -> str:
        """The coarsest of COARSENESS among `types` and quantized values."""
        found = set(self.types)
        if any(
            "Quantize" in node.op_type or node.op_type.startswith("QLinear") or rounds_to_bytes(node)
            for node in self._nodes
        ):
            found.add("quantized")
        return max(found.intersection(COARSENESS), key=COARSENESS.index, default="float64")

    @property
    def _nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes of the main graph and of the model's own functions."""
        return [*self.proto.graph.node, *(node for one in self.proto.functions for node in one.node)]


def rounds_to_bytes(node: onnx.NodeProto) -> bool:
    """Return whether a node rounds its operand to int8: a MatMulNBits of accuracy level 4."""
    levels = [one.i for one in node.attribute if one.name == "accuracy_level"]
    return node.op_type == "MatMulNBits" and levels == [INT8_LEVEL]


def read_file(data: bytes, shapes: Mapping[str, Shape]) -> OnnxFile:
    """Parse and check the bytes of a .onnx file. `shapes` gives dynamic inputs their shape, by input name.

    Raises ModelError.
    """
    return checked(parse(data), shapes, {})


def read_archive(data: memoryview, file: IO[bytes], shapes: Mapping[str, Shape]) -> OnnxFile:
    """Read a tar of a .onnx file and the files of its weights, as `read_file` does. Raises ModelError."""
    proto, weights = parse_archive(data, file)
    return checked(proto, shapes, weights)


def parse_archive(data: memoryview, file: IO[bytes]) -> tuple[onnx.ModelProto, Mapping[str, NDArray[Any]]]:
    """Parse a tar of a .onnx file and the files of its weights. `file` reads `data`. The large weights are
    views of `data`: nothing copies them.

    Raises ModelError.
    """
    proto, files = read_graph(data, file)
    return proto, _take_weights(proto, files)


def read_graph(data: memoryview, file: IO[bytes]) -> tuple[onnx.ModelProto, dict[str, memoryview]]:
    """Parse the .onnx file of a tar; return it, and the tar's other files by name. Raises ModelError."""
    try:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            members = {
                member.name.removeprefix("./"): data[member.offset_data : member.offset_data + member.size]
                for member in archive
                if member.isreg()
            }
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ModelError(f"the model's archive is damaged: {first_line(error)}") from error
    name = next((name for name in members if name.endswith(".onnx")), None)
    if name is None:
        raise ModelError("the model's archive holds no .onnx file")
    return parse(bytes(members.pop(name))), members


def _take_weights(proto: onnx.ModelProto, files: Mapping[str, memoryview]) -> dict[str, NDArray[Any]]:
    """Turn large weights of the main graph that are in other files into inputs, and return them. Write all
    other weights into the model. Raises ModelError."""
    weights = {}
    for tensor in list(proto.graph.initializer):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        content = _content(tensor, files)
        dtype = _numpy_dtype(tensor)
        # ONNX Runtime takes no inputs of narrow types.
        if content.nbytes > MAX_INLINE_BYTES and str(dtype) not in NARROW:
            weights[tensor.name] = np.frombuffer(content, dtype).reshape(tuple(tensor.dims))
            kept = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            proto.graph.initializer.remove(tensor)
            if tensor.name not in {value.name for value in proto.graph.input}:
                proto.graph.input.append(kept)
    inlined = 0
    for tensor in _all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            content = _content(tensor, files)
            inlined += content.nbytes
            if inlined > MAX_FILE_BYTES:
                raise ModelError(f"the model's small weights have more than {MAX_FILE_BYTES} bytes")
            tensor.raw_data = bytes(content)
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
    return weights


def _content(tensor: onnx.TensorProto, files: Mapping[str, memoryview]) -> memoryview:
    """Return the bytes of a weight that is in another file. Raises ModelError."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    name = where.get("location", "").removeprefix("./")
    if name not in files:
        raise ModelError(
            f"weight '{tensor.name}' is in the file '{name}', which wasn't sent with the model: keep the "
            "model's files together, as they were exported"
        )
    try:
        dtype = _numpy_dtype(tensor)
        size = -(-math.prod(tensor.dims) * NARROW.get(str(dtype), 8 * dtype.itemsize) // 8)
        start = int(where.get("offset", "0"))
        length = int(where.get("length", size))
    except ValueError as error:
        raise ModelError(f"weight '{tensor.name}' says wrongly where it is: {first_line(error)}") from error
    if start < 0 or length != size or start + length > files[name].nbytes:
        raise ModelError(
            f"weight '{tensor.name}' should be {size} bytes from byte {start} of the file '{name}', which "
            f"has {files[name].nbytes}: the files don't belong together, export the model again"
        )
    return files[name][start : start + length]


def _numpy_dtype(tensor: onnx.TensorProto) -> np.dtype[Any]:
    """Return the type of a weight that is in another file. Raises ModelError for types that can't be stored
    there."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise ModelError(f"weight '{tensor.name}' has no element type that ONNX knows") from error
    if dtype.hasobject or min(tensor.dims, default=1) < 0:
        raise ModelError(f"weight '{tensor.name}' of {dtype} {list(tensor.dims)} can't be in another file")
    return dtype


def checked(
    proto: onnx.ModelProto, shapes: Mapping[str, Shape], weights: Mapping[str, NDArray[Any]]
) -> OnnxFile:
    """Check a parsed model, and write static shapes into it. Raises ModelError."""
    _check_self_contained(proto)
    levels = _check_functions(proto)
    before = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in proto.graph.input]
    inputs = fix_inputs(proto.graph, shapes, weights)
    for output in proto.graph.output:
        kind = output.type.optional_type.elem_type if output.type.HasField("optional_type") else output.type
        if kind.HasField("sequence_type"):
            raise ModelError(
                f"output '{output.name}' is a sequence; only tensors are supported: return its tensors"
            )
        # Exporters leave out shapes of outputs, but ONNX's checker requires one even for an unused output.
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    try:
        with _deprecated_hidden(proto):
            onnx.checker.check_model(proto)
        original = proto
        if levels:
            proto = onnx.ModelProto()
            proto.CopyFrom(original)
        for level in levels:
            proto = _inlined(proto, level)
    except Exception as error:
        raise ModelError(f"the model isn't valid ONNX: {_checker_reason(error)}") from error
    _check_attributes(proto)
    opsets = {plain_domain(entry.domain): int(entry.version) for entry in proto.opset_import}
    if "" not in opsets and any(plain_domain(node.domain) == "" for node in _nodes(proto.graph.node)):
        raise ModelError("the model names no version of the ONNX operators (opset_import): export it again")
    output_names = tuple(output.name for output in proto.graph.output)
    names = {spec.name for spec in inputs}
    declared = tuple(value for value in before if value.name in names)
    return OnnxFile(proto, inputs, output_names, opsets, weights, original, declared)


@contextmanager
def _deprecated_hidden(proto: onnx.ModelProto) -> Iterator[None]:
    """Hide nodes of deprecated operators that ONNX defines by a body, such as GroupNormalization of opset 18.

    ONNX's checker rejects them, but ONNX Runtime runs them.
    """
    bodies: list[tuple[Any, Any]] = [(graph.node, proto.opset_import) for graph in _all_graphs(proto.graph)]
    bodies += [(function.node, function.opset_import) for function in proto.functions]
    hidden = []
    for nodes, imports in bodies:
        opset = next((entry.version for entry in imports if plain_domain(entry.domain) == ""), 0)
        hidden += [node for node in nodes if opset and _is_deprecated_with_body(node, opset)]
    domains = [node.domain for node in hidden]
    for node in hidden:
        node.domain = _HIDDEN
    holders: list[Any] = [proto, *proto.functions] if hidden else []
    for holder in holders:
        holder.opset_import.append(onnx.helper.make_opsetid(_HIDDEN, 1))
    try:
        yield
    finally:
        for node, domain in zip(hidden, domains, strict=True):
            node.domain = domain
        for holder in holders:
            del holder.opset_import[-1]


def _is_deprecated_with_body(node: onnx.NodeProto, opset: int) -> bool:
    if plain_domain(node.domain) or not onnx.defs.has(node.op_type):
        return False
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.deprecated and (schema.has_function or schema.has_context_dependent_function))


def _inlined(proto: onnx.ModelProto, functions: Collection[FunctionKey]) -> onnx.ModelProto:
    """Return the model with the calls of these functions replaced by their bodies.

    First, a call gets the defaults of missing attributes, because onnx.inliner drops them. Functions whose
    operators have other versions than the model's stay.
    """
    versions = {plain_domain(entry.domain): entry.version for entry in proto.opset_import}
    chosen = [
        one
        for one in proto.functions
        if function_key(one) in functions
        and all(
            versions.get(plain_domain(own.domain), own.version) == own.version for own in one.opset_import
        )
    ]
    if not chosen:
        return proto
    defaults = {function_key(one): one.attribute_proto for one in chosen}
    for node in _all_nodes(proto):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            default for default in defaults.get(call_key(node), ()) if default.name not in given
        )
    return onnx.inliner.inline_selected_functions(proto, [(one.domain, one.name) for one in chosen])


def parse(data: bytes) -> onnx.ModelProto:
    """Parse the bytes of a .onnx file that holds a graph. Raises ModelError."""
    if not data:
        raise ModelError("the model file is empty")
    if len(data) > MAX_FILE_BYTES:
        raise ModelError(f"the model file has {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError("the file is truncated or not an ONNX model: it is no ONNX protobuf") from error
    if not proto.graph.node or not proto.graph.output:
        raise ModelError("the file holds no ONNX graph: it has no nodes or no outputs")
    return proto


def _check_self_contained(proto: onnx.ModelProto) -> None:
    """Refuse models with too many nodes, with sparse weights, and with weights in other files."""
    graphs = list(walk(proto))
    bodies = [*(graph.node for graph in graphs), *(function.node for function in proto.functions)]
    if sum(map(len, bodies)) > MAX_NODES:
        raise ModelError(f"the model has more than {MAX_NODES} nodes")
    attributes = [attribute for body in bodies for node in body for attribute in node.attribute]
    attributes += [default for function in proto.functions for default in function.attribute_proto]
    is_sparse = any(attr.HasField("sparse_tensor") or attr.sparse_tensors for attr in attributes)
    if is_sparse or any(graph.sparse_initializer for graph in graphs):
        raise ModelError("the model has sparse weights, which aren't supported: store them dense")
    for tensor in _all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError(
                f"weight '{tensor.name}' is stored outside the file, and its file wasn't sent: send both "
                "with tunefarm's client or command, or save the model as a single file (onnx.save with "
                "save_as_external_data=False)"
            )


def _all_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the weights of all graphs, and the tensors that are attributes."""
    graphs = list(walk(proto))
    bodies = [*(graph.node for graph in graphs), *(function.node for function in proto.functions)]
    attributes = [attribute for body in bodies for node in body for attribute in node.attribute]
    attributes += [default for function in proto.functions for default in function.attribute_proto]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    tensors += [attribute.t for attribute in attributes if attribute.HasField("t")]
    return tensors + [tensor for attribute in attributes for tensor in attribute.tensors]


def _checker_reason(error: Exception) -> str:
    """Return the message of ONNX's checker on one line, with the node that it is about."""
    text, _, context = str(error).partition("==> Context:")
    said = " ".join(text.split()).rstrip(".")[:MAX_REASON_CHARS] or type(error).__name__
    if node := re.search(r"Name: (.*?) ?OpType: (\w+)", context):
        name = f"node '{node[1]}'" if node[1].strip() else "an unnamed node"
        said = f"{said} (operator {node[2]} of {name})"
    return f"{said}. Export the model again"


def _check_functions(proto: onnx.ModelProto) -> list[set[FunctionKey]]:
    """Return the functions in groups, callers before the functions that they call. Refuse models that have
    too many nodes once their functions are inlined.

    If every function calls the next one twice, a few functions can expand to any number of nodes.
    """
    bodies = {function_key(function): list(_nodes(function.node)) for function in proto.functions}
    if len(bodies) < len(proto.functions):
        raise ModelError("the model isn't valid ONNX: two of its functions have the same name")
    calls = {
        key: [call_key(node) for node in nodes if call_key(node) in bodies] for key, nodes in bodies.items()
    }
    sizes: dict[FunctionKey, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            size = len(bodies[key]) + sum(sizes[callee] for callee in calls[key])
            sizes[key] = min(size, MAX_NODES + 1)
    except CycleError as error:
        raise ModelError("the model isn't valid ONNX: one of its functions calls itself") from error
    if sum(sizes.get(call_key(node), 1) for node in _nodes(proto.graph.node)) > MAX_NODES:
        raise ModelError(f"the model's functions stand for more than {MAX_NODES} nodes")
    depths = dict.fromkeys(bodies, 0)
    for key in reversed(sizes):
        for callee in calls[key]:
            depths[callee] = max(depths[callee], depths[key] + 1)
    return [{key for key in bodies if depths[key] == depth} for depth in sorted({*depths.values()})]


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    return plain_domain(function.domain), function.name, function.overload


def call_key(node: onnx.NodeProto) -> FunctionKey:
    return plain_domain(node.domain), node.op_type, node.overload


def plain_domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def walk(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the main graph, the graphs within its nodes, and the graphs within the model's own functions."""
    yield from _all_graphs(proto.graph)
    for function in proto.functions:
        for graph in [*_subgraphs(function.node), *_graphs(function.attribute_proto)]:
            yield from _all_graphs(graph)


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs within its nodes."""
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(_subgraphs(graph.node))


def _subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        yield from _graphs(node.attribute)


def _graphs(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.GraphProto]:
    for attribute in attributes:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _nodes(body: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or a function, and the nodes of graphs within them."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        for graph in _subgraphs([node]):
            waiting.extend(graph.node)


def _all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the main graph and of the functions, and the nodes of graphs within them."""
    for body in (proto.graph.node, *(function.node for function in proto.functions)):
        yield from _nodes(body)


def _check_attributes(proto: onnx.ModelProto) -> None:
    """Check attributes that ONNX's checker ignores: TVM's native code divides by strides, even by zero."""
    for node in _all_nodes(proto):
        for attribute in node.attribute:
            least, most = _BOUNDS.get(attribute.name, (None, None))
            numbers = [*attribute.ints, *([attribute.i] if attribute.HasField("i") else [])]
            if least is not None and most is not None and not all(least <= n <= most for n in numbers):
                raise ModelError(
                    f"{node_name(node)} has {attribute.name} {numbers}: each must be from {least} to {most}"
                )


def node_name(node: onnx.NodeProto, position: int | None = None) -> str:
    """Describe a node in a message, with or without a name. `position` is its index in its graph, from 0."""
    if node.name:
        return f"node '{node.name}'"
    outputs = ", ".join(f"'{name}'" for name in node.output if name) or "nothing"
    return f"the unnamed node that computes {outputs}" + ("" if position is None else f" (number {position})")


def fix_inputs(
    graph: onnx.GraphProto, shapes: Mapping[str, Shape], weights: Mapping[str, NDArray[Any]]
) -> tuple[TensorSpec, ...]:
    """Write the static shape of every input into the graph, and return the inputs."""
    known = {tensor.name for tensor in graph.initializer} | weights.keys()
    inputs = [value for value in graph.input if value.name not in known]
    names = [value.name for value in inputs]
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise ModelError(
            f"the model has no input '{unknown[0]}'; its inputs are: {', '.join(names) or 'none'}"
        )
    return tuple(_fix_input(value, shapes.get(value.name)) for value in inputs)


def _fix_input(value: onnx.ValueInfoProto, given: Shape | None) -> TensorSpec:
    name, tensor = value.name, value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"input '{name}' is not a tensor; only tensors are supported")
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except KeyError as error:
        raise ModelError(f"input '{name}' has no element type that ONNX knows: {tensor.elem_type}") from error
    if dtype == "object":
        raise ModelError(f"input '{name}' holds text; only tensors of numbers are supported")
    if dtype.startswith("complex"):
        raise ModelError(f"input '{name}' holds complex numbers: give real and imaginary parts as two inputs")
    declared = None
    if tensor.HasField("shape"):
        # Exporters write 0 for an unknown extent. Only the user can replace it by 1.
        empty = 0 if given is not None and 0 in given else None
        # A negative extent also means unknown.
        declared = [
            None if dim.dim_value < 0 else dim.dim_value or (empty if dim.HasField("dim_value") else None)
            for dim in tensor.shape.dim
        ]
    shape = static_shape_of(name, declared, given)
    tensor.shape.Clear()
    tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=extent) for extent in shape)
    return TensorSpec(name, shape, dtype)


def static_shape_of(name: str, declared: Sequence[int | None] | None, given: Shape | None) -> Shape:
    """Return the user's shape, or else the file's. Raises ModelError if it isn't static, is too large, or
    contradicts the file."""
    shape = declared if given is None else given
    if shape is None or any(extent is None for extent in shape):
        extents = ",".join(str(extent or 1) for extent in declared or (1, 3, 224, 224))
        raise ModelError(
            f"input '{name}' has dynamic dimensions {_declared_text(declared)}: give its shape with "
            f"--shape {name}={extents} (one number per dimension)"
        )
    static = tuple(int(extent) for extent in shape if extent is not None)
    is_empty = 0 in (declared or ()) and 0 in static
    if any(extent < 0 or (extent == 0 and not is_empty) for extent in static):
        raise ModelError(f"input '{name}' has shape {_text(static)}: every dimension must be positive")
    if math.prod(static) > MAX_INPUT_ELEMENTS:
        raise ModelError(
            f"input '{name}' has {math.prod(static)} elements; the limit is {MAX_INPUT_ELEMENTS}"
        )
    fits = declared is None or (
        len(static) == len(declared) and all(d in (None, s) for s, d in zip(static, declared, strict=True))
    )
    if not fits:
        raise ModelError(
            f"shape {_text(static)} doesn't fit input '{name}', which the model declares as "
            f"{_declared_text(declared)}"
        )
    return static


def _declared_text(declared: Sequence[int | None] | None) -> str:
    return (
        "(unknown)" if declared is None else _text(["?" if extent is None else extent for extent in declared])
    )


def _text(shape: Iterable[object]) -> str:
    return "(" + ",".join(str(extent) for extent in shape) + ")"
