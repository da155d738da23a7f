from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from compiler.constants.fold import static_shape
from compiler.importing.layouts import convert_unsupported_layouts
from compiler.importing.model import (
    ExtractedTask,
    checked_model,
    extract_tasks,
    fuse,
    fuse_untuned,
    read_onnx,
)
from compiler.importing.spec import ModelError, TensorSpec
from compiler.workload import from_json, workload_hash
from tests.onnx_models import Builder, attention, depthwise, residual, shared_convolution, two_outputs

TARGET = '{"kind":"llvm","num-cores":2}'


def _tasks(data: bytes) -> list[ExtractedTask]:
    return extract_tasks(fuse(read_onnx(data, {}), TARGET))


def test_a_residual_network_is_split_into_fused_subgraphs() -> None:
    assert [(task.name, task.weight, task.constants) for task in _tasks(residual())] == [
        ("transpose 1x3x8x8 -> 1x8x8x3", 1, ()),
        ("conv2d_add_relu 1x8x8x3 3x3x3x16 -> 1x8x8x16", 1, (1, 2)),
        ("conv2d_add_add_relu 1x8x8x16 3x3x16x16 -> 1x8x8x16", 1, (1, 2)),
        ("mean 1x8x8x16 -> 1x1x1x16", 1, ()),
        ("transpose_reshape 1x1x1x16 -> 1x16", 1, ()),
        ("matmul_add 1x16 16x10 -> 1x10", 1, (1, 2)),
    ]


def test_clips_fuse_with_depthwise_convolutions_and_stay_channels_last() -> None:
    names = [task.name for task in _tasks(depthwise())]
    assert names == [
        "transpose 1x8x8x8 -> 1x8x8x8",
        "conv2d_add_maximum_minimum 1x8x8x8 1x1x8x24 -> 1x8x8x24",
        "conv2d_add_maximum_minimum 1x8x8x24 3x3x1x24 -> 1x4x4x24",
        "conv2d_add 1x4x4x24 1x1x24x8 -> 1x4x4x8",
        "transpose 1x4x4x8 -> 1x8x4x4",
    ]


