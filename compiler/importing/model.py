"""Read models from ONNX, fuse them into subgraphs, and extract the subgraphs as tuning tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax import transform

from compiler.constants.fold import fold_constants, fold_others, static_shape
from compiler.constants.forms import lower_scalars, raise_ranks
from compiler.constants.packing import LAYOUT_FREE
from compiler.constants.scales import fold_scales
from compiler.importing.arithmetic import cast_weights_once, define_arithmetic, round_to_bfloat16
from compiler.importing.attention_groups import MIN_QUERIES, fuse_attention
from compiler.importing.grouped_attention import separate_groups
from compiler.importing.layouts import convert_unsupported_layouts, count_axes_from_zero
from compiler.importing.legalization import annotate_patterns, legalize
from compiler.importing.node_names import (
    NODE_NAMES,
    name_calls,
    name_output,
    number_calls,
    with_node_names,
)
from compiler.importing.onnx_file import COARSENESS, OnnxFile, read_file
from compiler.importing.onnx_graph import Graph, check_size
from compiler.importing.operators import CONVERTERS
from compiler.importing.operators.forms import FORMS
from compiler.importing.shared_heads import share_heads
from compiler.importing.spec import (
    CacheSpec,
    CompileError,
    ModelError,
    Shape,
    TensorSpec,
    first_line,
    is_out_of_memory,
)
from compiler.importing.values import UnsupportedOperator
from compiler.importing.views import read_through_views, view_reshaped
from compiler.precision.half import compute_halves, reduce_in_floats
from compiler.precision.joined_branches import keep_bytes
from compiler.precision.narrow_weights import mark_narrow_weights
from compiler.precision.packed_weights import multiply_in_bytes, unpack
from compiler.precision.quantized import compute_in_bytes
from compiler.precision.tables import look_up_in_tables
from compiler.target import capability_of, parse_target
from compiler.workload import normalise, to_json, workload_hash

# Channels are innermost, because that axis vectorizes. TVM can't lower transposed convolutions in this
# layout.
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RelaxModel:
    """An imported model: relax operators with static shapes, and weights as constants.

    `computed_in` is as in `OnnxFile`. `node_names` are the names of its file's nodes by number (see
    compiler.importing.node_names).
    """

    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    computed_in: str
    cache: CacheSpec | None = None
    no_cache: str = ""
    node_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExtractedTask:
    """One workload of a model.

    `weight` is the number of calls in the model. `constants` are the positions of the arguments that are
    constants of the model; they are part of the workload. `functions` are the names of the fused module's
    functions that compute it. A task that may replace the workload `variant_of` has the name of its `variant`
    (`compiler.variants`). An `exact` variant differs only in the order of sums. `layer` is the name of the
    model's node that the first call comes from; empty if it has none.
    """

    workload_hash: str
    module_json: str
    name: str
    weight: int
    constants: tuple[int, ...]
    functions: tuple[str, ...]
    variant: str = ""
    variant_of: str = ""
    exact: bool = True
    layer: str = ""


def read_onnx(data: bytes, shapes: Mapping[str, Shape]) -> RelaxModel:
    """Import the bytes of a .onnx file; `shapes` gives dynamic inputs their shape, by input name.

    Raises ModelError. TVM's importer is native code, so read untrusted files in a child process (see
    compiler.children.child).
    """
    return import_file(read_file(data, shapes))


def import_file(file: OnnxFile, names: Sequence[str] | None = None) -> RelaxModel:
    """Import a checked file. `names` are values of the graph to compute instead of its outputs.

    Raises ModelError.
    """
    names = file.output_names if names is None else names
    # TVM's importer prints the operands of failing operators, and warns about each name that it changes.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        graph = Graph(CONVERTERS, FORMS)
        module = graph.module(file, names)
    model = checked_model(module, file.inputs, names, file.computed_in)
    return dataclasses.replace(
        model,
        outputs=graph.outputs,
        cache=file.cache,
        no_cache=file.no_cache,
        node_names=graph.node_names.names,
    )


def checked_model(
    module: tvm.IRModule,
    inputs: tuple[TensorSpec, ...],
    output_names: Sequence[str],
    computed_in: str = "",
    node_names: Sequence[str] = (),
) -> RelaxModel:
    """Return the model of a module's `main`. By default, `computed_in` follows from its types.

    Raises ModelError unless it computes tensors of static shapes and possible sizes."""
    _check_shapes(module)
    types = computed_in or _coarsest(module["main"])
    outputs = _outputs(output_names, module["main"].ret_ty)
    defined = define_arithmetic(reduce_in_floats(round_to_bfloat16(name_output(module))))
    return RelaxModel(defined, inputs, outputs, types, node_names=tuple(node_names))


def _coarsest(function: relax.Function) -> str:
    """Return the coarsest of COARSENESS among the tensors of a function and its quantized values."""
    found: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(getattr(expr, "ty", None), relax.TensorType):
            found.add(str(expr.ty.dtype))
        if getattr(getattr(expr, "op", None), "name", "") in ("relax.quantize", "relax.dequantize"):
            found.add("quantized")

    relax.analysis.post_order_visit(function, visit)
    return max(found.intersection(COARSENESS), key=COARSENESS.index, default="float64")


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
    channels-last; layouts change at the edges of the graph only. Raises CompileError.
    """
    return fuse_operators(convert_operators(model, target), target)


