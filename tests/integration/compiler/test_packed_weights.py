"""Weights of a few bits stay packed in the library, and are converted to floats in registers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from compiler.importing.model import fuse, read_onnx
from compiler.importing.onnx_runtime import load_session
from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.quantizing.weights import quantize_weights
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants import floats
from compiler.variants.choice import VariantModel
from compiler.verifying.imported import Imported
from compiler.workload import from_json
from core.measurement import Outcome
from search.cost.model import CostModel
from search.policy import TuneContext, propose
from search.programs.annotate import sample
from search.rules.space import generate
from tests.compiled import build_module
from tests.onnx_models import Builder

DEVICE = detect_device(1)
GPU = '{"kind":"cuda","arch":"sm_80","host":{"kind":"llvm"}}'


def product(rows: tuple[int, ...], depth: int, columns: int, bits: int) -> onnx.ModelProto:
    """A product with a bias and a ReLU. The weights have 4 or 8 bits, in blocks of 32."""
    b = Builder()
    shifted = b.op("Add", b.op("MatMul", "x", b.weight(depth, columns)), b.weight(columns))
    model = b.model({"x": [*rows, depth]}, {b.op("Relu", shifted): [*rows, columns]})
    return quantize_weights(onnx.load_from_string(model), bits, ())


def constants(module: tvm.IRModule) -> dict[str, int]:
    """The bytes of a module's constants, by their type."""
    found: dict[str, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            array = expr.value.numpy()
            found[str(array.dtype)] = found.get(str(array.dtype), 0) + array.nbytes

    relax.analysis.post_order_visit(module["main"], visit)
    return found


@pytest.mark.parametrize(
    ("rows", "bits"), [((1,), 4), ((1, 1), 8), ((2, 3), 4), pytest.param((), 4, id="a vector")]
)
def test_the_library_agrees_with_onnx_runtime(rows: tuple[int, ...], bits: int, tmp_path: Path) -> None:
    quantized = product(rows or (1,), 128, 48, bits)
    variants = VariantModel.of(read_onnx(quantized.SerializeToString(), {}), DEVICE.target)
    data = np.random.default_rng(1).standard_normal((*(rows or (1,)), 128), np.float32)
    [wanted] = load_session(quantized, [quantized.graph.output[0].name])({"x": data})
    unpacked = [task.workload_hash for task in variants.tasks() if task.variant == "floats"]
    assert len(unpacked) == 1
    for number, chosen in enumerate(([], unpacked)):
        library = tmp_path / f"{number}.so"
        build_module(variants.choose(chosen), {}, DEVICE.target, library)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        # Packed: codes, and a zero and a scale for each of a column's 4 blocks. Then unpacked.
        kinds = constants(variants.choose(chosen))
        assert kinds.get("uint8", 0) == (0 if chosen else 128 * 48 * bits // 8 + 4 * 48)
        assert kinds["float32"] == (128 * 48 + 48 if chosen else 4 * 48 + 48) * 4


def in_blocks(dtype: int, block: int, layout: str, zeros: bool, float_type: int) -> onnx.ModelProto:
    """A product whose weight is dequantized in blocks, as exporters write it since opset 21. `layout` says
    how the product reads the weight.
    """
    rng, depth, columns = np.random.default_rng(block), 256, 24
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    limits = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    is_turned = layout != "MatMul"
    shape, scales = [depth, columns], [depth // block, columns]
    if is_turned:
        shape, scales = shape[::-1], scales[::-1]

    def integers(extents: list[int]) -> NDArray[Any]:
        return rng.integers(limits.min, limits.max, extents, endpoint=True).astype(kind)

    floats = helper.tensor_dtype_to_np_dtype(float_type)
    weights = {"codes": integers(shape), "scales": rng.uniform(0.01, 0.1, scales).astype(floats)}
    weights |= {"zeros": integers(scales)} if zeros else {}
    weights |= {"bias": rng.standard_normal(columns).astype(floats)} if layout == "Gemm" else {}
    nodes = [
        helper.make_node(
            "DequantizeLinear", [*weights][: 2 + zeros], ["w"], axis=int(is_turned), block_size=block
        )
    ]
    weight = "w"
    if layout == "Transpose":
        nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
        weight = "turned"
    if layout == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "w", "bias"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["x", weight], ["y"]))
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", float_type, [3, depth])],
        [helper.make_tensor_value_info("y", float_type, [3, columns])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


BLOCKS = {
    "int4": (TensorProto.INT4, 32, "MatMul", False, TensorProto.FLOAT),
    "uint4 with zeros": (TensorProto.UINT4, 16, "MatMul", True, TensorProto.FLOAT),
    "int8": (TensorProto.INT8, 64, "Transpose", False, TensorProto.FLOAT),
    "int8 with zeros": (TensorProto.INT8, 128, "Gemm", True, TensorProto.FLOAT),
    "uint8": (TensorProto.UINT8, 32, "Gemm", True, TensorProto.FLOAT),
    "float16": (TensorProto.INT4, 32, "MatMul", False, TensorProto.FLOAT16),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_weights_dequantized_in_blocks_stay_packed(name: str, tmp_path: Path) -> None:
    dtype, block, _, _, float_type = BLOCKS[name]
    model = in_blocks(*BLOCKS[name])
    floats = helper.tensor_dtype_to_np_dtype(float_type)
    data = np.random.default_rng(1).standard_normal((3, 256)).astype(floats)
    [wanted] = load_session(model, ["y"])({"x": data})
    fused = fuse(read_onnx(model.SerializeToString(), {}), DEVICE.target)
    bits = 4 if dtype in (TensorProto.INT4, TensorProto.UINT4) else 8
    assert constants(fused)["uint8"] >= 256 * 24 * bits // 8
    assert constants(fused).get("float32", 0) <= 4 * 24 * (256 // block + 1)
    library = tmp_path / "model.so"
    build_module(fused, {}, DEVICE.target, library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(data)).numpy()
    tolerance = 1e-4 if floats == np.float32 else 5e-3
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_weights_in_blocks_that_others_read_are_floats() -> None:
    model = in_blocks(*BLOCKS["int4"])
    model.graph.node.append(helper.make_node("ReduceSum", ["w"], ["total"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    module = read_onnx(model.SerializeToString(), {})
    [wanted] = load_session(model, ["total"])({"x": np.zeros((3, 256), np.float32)})
    found = Imported(module, '{"kind":"llvm","num-cores":1}').compute({"x": np.zeros((3, 256), np.float32)})
    np.testing.assert_allclose(found["total"], wanted, rtol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_programs_of_each_sketch_are_right(bits: int) -> None:
    variants = VariantModel.of(
        read_onnx(product((2,), 256, 192, bits).SerializeToString(), {}), DEVICE.target
    )
    task = variants.tasks()[0]
    assert task.constants == (1, 2, 3, 4)
    module = from_json(task.module_json)
    builder, runner, rng = (
        LocalBuilder(DEVICE.target),
        LocalRunner(DEVICE.target),
        np.random.default_rng(bits),
    )
    sketches = generate(read_dag(module), DEVICE)
    assert sketches
    for sketch in sketches:
        program = sample(sketch, 16, rng).program(0)
        built = builder.build(task.module_json, lower(module, program, DEVICE))
        assert isinstance(built, BuiltKernel), built
        measured = runner.run(built, task.module_json, task.constants)
        assert measured.outcome is Outcome.OK, measured.error


def test_the_estimate_prefers_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floats, "CACHED_BYTES", 1 << 30)
    quantized = product((1,), 2048, 2048, 4)
    variants = VariantModel.of(read_onnx(quantized.SerializeToString(), {}), DEVICE.target)
    fastest = []
    for task in variants.tasks():
        dag = read_dag(from_json(task.module_json))
        context = TuneContext(dag, tuple(generate(dag, DEVICE)), DEVICE)
        found = propose(context, CostModel(), [], 4, np.random.default_rng(0))
        fastest.append(min(one.predicted_s for one in found))
    packed_s, floats_s = fastest
    assert packed_s < floats_s / 2


def test_floats_are_tried_for_several_rows_of_large_packed_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floats, "CACHED_BYTES", 4 * 64 * 48 - 1)
    names = {}
    for rows in (1, 2):
        model = read_onnx(product((rows,), 64, 48, 4).SerializeToString(), {})
        names[rows] = [task.variant for task in VariantModel.of(model, DEVICE.target).tasks()]
    assert names == {1: [""], 2: ["", "floats"]}


def test_a_gpu_computes_with_floats() -> None:
    model = read_onnx(product((1,), 64, 48, 4).SerializeToString(), {})
    assert set(constants(fuse(model, GPU))) == {"float32"}
    halves = read_onnx(in_blocks(*BLOCKS["float16"]).SerializeToString(), {})
    assert constants(fuse(halves, GPU)) == {"float16": 2 * 256 * 24}


def test_the_last_block_in_part_becomes_floats() -> None:
    model = read_onnx(product((1,), 40, 48, 4).SerializeToString(), {})
    kinds = constants(fuse(model, DEVICE.target))
    assert set(kinds) == {"float32"}
    assert math.isclose(kinds["float32"], 4 * (40 * 48 + 48))
