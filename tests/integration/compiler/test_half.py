"""Products of float16 are summed in float32, unless the device computes in float16."""

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
from compiler.precision.half import HALF_ARITHMETIC, SUMS
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.workload import from_json
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.compiled import build_module, load_main
from tests.devices import GPU
from tests.gpu_programs import Failure, compiled, failures
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


def test_sums_are_floats_where_halves_have_no_arithmetic(model: RelaxModel) -> None:
    without = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}'
    with_arithmetic = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+fullfp16"]}'
    assert _types_of_sums(convert_operators(model, without)) == {"float32"}
    assert _types_of_sums(convert_operators(model, with_arithmetic)) == {"float16"}


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
