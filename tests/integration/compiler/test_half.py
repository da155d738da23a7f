"""Halves are computed in float32, unless the device has arithmetic or dot products of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from compiler.importing.model import (
    RelaxModel,
    convert_operators,
    extract_tasks,
    fuse,
    fuse_untuned,
    read_onnx,
)
from compiler.packaging.artifact import build_library
from compiler.precision import half
from compiler.precision.half import SUMS, count_products
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from examples.quantization import narrowed
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.half_products import HALF_ARITHMETIC
from search.sketches.stage import StageKind
from tests.compiled import build_module, load_main
from tests.devices import GPU
from tests.gpu_programs import Failure, compiled, failures
from tests.onnx_models import Builder, residual
from tests.suite import Case

DEVICE = detect_device()
needs_floats = pytest.mark.skipif(
    bool(HALF_ARITHMETIC.intersection(DEVICE.features)), reason="this CPU computes in halves"
)
RNG = np.random.default_rng(0)
# 4,096 terms: a sum in halves is off by more than a thousandth.
IMAGE, KERNEL, DEPTH = (1, 256, 8, 8), (32, 256, 3, 3), 4096


def _model() -> onnx.ModelProto:
    """Two convolutions, one of them transposed and one grouped, and a matrix product."""
    weights = {
        "filters": RNG.normal(0, 0.05, KERNEL),
        "depthwise": RNG.normal(0, 0.3, (32, 1, 3, 3)),
        "phases": RNG.normal(0, 0.05, (32, 64, 2, 2)),
        "matrix": RNG.normal(0, 0.05, (DEPTH, 16)),
    }
    nodes = [
        helper.make_node("Conv", ["image", "filters"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "depthwise"], ["b"], pads=[1, 1, 1, 1], group=32),
        helper.make_node("ConvTranspose", ["b", "phases"], ["c"], strides=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT16, IMAGE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (1, 16))],
        [numpy_helper.from_array(value.astype(np.float16), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.fixture(scope="module")
def file() -> bytes:
    return _model().SerializeToString()


@pytest.fixture(scope="module")
def model(file: bytes) -> RelaxModel:
    return read_onnx(file, {})


def _types_of_sums(module: tvm.IRModule) -> set[str]:
    found = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") in SUMS:
            found.add(str(expr.ty.dtype))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def test_products_read_halves_where_these_have_arithmetic(model: RelaxModel) -> None:
    without = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}'
    with_arithmetic = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+fullfp16"]}'
    computed = [convert_operators(model, target) for target in (without, with_arithmetic)]
    for module in computed:
        assert _types_of_sums(module) == {"float32"}
    plain, own = map(_types, computed)
    assert plain["nn.conv2d"] == plain["nn.max_pool2d"] == {"float32"}
    assert own["nn.conv2d"] == own["matmul"] == {"float16", "float32"}
    assert own["nn.max_pool2d"] == {"float16"}
    # The depthwise convolution has too few terms for blocks of halves.
    assert count_products(model.module, parse_target(with_arithmetic)) == (1, 1)
    long_products = with_arithmetic.replace("+fullfp16", "+fp16fml")
    assert count_products(model.module, parse_target(long_products)) == (0, 0)


@needs_floats
def test_sums_of_halves_are_searched(model: RelaxModel) -> None:
    tasks = extract_tasks(fuse(model, DEVICE.target))
    sums = [dag for dag in (read_dag(from_json(task.module_json)) for task in tasks) if dag.flops > 3e4]
    assert len(sums) == 4
    for dag in sums:
        assert generate(dag, DEVICE), dag


@needs_floats
def test_sums_of_halves_are_rounded_once(file: bytes, model: RelaxModel, tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    build_module(fuse(model, DEVICE.target), {}, DEVICE.target, library)
    image = RNG.normal(0, 1, IMAGE).astype(np.float16)
    computed = load_main(library)(tvm.runtime.tensor(image)).numpy()
    (expected,) = onnxruntime.InferenceSession(file).run(None, {"image": image})
    assert np.abs(computed - expected).max() < 2e-3 * np.abs(expected).max()


GENERIC = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"haswell"}'
GENOA = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"znver4"}'


def _types(module: tvm.IRModule) -> dict[str, set[str]]:
    """Return the types of operands and results by operator."""
    found: dict[str, set[str]] = {}

    def visit(expr: relax.Expr) -> None:
        name = getattr(getattr(expr, "op", None), "name", "")
        if isinstance(expr, tvm.ir.Call) and name.startswith("relax.") and expr.args:
            types = {str(getattr(one.ty, "dtype", "")) for one in (expr, *expr.args)} - {""}
            found.setdefault(name.removeprefix("relax."), set()).update(types)

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def _residual(dtype: int) -> RelaxModel:
    return read_onnx(narrowed(onnx.load_from_string(residual()), dtype).SerializeToString(), {})


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_halves_without_instructions_of_their_own_are_computed_in_float32(dtype: int) -> None:
    types = _types(convert_operators(_residual(dtype), GENERIC))
    assert types["nn.conv2d"] == types["nn.relu"] == types["add"] == {"float32"}, types
    models = _residual(dtype), read_onnx(residual(), {})
    own, plain = (extract_tasks(fuse(model, GENERIC)) for model in models)
    layers = [
        {task.workload_hash: task.layer for task in tasks if "conv2d" in task.name} for tasks in (plain, own)
    ]
    assert layers[0]
    assert layers[0] == layers[1]


def test_dot_products_read_halves_and_the_rest_is_float32() -> None:
    model = _residual(TensorProto.BFLOAT16)
    types = _types(convert_operators(model, GENOA))
    assert types["nn.conv2d"] == {"bfloat16", "float32"}
    assert types["nn.relu"] == {"float32"}
    names = [task.name.split()[0] for task in extract_tasks(fuse(model, GENOA))]
    assert not any("astype" in name and "conv2d" not in name for name in names[1:]), names


def test_tiles_multiply_bfloat16_without_dot_products() -> None:
    """The first convolution has too few channels for tiles, and the classifier a single row."""
    tiles = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"haswell","mattr":["+amx-bf16","+amx-int8"]}'
    model = _residual(TensorProto.BFLOAT16)
    assert _types(convert_operators(model, tiles))["nn.conv2d"] == {"bfloat16", "float32"}
    assert count_products(model.module, parse_target(tiles)) == (2, 3)


def test_products_in_float32_are_counted() -> None:
    model = _residual(TensorProto.BFLOAT16)
    counts = [count_products(model.module, parse_target(target)) for target in (GENERIC, GENOA, GPU.target)]
    assert counts == [(3, 3), (1, 3), (0, 0)]
    plain = read_onnx(residual(), {}).module
    assert count_products(plain, parse_target(GENERIC)) == (0, 0)


def test_casts_of_the_model_still_round() -> None:
    b = Builder()
    rounded = b.op("Cast", b.op("Cast", "x", to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    module = read_onnx(b.model({"x": [1, 8]}, {rounded: [1, 8]}), {})
    assert _types(convert_operators(module, GENERIC))["astype"] == {"float16", "float32"}


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_times_large_weights_keeps_halves(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "CACHED_BYTES", 4 * 64 * 48 - 1)
    b = Builder()
    file = onnx.load_from_string(
        b.model({"x": [rows, 64]}, {b.op("MatMul", "x", b.weight(64, 48)): [rows, 48]})
    )
    model = read_onnx(narrowed(file, TensorProto.FLOAT16).SerializeToString(), {})
    types = _types(convert_operators(model, GENERIC))
    assert types["matmul"] == ({"float16", "float32"} if rows == 1 else {"float32"})


@needs_floats
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_networks_of_halves_agree_with_float32(dtype: int, tmp_path: Path) -> None:
    image = RNG.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    build_module(fuse(_residual(dtype), DEVICE.target), {}, DEVICE.target, tmp_path / "model.so")
    found = load_main(tmp_path / "model.so")(tvm.runtime.tensor(image)).numpy()
    (wanted,) = onnxruntime.InferenceSession(residual()).run(None, {"input": image})
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_winograd_competes_with_dot_products_of_bfloat16() -> None:
    b = Builder()
    conv = b.op("Relu", b.conv("input", 16, 16, 3))
    file = onnx.load_from_string(b.model({"input": [1, 16, 12, 12]}, {conv: [1, 16, 12, 12]}))
    model = read_onnx(narrowed(file, TensorProto.BFLOAT16).SerializeToString(), {})
    tasks = VariantModel.of(model, GENOA).tasks()
    (variant,) = (task for task in tasks if task.variant)
    assert (variant.variant, variant.exact) == ("winograd_2", False)
    (own,) = (task for task in tasks if task.workload_hash == variant.variant_of)
    signatures = [read_dag(from_json(task.module_json)).signature for task in (own, variant)]
    assert [signature.partition("[")[0] for signature in signatures] == ["bfloat16", "bfloat16"]
    assert "float32[4,4,16,16]" in signatures[1]


class ImportedProduct(Case):
    """A matrix product of halves and a rectifier, as a model's are imported for a GPU."""

    def module(self) -> tvm.IRModule:
        rows, columns, summed = self.shape
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        weight = numpy_helper.from_array(np.ones((summed, columns), dtype=self.dtype), "w")
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["y"]),
        ]
        values = (("x", (rows, summed)), ("y", (rows, columns)))
        x, y = (helper.make_tensor_value_info(name, kind, extents) for name, extents in values)
        model = helper.make_model(helper.make_graph(nodes, "product", [x], [y], [weight]), ir_version=10)
        [task] = extract_tasks(fuse(read_onnx(model.SerializeToString(), {}), GPU.target))
        return from_json(task.module_json)

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.maximum(super().reference(inputs), 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_halves_for_tensor_cores_have_sums_of_floats(dtype: str) -> None:
    dag = read_dag(ImportedProduct("GMM", (40, 32, 64), dtype=dtype).module())
    product = next(node for node in dag.nodes if node.reduction)
    assert dag.buffer[product.write.buffer].dtype == "float32"
    assert any(sketch.of_kind(StageKind.TENSOR) for sketch in generate(dag, GPU))


@pytest.mark.slow_lane(seconds=11)
def test_tensor_cores_add_up_products_of_halves_in_floats() -> None:
    results = []
    for dtype in ("float16", "bfloat16"):
        case = ImportedProduct("GMM", (40, 32, 64), dtype=dtype)
        sketch = next(one for one in generate(read_dag(case.module()), GPU) if one.of_kind(StageKind.TENSOR))
        population = sample(sketch, 64, np.random.default_rng(0))
        results += [compiled(case, population.program(row)) for row in (0, 20)]
    wrong = [one for one in results if isinstance(one, Failure)]
    wrong += failures([one for one in results if not isinstance(one, Failure)])
    assert not wrong, "\n\n".join(map(str, wrong))


# 2,000 ones: a sum in bfloat16 stays at 256, a sum in float16 is right by chance.
PRODUCTS: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "MatMul": ({"a": (1, 2000), "b": (2000, 4)}, {}),
    "Gemm": ({"a": (1, 2000), "b": (2000, 4)}, {}),
    "Einsum": ({"a": (1, 2000), "b": (2000, 4)}, {"equation": "ij,jk->ik"}),
    "Conv": ({"a": (1, 500, 3, 3), "b": (4, 500, 2, 2)}, {}),
    "ConvTranspose": ({"a": (1, 2000, 2, 2), "b": (2000, 4, 1, 1)}, {}),
}


@pytest.mark.parametrize("rewrite", [fuse, fuse_untuned])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_bfloat16_are_added_up_in_floats(
    kind: str, rewrite: Callable[[RelaxModel, str], tvm.IRModule], tmp_path: Path
) -> None:
    shapes, attributes = PRODUCTS[kind]
    values = [
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape) for name, shape in shapes.items()
    ]
    node = helper.make_node(kind, list(shapes), ["y"], **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)
    graph = helper.make_graph([node], "product", values, [y])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    build_library(
        rewrite(read_onnx(file.SerializeToString(), {}), DEVICE.target), DEVICE.target, tmp_path / "model.so"
    )
    ones = [tvm.runtime.tensor(np.ones(shape, ml_dtypes.bfloat16)) for shape in shapes.values()]
    assert np.unique(load_main(tmp_path / "model.so")(*ones).numpy().astype(np.float32)) == [2000]
