"""Models: read from ONNX, fused into subgraphs, and the subgraphs as tuning tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GenericConst
from tvm.relax import transform
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map

from compiler.constants.fold import fold_constants, static_shape
from compiler.constants.forms import lower_scalars, raise_ranks
from compiler.constants.packing import LAYOUT_FREE
from compiler.constants.scales import fold_scales
from compiler.importing.layouts import convert_unsupported_layouts
from compiler.importing.onnx_file import OnnxFile, node_name, read_file, walk
from compiler.importing.spec import ModelError, Shape, TensorSpec, first_line
from compiler.target import parse_target
from compiler.workload import normalise, to_json, workload_hash

# Channels innermost: the axis that vectorizes. TVM has no such form of transposed convolutions.
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}
# TVM goes by the operator's name alone; an operator of another domain would be taken for its namesake.
DOMAINS = {"", "ai.onnx", "com.microsoft"}
# No tensor of a model may be larger: a small file can describe an enormous computation.
MAX_TENSOR_BYTES = 4 << 30


@dataclass(frozen=True)
class RelaxModel:
    """An imported model as TVM sees it: relax operators, weights as constants, static shapes."""

    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class ExtractedTask:
    """One workload of a model.

    `weight` is how often the model calls it, `constants` are the arguments that are constants of the model
    (with others it is another workload), `functions` the fused module's functions that compute it. Of a
    workload that may take another one's place, `variant` names the way in which it computes the same, and
    `variant_of` is the other one's hash.
    """

    workload_hash: str
    module_json: str
    name: str
    weight: int
    constants: tuple[int, ...]
    functions: tuple[str, ...]
    variant: str = ""
    variant_of: str = ""


def read_onnx(data: bytes, shapes: Mapping[str, Shape]) -> RelaxModel:
    """Import the bytes of a .onnx file; `shapes` gives dynamic inputs their shape, by input name.

    Raises ModelError. TVM's importer is native code: files of strangers belong into a child process (see
    compiler.sandbox.child).
    """
    file = read_file(data, shapes)
    _check_operators(file)
    module = _import(file)
    _check_static(module)
    return RelaxModel(module, file.inputs, _outputs(file.output_names, module["main"].ret_ty))


def fuse(model: RelaxModel, target: str) -> tvm.IRModule:
    """The model as calls of fused PrimFuncs, the subgraphs that are tuned. Raises ModelError when TVM can't
    compile the model."""
    return fuse_operators(convert_operators(model, target), target)


def convert_operators(model: RelaxModel, target: str) -> tvm.IRModule:
    """The model's operators in the form in which they are tuned.

    Batch norms go into convolution weights, constants are folded, convolutions compute channels-last with
    layout transformations at the graph's edges only. Raises ModelError when TVM can't compile the model.
    """
    passes = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        fold_constants,
        fold_scales,
        raise_ranks,
        transform.ConvertLayout(LAYOUTS),
        convert_unsupported_layouts,
        fold_constants,
        lower_scalars,
        transform.FoldConstant(),
    ]
    return _apply(passes, model.module, target)


def fuse_operators(operators: tvm.IRModule, target: str) -> tvm.IRModule:
    """Operators as calls of fused PrimFuncs. Raises ModelError when TVM can't compile them."""
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.DeadCodeElimination(),
        transform.FuseOps(),
        transform.FuseTIR(),
        # A workload says which of its operands are constants: those may be packed (constants.packing).
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    return _apply(passes, operators, target)


def fuse_untuned(model: RelaxModel, target: str) -> tvm.IRModule:
    """What TVM makes of the imported model by default: layouts as imported, operators fused, no schedules."""
    return _apply([relax.get_pipeline("zero")], model.module, target)


def extract_tasks(fused: tvm.IRModule) -> list[ExtractedTask]:
    """The unique workloads of a fused module, in the order of their first call.

    Functions that a schedule can't change are no tasks: those that are scheduled already, and calls of
    external libraries (which are no PrimFuncs).
    """
    found: dict[str, ExtractedTask] = {}
    for call in kernel_calls(fused):
        name, inputs = call.args[0], len(call.args[1])
        func = fused[name]
        if func.attrs.get("tirx.is_scheduled", False):
            continue
        task = _task(name.name_hint, func, inputs)
        known = found.get(task.workload_hash)
        found[task.workload_hash] = task if known is None else _merged(known, task)
    return list(found.values())


def _check_operators(file: OnnxFile) -> None:
    supported = {*_get_convert_map(), "If", "Constant"}
    for graph in walk(file.proto):
        for node in graph.node:
            if node.domain not in DOMAINS or node.op_type not in supported:
                operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
                raise ModelError(f"operator {operator} of {node_name(node)} can't be imported")


class _Importer(ONNXGraphImporter):
    """TVM's importer, which remembers the operator it failed on, and keeps bounds as plain operators."""

    failed = ""

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        try:
            bounds = _bounds(inputs, attrs) if op_name == "Clip" else None
            if bounds is not None:
                return self.bb.normalize(_clip(inputs[0], *bounds))
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception:
            name = attrs["tvm_custom"]["name"]
            self.failed = self.failed or f"operator {op_name} of node '{name}'"
            raise