def convert_operators(model: RelaxModel, target: str) -> tvm.IRModule:
    """Rewrite a model's operators into the form in which they are tuned: see `fuse`, and for quantized ones
    and halves `compiler.precision`. Raises ModelError."""
    passes = [
        lambda module: _with_weights_for(module, parse_target(target)),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        fold_constants,
        share_heads,
        lambda module: multiply_in_bytes(module, parse_target(target)),
        lambda module: compute_in_bytes(module, parse_target(target)),
        lambda module: compute_halves(module, parse_target(target)),
        fold_scales,
        raise_ranks,
        count_axes_from_zero,
        transform.ConvertLayout(LAYOUTS),
        convert_unsupported_layouts,
        read_through_views,
        fold_constants,
        lambda module: look_up_in_tables(module, parse_target(target)),
        lower_scalars,
        fold_others,
        lambda module: with_node_names(module, model.node_names),
        lambda module: _fuse_attention(module, capability_of(parse_target(target))),
    ]
    return _apply(passes, model.module, target)


def _fuse_attention(module: tvm.IRModule, capability: int) -> tvm.IRModule:
    """Fuse attention; for a GPU, of the given compute capability, also of grouped heads."""
    if capability:
        module = separate_groups(cast_weights_once(module), MIN_QUERIES)
    return fuse_attention(module, capability)


def fuse_operators(operators: tvm.IRModule, target: str) -> tvm.IRModule:
    """Rewrite operators as calls of fused PrimFuncs.

        lv = conv2d(x, w)
        lv1 = add(lv, b)
        gv = relu(lv1)
    ->
        gv = call_tir(fused_conv2d_add_relu, (x, w, b))

    Raises CompileError.
    """
    passes = [
        keep_bytes,
        legalize,
        annotate_patterns,
        transform.FoldConstant(),
        transform.DeadCodeElimination(),
        number_calls,
        transform.FuseOps(),
        view_reshaped,
        name_calls,
        transform.FuseTIR(),
        # Marks the constant operands of each function: these may be packed (compiler.constants.packing).
        transform.AttachAttrLayoutFreeBuffers(),
        lambda module: mark_narrow_weights(module, kernel_calls(module), parse_target(target)),
    ]
    return _apply(passes, operators, target)


def fuse_untuned(model: RelaxModel, target: str) -> tvm.IRModule:
    """Rewrite a model with TVM's default pipeline: layouts as imported, operators fused, no schedules.

    Halves are computed as in the tuned model: this one may be published, too.

        lv = conv2d(x, w, data_layout="NCHW")
        gv = relu(lv)
    ->
        gv = call_tir(fused_conv2d_relu, (x, w))

    Raises CompileError.
    """
    passes = [
        lambda module: _with_weights_for(module, parse_target(target)),
        lambda module: compute_halves(module, parse_target(target)),
        lambda module: fold_constants(module, widen=True),
        legalize,
        relax.get_pipeline("zero"),
    ]
    return _apply(passes, model.module, target)