@pytest.mark.parametrize("kind", ["add", "subtract", "multiply", "divide"])
def test_operators_between_permutations_join_their_producers(kind: str) -> None:
    """As in ConvNeXt, whose products are channels-last between convolutions."""
    builder = Builder()
    x = builder.op("Conv", "x", builder.weight(16, 8, 3, 3), pads=[1, 1, 1, 1])
    first = builder.op("MatMul", builder.op("Transpose", x, perm=[0, 2, 3, 1]), builder.weight(16, 16))
    second = builder.op("MatMul", first, builder.weight(16, 16))
    operands = [builder.op("Transpose", one, perm=[0, 3, 1, 2]) for one in (first, second)]
    joined = builder.op(kind.title()[:3], *operands)
    y = builder.op("Conv", joined, builder.weight(8, 16, 3, 3), pads=[1, 1, 1, 1])
    names = [task.name.split()[0] for task in _tasks(builder.model({"x": (1, 8, 6, 6)}, {y: None}))]
    assert names == ["transpose", "conv2d_transpose", "matmul", f"matmul_{kind}", "conv2d", "transpose"]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        pytest.param([0, 3, 1, 2], [0, 2, 3, 1], None, id="undone"),
        pytest.param([0, 3, 1, 2], [0, 3, 1, 2], [0, 2, 3, 1], id="joined"),
        pytest.param([0, 1, 3, 2], [3, 2, 1, 0], [2, 3, 1, 0], id="of different kinds"),
    ],
)
def test_a_permutation_of_a_permutation_is_one(
    first: list[int], second: list[int], left: list[int] | None
) -> None:
    x = relax.Var("x", relax.TensorType((2, 3, 4, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.permute_dims(x, first))
            result = builder.emit_output(builder.emit(relax.op.permute_dims(inner, second)))
        builder.emit_func_output(result)
    text = convert_unsupported_layouts(builder.get()).script()
    assert re.findall(r"permute_dims\(\w+, axes=\[([\d, ]*)\]", text) == (
        [] if left is None else [", ".join(map(str, left))]
    )


def test_a_pad_between_permutations_pads_their_operand() -> None:
    x = relax.Var("x", relax.TensorType((1, 4, 5, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
            padded = builder.emit(relax.op.nn.pad(first, [0, 0, 0, 0, 1, 2, 3, 4]))
            result = builder.emit_output(builder.emit(relax.op.permute_dims(padded, [0, 2, 3, 1])))
        builder.emit_func_output(result)
    text = convert_unsupported_layouts(builder.get()).script()
    assert "permute_dims" not in text
    assert "R.nn.pad(x, pad_width=[0, 0, 1, 2, 3, 4, 0, 0]" in text


@pytest.mark.parametrize("order", [[0, 1, 3, 2], None])
def test_differently_permuted_operands_stay(order: list[int] | None) -> None:
    x, y = (relax.Var(name, relax.TensorType((4, 4, 4, 4), "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            first = builder.emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
            second = y if order is None else builder.emit(relax.op.permute_dims(y, order))
            result = builder.emit_output(relax.op.add(first, second))
        builder.emit_func_output(result)
    tvm.ir.assert_structural_equal(convert_unsupported_layouts(builder.get()), builder.get())


REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp", "ArgMax", "Softmax")


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_blocks_of_equal_subgraphs_have_equal_names(kind: str) -> None:
    """The steps of a trace name blocks, and the hash ignores names."""

    def blocks(image: str, products: int) -> list[str]:
        b, value = Builder(), image
        for _ in range(products):
            value = b.op("MatMul", value, b.weight(8, 8))
        *_, task = _tasks(b.model({image: [4, 8]}, {b.op(kind, value): None}))
        found = re.findall(r'sblock\("(\w+)"', from_json(task.module_json).script())
        return [task.workload_hash, *found]

    assert blocks("x", 0) == blocks("image", 0) == blocks("x_red", 1) == blocks("x", 3)


def test_equal_subgraphs_are_one_task_with_their_number_as_weight() -> None:
    by_name = {task.name: task for task in _tasks(attention())}
    assert by_name["matmul 2x8x16 16x16 -> 2x8x16"].weight == 3


@pytest.mark.parametrize(
    "rearranged",
    [
        lambda x: relax.op.squeeze(x, [-2]),
        lambda x: relax.op.permute_dims(x, [0, -1, 1, -2]),
        lambda x: relax.op.stack([x, x], 1),
        lambda x: relax.op.stack([x, x], -3),
    ],
    ids=["squeeze", "permute_dims", "stack", "stack_from_the_end"],
)
def test_axes_may_be_counted_from_the_end(rearranged: Callable[[relax.Expr], relax.Expr]) -> None:
    """Multi-head attention is exported by PyTorch with the first; TVM's importer exhausted memory on it.
    After a convolution, stacks also failed.
    """
    x, kernel = (relax.Var(name, relax.TensorType((2, 2, 1, 4), "float32")) for name in ("x", "kernel"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, kernel]):
        with builder.dataflow():
            convolved = builder.emit(relax.op.nn.conv2d(x, kernel, padding=(0, 2, 0, 1)))
            result = builder.emit_output(rearranged(convolved))
        builder.emit_func_output(result)
    specs = tuple(TensorSpec(name, (2, 2, 1, 4), "float32") for name in ("x", "kernel"))
    model = checked_model(builder.get(), specs, ["y"])
    fused = fuse(model, TARGET)
    assert extract_tasks(fused)
    assert static_shape(fused["main"].body) == model.outputs[0].shape


def test_a_subgraph_with_a_constant_and_one_without_are_two_tasks() -> None:
    builder = Builder()
    first = builder.op("MatMul", "left", builder.weight(4, 4))
    second = builder.op("MatMul", "left", "right")
    data = builder.model({"left": [4, 4], "right": [4, 4]}, {first: [4, 4], second: [4, 4]})
    assert [(task.weight, task.constants) for task in _tasks(data)] == [(1, (1,)), (1, ())]


def test_a_workload_names_its_constant_operands() -> None:
    for task in _tasks(residual()):
        attrs = from_json(task.module_json)["main"].attrs
        assert tuple(attrs["layout_free_buffers"]) == task.constants


def test_a_constant_that_two_calls_share_is_constant_in_both() -> None:
    builder = Builder()
    weight = builder.weight(4, 4)
    results = [builder.op("MatMul", name, weight) for name in ("left", "right")]
    data = builder.model({"left": [4, 4], "right": [4, 4]}, {result: [4, 4] for result in results})
    assert [(task.weight, task.constants) for task in _tasks(data)] == [(2, (1,))]


def test_a_task_carries_its_workload() -> None:
    for task in _tasks(residual()):
        assert workload_hash(from_json(task.module_json)) == task.workload_hash


def test_a_shared_convolution_keeps_its_weights() -> None:
    assert any("subtract_divide_multiply" in task.name for task in _tasks(shared_convolution()))


def test_an_untuned_model_is_fused_by_tvms_default_pipeline() -> None:
    module = fuse_untuned(read_onnx(residual(), {}), TARGET)
    names = [name.name_hint for name, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    assert any(name.startswith("conv2d") for name in names)
    assert not any("transpose" in name and "conv2d" in name for name in names)
    (conv,) = [module[name] for name in names if name == "conv2d"]
    assert [int(extent) for extent in conv.params[0].ty.shape] == [1, 3, 8, 8]


def test_inputs_and_outputs_are_named_as_in_the_file() -> None:
    model = read_onnx(two_outputs(), {})
    assert [spec.name for spec in model.inputs] == ["left", "right"]
    assert [(spec.name, spec.shape) for spec in model.outputs] == [
        ("add0.out", (4, 5)),
        ("relu1.out", (4, 5)),
    ]


def _single(kind: str, domain: str = "", **attributes: object) -> bytes:
    builder = Builder()
    output = builder.op(kind, "input", **attributes)
    model = onnx.load_from_string(builder.model({"input": [2, 2]}, {output: [2, 2]}))
    model.graph.node[0].domain = domain
    if domain:
        model.opset_import.add(domain=domain, version=1)
    return bytes(model.SerializeToString())


def test_an_operator_without_an_import_is_named_with_its_node() -> None:
    with pytest.raises(
        ModelError,
        match=r"operator StringNormalizer .version 10. of node 'stringnormalizer0' can't be imported",
    ):
        read_onnx(_single("StringNormalizer"), {})


def test_an_operator_of_a_foreign_domain_is_not_taken_for_its_namesake() -> None:
    with pytest.raises(
        ModelError, match=r"operator my\.domain\.Relu .version 1. of node 'relu0' can't be imported"
    ):
        read_onnx(_single("Relu", domain="my.domain"), {})


def test_an_operator_that_fails_to_import_is_named_with_its_node() -> None:
    builder = Builder()
    shape = builder.constant(np.array([7, 7]))
    data = builder.model({"input": [2, 2]}, {builder.op("Reshape", "input", shape): [7, 7]})
    with pytest.raises(
        ModelError, match=r"operator Reshape .version 14. of node 'reshape0' can't be imported"
    ):
        read_onnx(data, {})


def test_a_shape_that_depends_on_the_data_is_the_largest_one() -> None:
    builder = Builder()
    data = builder.model({"input": [2, 2]}, {builder.op("Unique", "input"): None})
    model = onnx.load_from_string(data)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    (output,) = read_onnx(bytes(model.SerializeToString()), {}).outputs
    assert (output.shape, output.padded_axis) == ((4,), 0)


def test_a_small_file_that_asks_for_a_huge_tensor_is_refused() -> None:
    builder = Builder()
    x = builder.op("MatMul", "left", "right")
    data = builder.model({"left": [200_000, 1], "right": [1, 200_000]}, {x: [200_000, 200_000]})
    with pytest.raises(ModelError, match=r"\(200000, 200000\), 160000000000 bytes; the limit is"):
        read_onnx(data, {})


def test_an_unknown_target_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="not a target"):
        fuse(read_onnx(two_outputs(), {}), "no-such-target")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 4))
def test_a_damaged_file_is_a_model_error_or_a_model(seed: int, changes: int) -> None:
    rng = random.Random(seed)
    data = bytearray(two_outputs() if seed % 2 else depthwise())
    for _ in range(changes):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    try:
        tasks = extract_tasks(fuse(read_onnx(bytes(data), {}), TARGET))
    except ModelError:
        return  # anything else, and any crash, fails the test
    for task in tasks:
        assert workload_hash(from_json(task.module_json)) == task.workload_hash
        assert task.weight > 0