def _bounds(inputs: Sequence[relax.Expr | None], attrs: Mapping[str, Any]) -> tuple[float, float] | None:
    """The bounds of a Clip of 32-bit floats when they are known now; an absent one is infinite."""
    bounds = [float(attrs.get("min", -math.inf)), float(attrs.get("max", math.inf))]
    for index, bound in enumerate(inputs[1:3]):
        if isinstance(bound, GenericConst) and math.prod(bound.value.shape) == 1:
            bounds[index] = float(bound.value.numpy().reshape(()))
        elif bound is not None:
            return None
    is_float = inputs[0] is not None and str(inputs[0].ty.dtype) == "float32"
    return (bounds[0], bounds[1]) if is_float and not any(map(math.isnan, bounds)) else None


def _clip(data: relax.Expr, low: float, high: float) -> relax.Expr:
    """As binary operators: unlike relax.clip and the kernels that TVM imports, those convert their layout."""
    if low > -math.inf:
        data = relax.op.maximum(data, relax.const(low, "float32"))
    return relax.op.minimum(data, relax.const(high, "float32")) if high < math.inf else data


def _import(file: OnnxFile) -> tvm.IRModule:
    importer = _Importer(None, None)
    try:
        with _quiet():
            return importer.from_onnx(file.proto.graph, file.opset)
    except Exception as error:
        culprit = importer.failed or "the model"
        raise ModelError(f"{culprit} can't be imported: {first_line(error)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TVM's importer prints the operands of what fails, and warns of every name that it changes."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _check_static(module: tvm.IRModule) -> None:
    """Every tensor's shape must be known now, and none may be absurdly large."""
    for call in _all_calls(module["main"]):
        if not isinstance(call.ty, relax.TensorType):
            continue
        shape = static_shape(call)
        if shape is None:
            operator = getattr(call.op, "name", "an operator").removeprefix("relax.")
            raise ModelError(f"the shape of what {operator} computes depends on the data: not supported")
        _check_size(shape, str(call.ty.dtype))


def _all_calls(function: relax.Function) -> list[Call]:
    """The calls in a function, in order. An exception in a visitor would come back as another type."""
    calls: list[Call] = []
    relax.analysis.post_order_visit(
        function, lambda expr: calls.append(expr) if isinstance(expr, Call) else None
    )
    return calls


def _check_size(shape: Shape, dtype: str) -> None:
    if any(extent < 0 for extent in shape):
        raise ModelError(f"the model computes a tensor of shape {shape}: no extent can be negative")
    size = math.prod(shape) * max(tvm.DataType(dtype).bits // 8, 1)
    if size > MAX_TENSOR_BYTES:
        raise ModelError(
            f"the model computes a tensor of shape {shape}, {size} bytes; the limit is {MAX_TENSOR_BYTES}"
        )


def _outputs(names: tuple[str, ...], result: Any) -> tuple[TensorSpec, ...]:
    fields = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    if len(fields) != len(names):
        raise ModelError("an output of the model is a sequence of tensors; only single tensors are supported")
    return tuple(_output(name, field) for name, field in zip(names, fields, strict=True))


def _output(name: str, result: Any) -> TensorSpec:
    shape = static_shape(relax.Var(name, result)) if isinstance(result, relax.TensorType) else None
    if shape is None:
        raise ModelError(f"output '{name}' is no tensor of a static shape; only such outputs are supported")
    return TensorSpec(name, shape, str(result.dtype))


def _apply(passes: list[Any], module: tvm.IRModule, target: str) -> tvm.IRModule:
    try:
        with parse_target(target), tvm.transform.PassContext(opt_level=3):
            for step in passes:
                module = step(module)
    except Exception as error:
        raise ModelError(f"TVM can't compile the model: {first_line(error)}") from error
    return module


def kernel_calls(fused: tvm.IRModule) -> list[Call]:
    """Every call of a PrimFunc, in order: its arguments are the function's name and a tuple of the inputs."""
    return [
        call
        for _, function in fused.functions_items()
        if isinstance(function, relax.Function)
        for call in _all_calls(function)
        if getattr(call.op, "name", "").startswith("relax.call_tir")
    ]


def _task(function: str, func: tirx.PrimFunc, inputs: int) -> ExtractedTask:
    module = normalise(func)
    constants = tuple(int(index) for index in func.attrs.get(LAYOUT_FREE, ()))
    return ExtractedTask(
        workload_hash(module), to_json(module), _name(function, func, inputs), 1, constants, (function,)
    )


def _merged(known: ExtractedTask, again: ExtractedTask) -> ExtractedTask:
    return dataclasses.replace(
        known,
        weight=known.weight + 1,
        functions=tuple(dict.fromkeys(known.functions + again.functions)),
    )


def _name(function: str, func: tirx.PrimFunc, inputs: int) -> str:
    """The operators, the first two operands' shapes and the result's.

    fused_conv2d1_add1_relu1  ->  conv2d_add_relu 1x56x56x64 3x3x64x64 -> 1x56x56x64
    """
    operators = re.sub(r"(?<=[a-z])\d+(?=_|$)", "", function.removeprefix("fused_"))
    shapes = [_extents(param) for param in func.params]
    operands = " ".join(shapes[: min(inputs, 2)])
    return f"{operators} {operands} -> {shapes[-1]}"


def _extents(param: tirx.Var) -> str:
    shape = getattr(param.ty, "shape", ())
    return "x".join(str(getattr(extent, "value", extent)) for extent in shape) or "1"