def _with_weights_for(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module. For a GPU, packed weights are unpacked, because GPUs have no schedules for them."""
    return (unpack(module) or module) if target.kind.name == "cuda" else module


def extract_tasks(fused: tvm.IRModule) -> list[ExtractedTask]:
    """Return the unique workloads of a fused module, in the order of their first call.

    Functions that a schedule can't change are left out: scheduled functions, and calls of external libraries,
    which aren't PrimFuncs.
    """
    tasks: dict[str, ExtractedTask] = {}
    calls = kernel_calls(fused)
    layers = [str(layer) for layer in fused["main"].attrs.get(NODE_NAMES, ())]
    if len(layers) != len(calls):
        layers = [""] * len(calls)
    for call, layer in zip(calls, layers, strict=True):
        name, func = call.args[0].name_hint, fused[call.args[0]]
        if func.attrs.get("tirx.is_scheduled", False):
            continue
        module = normalise(func)
        key = workload_hash(module)
        task = tasks.get(key)
        if task is None:
            constants = tuple(int(index) for index in func.attrs.get(LAYOUT_FREE, ()))
            label = _task_name(name, func, len(call.args[1]))
            tasks[key] = ExtractedTask(key, to_json(module), label, 1, constants, (name,), layer=layer)
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


def _check_shapes(module: tvm.IRModule) -> None:
    """Refuse models that compute tensors of unknown, negative or absurdly large shape."""
    for call in _all_calls(module["main"]):
        if not isinstance(call.ty, relax.TensorType):
            continue
        shape = static_shape(call)
        if shape is None:
            operator = getattr(call.op, "name", "an operator").removeprefix("relax.")
            raise ModelError(f"the shape of what {operator} computes depends on the data: not supported")
        try:
            check_size(shape, str(call.ty.dtype))
        except UnsupportedOperator as error:
            raise ModelError(f"the model can't be imported: {error}") from error


def _all_calls(function: relax.Function) -> list[Call]:
    """Return the calls in a function, in order. Callers loop over them and raise ModelError; TVM would change
    the type of an error that a visitor raises."""
    calls: list[Call] = []
    relax.analysis.post_order_visit(
        function, lambda expr: calls.append(expr) if isinstance(expr, Call) else None
    )
    return calls


def _outputs(names: Sequence[str], result: Any) -> tuple[TensorSpec, ...]:
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
        parsed = parse_target(target)
    except ValueError as error:
        raise ModelError(f"the model can't be compiled: {error}") from error
    try:
        with parsed, tvm.transform.PassContext(opt_level=3):
            for step in passes:
                module = step(module)
    except Exception as error:  # TVM's C++ code may raise any exception class
        if is_out_of_memory(error):
            raise
        _log.warning("a model can't be compiled: %s: %s", type(error).__name__, first_line(error))
        raise CompileError from error
    return module


def _task_name(function: str, func: tirx.PrimFunc, inputs: int) -> str:
    """Name a task by its operators, the shapes of its first two operands, and the shape of its result.

    fused_tf32_conv2d1_add1_relu1  ->  tf32_conv2d_add_relu 1x56x56x64 3x3x64x64 -> 1x56x56x64
    """
    plain = function.removeprefix("fused_").replace("relax_nn_", "").replace("relax_", "")
    operators = re.sub(r"(?<=[a-z])(?<!tf)\d+(?=_|$)", "", plain)
    shapes = [
        "x".join(str(getattr(extent, "value", extent)) for extent in getattr(param.ty, "shape", ())) or "1"
        for param in func.params
    ]
    operands = " ".join(shapes[: min(inputs, 2)])
    return f"{operators} {operands} -> {shapes[-1]}"
