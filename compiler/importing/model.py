"""Read models from ONNX, fuse them into subgraphs, and extract the subgraphs as tuning tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
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

# Channels are innermost, because that axis vectorizes. TVM can't lower transposed convolutions so.
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}
# TVM looks at an operator's name only, and would take one of another domain for its namesake.
DOMAINS = {"", "ai.onnx", "com.microsoft"}
# A small file can describe an enormous computation: no tensor of a model may be larger than this.
MAX_TENSOR_BYTES = 4 << 30


@dataclass(frozen=True)
class RelaxModel:
    """An imported model: relax operators on static shapes, weights as constants."""

    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class ExtractedTask:
    """One workload of a model.

    `weight` is the number of calls in the model. `constants` are the positions of the arguments that are
    constants of the model; they are part of the workload. `functions` are the names of the fused module's
    functions that compute it. A task that may replace the workload `variant_of` is of the `variant` of this
    name (`compiler.variants`).
    """

    workload_hash: str
    module_json: str
    name: str
    weight: int
    constants: tuple[int, ...]
    functions: tuple[str, ...]
    variant: str = ""
    variant_of: str = ""

    @property
    def place(self) -> str:
        """The hash of the workload of the model that it computes."""
        return self.variant_of or self.workload_hash


def read_onnx(data: bytes, shapes: Mapping[str, Shape]) -> RelaxModel:
    """Import the bytes of a .onnx file; `shapes` gives dynamic inputs their shape, by input name.

    Raises ModelError. TVM's importer is native code: strangers' files belong into a child process (see
    compiler.sandbox.child).
    """
    file = read_file(data, shapes)
    _check_operators(file)
    importer = _Importer(None, None)
    try:
        # TVM's importer prints the operands of what fails, and warns of every name that it changes.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            module = importer.from_onnx(file.proto.graph, file.opset)
    except Exception as error:
        culprit = importer.failed or "the model"
        raise ModelError(f"{culprit} can't be imported: {first_line(error)}") from error
    _check_shapes(module)
    return RelaxModel(module, file.inputs, _outputs(file.output_names, module["main"].ret_ty))


def fuse(model: RelaxModel, target: str) -> tvm.IRModule:
    """Rewrite a model as calls of fused PrimFuncs, the subgraphs that are tuned.

        lv = conv2d(x, w, data_layout="NCHW")
        lv1 = batch_norm(lv, gamma, beta, mean, variance)
        gv = relu(lv1)
    ->
        lv = call_tir(transpose, (x,))                               # to NHWC
        lv1 = call_tir(fused_conv2d_add_relu, (lv, w', shift))
        gv = call_tir(transpose1, (lv1,))                            # to NCHW

    Batch norms become part of convolution weights, constants are folded, and convolutions compute
    channels-last; layouts change at the edges of the graph only. Raises ModelError when TVM can't compile the
    model.
    """
    return fuse_operators(convert_operators(model, target), target)


def convert_operators(model: RelaxModel, target: str) -> tvm.IRModule:
    """Rewrite a model's operators into the form in which they are tuned: see `fuse`. Raises ModelError."""
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
    """Rewrite operators as calls of fused PrimFuncs.

        lv = conv2d(x, w)
        lv1 = add(lv, b)
        gv = relu(lv1)
    ->
        gv = call_tir(fused_conv2d_add_relu, (x, w, b))

    Raises ModelError when TVM can't compile the model.
    """
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.DeadCodeElimination(),
        transform.FuseOps(),
        transform.FuseTIR(),
        # Marks the constant operands of each function: these may be packed (compiler.constants.packing).
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    return _apply(passes, operators, target)


def fuse_untuned(model: RelaxModel, target: str) -> tvm.IRModule:
    """Rewrite a model with TVM's default pipeline: layouts as imported, operators fused, no schedules.

        lv = conv2d(x, w, data_layout="NCHW")
        gv = relu(lv)
    ->
        gv = call_tir(fused_conv2d_relu, (x, w))

    Raises ModelError when TVM can't compile the model.
    """
    return _apply([relax.get_pipeline("zero")], model.module, target)


def extract_tasks(fused: tvm.IRModule) -> list[ExtractedTask]:
    """Return the unique workloads of a fused module, in the order of their first call.

    Functions that a schedule can't change are left out: those that are scheduled already, and calls of
    external libraries, which are not PrimFuncs.
    """
    tasks: dict[str, ExtractedTask] = {}
    for call in kernel_calls(fused):
        name, func = call.args[0].name_hint, fused[call.args[0]]
        if func.attrs.get("tirx.is_scheduled", False):
            continue
        module = normalise(func)
        key = workload_hash(module)
        task = tasks.get(key)
        if task is None:
            constants = tuple(int(index) for index in func.attrs.get(LAYOUT_FREE, ()))
            label = _task_name(name, func, len(call.args[1]))
            tasks[key] = ExtractedTask(key, to_json(module), label, 1, constants, (name,))
        else:
            functions = tuple(dict.fromkeys((*task.functions, name)))
            tasks[key] = dataclasses.replace(task, weight=task.weight + 1, functions=functions)
    return list(tasks.values())


def kernel_calls(fused: tvm.IRModule) -> list[Call]:
    """Return every call of a PrimFunc, in order; its arguments are the function's name and its inputs."""
    return [
        call
        for _, function in fused.functions_items()
        if isinstance(function, relax.Function)
        for call in _all_calls(function)
        if getattr(call.op, "name", "").startswith("relax.call_tir")
    ]


def _check_operators(file: OnnxFile) -> None:
    supported = {*_get_convert_map(), "If", "Constant"}
    for graph in walk(file.proto):
        for node in graph.node:
            if node.domain not in DOMAINS or node.op_type not in supported:
                operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
                raise ModelError(f"operator {operator} of {node_name(node)} can't be imported")


class _Importer(ONNXGraphImporter):
    """TVM's importer. `failed` describes the operator that it failed on."""

    failed = ""

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        try:
            clipped = _convert_clip(inputs, attrs) if op_name == "Clip" else None
            if clipped is not None:
                return self.bb.normalize(clipped)
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception:
            name = attrs["tvm_custom"]["name"]
            self.failed = self.failed or f"operator {op_name} of node '{name}'"
            raise


def _convert_clip(inputs: Sequence[relax.Expr | None], attrs: Mapping[str, Any]) -> relax.Expr | None:
    """Convert a Clip of float32 to binary operators. Unlike relax.clip and what TVM imports, these take part
    in layout conversion.

        Clip(x, min=0, max=6)
    ->
        minimum(maximum(x, 0), 6)

    Returns None when the bounds aren't constant. An absent bound is infinite.
    """
    bounds = [float(attrs.get("min", -math.inf)), float(attrs.get("max", math.inf))]
    for index, bound in enumerate(inputs[1:3]):
        if isinstance(bound, GenericConst) and math.prod(bound.value.shape) == 1:
            bounds[index] = float(bound.value.numpy().reshape(()))
        elif bound is not None:
            return None
    low, high = bounds
    data = inputs[0]
    if data is None or str(data.ty.dtype) != "float32" or math.isnan(low) or math.isnan(high):
        return None
    if low > -math.inf:
        data = relax.op.maximum(data, relax.const(low, "float32"))
    return relax.op.minimum(data, relax.const(high, "float32")) if high < math.inf else data


def _check_shapes(module: tvm.IRModule) -> None:
    """Refuse models that compute tensors of unknown, negative or absurdly large shape."""
    for call in _all_calls(module["main"]):
        if not isinstance(call.ty, relax.TensorType):
            continue
        shape = static_shape(call)
        if shape is None:
            operator = getattr(call.op, "name", "an operator").removeprefix("relax.")
            raise ModelError(f"the shape of what {operator} computes depends on the data: not supported")
        if any(extent < 0 for extent in shape):
            raise ModelError(f"the model computes a tensor of shape {shape}: no extent can be negative")
        size = math.prod(shape) * max(tvm.DataType(str(call.ty.dtype)).bits // 8, 1)
        if size > MAX_TENSOR_BYTES:
            raise ModelError(
                f"the model computes a tensor of shape {shape}, {size} bytes; the limit is {MAX_TENSOR_BYTES}"
            )


def _all_calls(function: relax.Function) -> list[Call]:
    """Return the calls in a function, in order. Callers loop over them and raise ModelError; TVM would change
    the type of an error that a visitor raises."""
    calls: list[Call] = []
    relax.analysis.post_order_visit(
        function, lambda expr: calls.append(expr) if isinstance(expr, Call) else None
    )
    return calls


def _outputs(names: tuple[str, ...], result: Any) -> tuple[TensorSpec, ...]:
    fields = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    if len(fields) != len(names):
        raise ModelError("an output of the model is a sequence of tensors; only single tensors are supported")
    outputs = []
    for name, field in zip(names, fields, strict=True):
        shape = static_shape(relax.Var(name, field)) if isinstance(field, relax.TensorType) else None
        if shape is None:
            raise ModelError(
                f"output '{name}' is no tensor of a static shape; only such outputs are supported"
            )
        outputs.append(TensorSpec(name, shape, str(field.dtype)))
    return tuple(outputs)


def _apply(passes: list[Any], module: tvm.IRModule, target: str) -> tvm.IRModule:
    try:
        with parse_target(target), tvm.transform.PassContext(opt_level=3):
            for step in passes:
                module = step(module)
    except Exception as error:
        raise ModelError(f"TVM can't compile the model: {first_line(error)}") from error
    return module


def _task_name(function: str, func: tirx.PrimFunc, inputs: int) -> str:
    """Name a task by its operators, the shapes of its first two operands, and the shape of its result.

    fused_conv2d1_add1_relu1  ->  conv2d_add_relu 1x56x56x64 3x3x64x64 -> 1x56x56x64
    """
    operators = re.sub(r"(?<=[a-z])\d+(?=_|$)", "", function.removeprefix("fused_"))
    shapes = [
        "x".join(str(getattr(extent, "value", extent)) for extent in getattr(param.ty, "shape", ())) or "1"
        for param in func.params
    ]
    operands = " ".join(shapes[: min(inputs, 2)])
    return f"{operators} {operands} -> {shapes[-1]}"
