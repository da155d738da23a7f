"""Products of float32 whose factors are rounded to TF32."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax, te

from compiler.codegen import nvcc
from compiler.codegen.nvcc import compile_cubin
from compiler.importing.model import read_onnx
from compiler.lowering.trace import lower
from compiler.measuring.expected import Expected
from compiler.measuring.random_inputs import InputKind, parameters
from compiler.measuring.rounding import TRUNCATIONS, Rounding
from compiler.precision.tf32 import rounded
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.compiled import build_module
from tests.devices import GPU
from tests.floats import in_tf32
from tests.imported_cases import AttentionInTf32
from tests.onnx_models import Builder

TURING = json.dumps({**json.loads(GPU.target), "arch": "sm_75"})


@dataclass(frozen=True)
class Product:
    """An operator of ONNX of an input and a constant, or of two inputs."""

    operator: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    attributes: Mapping[str, Any] | None = None
    is_constant: bool = True

    def model(self) -> bytes:
        builder = Builder()
        right = builder.weight(*self.right) if self.is_constant else "w"
        y = builder.op("Relu", builder.op(self.operator, "x", right, **(self.attributes or {})))
        inputs = {"x": self.left} | ({} if self.is_constant else {"w": self.right})
        return builder.model(inputs, {y: None})


PRODUCTS = {
    "rows": Product("MatMul", (2, 10, 24), (24, 16)),
    "batches": Product("MatMul", (2, 16, 8), (2, 8, 24), is_constant=False),
    "shared by heads": Product("MatMul", (2, 3, 8, 24), (2, 1, 24, 16), is_constant=False),
    "1d": Product("Conv", (2, 8, 20), (16, 8, 3), {"pads": [1, 0], "strides": [2]}),
    "2d": Product("Conv", (1, 6, 9, 9), (16, 6, 3, 3), {"pads": [1, 1, 1, 1], "dilations": [2, 1]}),
    "3d": Product("Conv", (1, 4, 5, 5, 5), (16, 4, 2, 2, 2), {"strides": [1, 2, 1]}),
}


def _run(module: tvm.IRModule, arguments: list[Any]) -> Any:
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_rounded_factors_is_a_variant(name: str) -> None:
    product = PRODUCTS[name]
    model = read_onnx(product.model(), {})
    variants = VariantModel.of(model, GPU.target, tf32=True)
    [task] = (task for task in variants.tasks() if task.variant == "tf32")
    assert not task.exact
    assert task.name.startswith("tf32_")
    dag = read_dag(from_json(task.module_json))
    assert [node.rounds_to for node in dag.nodes if node.reduction] == ["tf32"]
    assert all(sketch.of_kind(StageKind.TENSOR) for sketch in generate(dag, GPU))

    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-1, 1, spec.shape).astype(np.float32) for spec in model.inputs]
    found = _run(variants.choose([task.workload_hash]), arguments)
    plain = _run(variants.fused, arguments)
    error = np.abs(found - plain).max() / np.abs(plain).max()
    assert 1e-6 < error < 2e-3, "the factors have ten bits of fraction, not float32's"


def test_products_are_computed_from_tf32_factors() -> None:
    variants = VariantModel.of(read_onnx(PRODUCTS["batches"].model(), {}), GPU.target, tf32=True)
    [task] = (task for task in variants.tasks() if task.variant == "tf32")
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 16, 8), (2, 8, 24)))
    expected = np.maximum(in_tf32(left).astype(np.float64) @ in_tf32(right), 0)
    found = _run(variants.choose([task.workload_hash]), [left, right])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("product", "target", "asked"),
    [
        pytest.param(PRODUCTS["rows"], GPU.target, False, id="nobody asked"),
        pytest.param(PRODUCTS["rows"], TURING, True, id="tensor cores without TF32"),
        pytest.param(PRODUCTS["rows"], detect_device(1).target, True, id="a CPU"),
        pytest.param(Product("MatMul", (8, 24), (24, 16)), GPU.target, True, id="few rows"),
        pytest.param(
            Product("MatMul", (2, 1, 16, 24), (2, 3, 24, 16), is_constant=False),
            GPU.target,
            True,
            id="rows for several matrices",
        ),
        pytest.param(
            Product("Conv", (1, 32, 9, 9), (32, 1, 3, 3), {"group": 32}), GPU.target, True, id="groups"
        ),
    ],
)
def test_others_stay_in_float32(product: Product, target: str, asked: bool) -> None:
    variants = VariantModel.of(read_onnx(product.model(), {}), target, tf32=asked)
    assert "tf32" not in {task.variant for task in variants.tasks()}


def test_values_are_rounded_to_the_nearest_and_ties_away_from_zero() -> None:
    rng = np.random.default_rng(0)
    ties = np.array(
        [1 + 2**-11, -1 - 2**-11, 1 + 3 * 2**-11, np.float32(2) - np.float32(2**-23)], dtype=np.float32
    )
    others = np.ldexp(rng.uniform(-1, 1, 1000), rng.integers(-100, 100, 1000)).astype(np.float32)
    values = np.concatenate([ties, others, np.array([0, np.inf, -np.inf], dtype=np.float32)])
    source = te.placeholder(values.shape, name="source")
    function = te.create_prim_func([source, te.compute(values.shape, lambda i: rounded(source[i]))])
    library = tvm.compile(tvm.IRModule({"main": function}), target="llvm")
    result = tvm.runtime.tensor(np.zeros_like(values))
    library["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy()[:-3], in_tf32(values[:-3]))
    np.testing.assert_array_equal(result.numpy()[-3:], values[-3:])


def test_only_the_truncation_of_tensor_cores_is_allowed_beyond_float32s_errors() -> None:
    variants = VariantModel.of(read_onnx(PRODUCTS["rows"].model(), {}), GPU.target, tf32=True)
    [own, other] = (t for t in variants.tasks() if t.variant in ("", "tf32"))
    plain, truncated = (Rounding.of(from_json(task.module_json)["main"]) for task in (own, other))
    depth = PRODUCTS["rows"].left[-1]
    assert truncated.relative - plain.relative == pytest.approx(TRUNCATIONS * depth * 2.0**-23)


@dataclass(frozen=True)
class TensorCores:
    """Tensor cores that add `depth` products in one step, each with `more_bits` more bits than float32."""

    depth: int
    more_bits: int


AMPERE, HOPPER = TensorCores(4, 2), TensorCores(8, 2)


def truncating_product(
    left: NDArray[np.float32], right: NDArray[np.float32], cores: TensorCores = HOPPER
) -> NDArray[np.float32]:
    """Multiply matrices like tensor cores: align exact products and the sum so far to the largest exponent,
    and truncate them and their sum.
    """
    depth = cores.depth
    sums = np.zeros((len(left), right.shape[1]))
    for k in range(0, left.shape[1], depth):
        factors = left[:, k : k + depth, None].astype(np.float64) * right[None, k : k + depth]
        terms = np.concatenate([sums[:, None], factors], axis=1)
        largest = np.abs(terms).max(axis=1, keepdims=True)
        bit = np.ldexp(1.0, np.frexp(np.where(largest, largest, 1.0))[1] - 24 - cores.more_bits)
        sums = (np.trunc(terms / bit) * bit).sum(axis=1)
        whole = np.ldexp(1.0, np.frexp(np.where(sums, sums, 1.0))[1] - 24)
        sums = np.trunc(sums / whole) * whole
    return sums.astype(np.float32)


@pytest.fixture(scope="module", params=[64, 1152, 4608])
def long_product(request: pytest.FixtureRequest) -> tuple[Rounding, list[NDArray[np.float32]]]:
    """The roundings of a product in TF32 of 98 x K and K x 256, and its factors."""
    depth = request.param
    variants = VariantModel.of(
        read_onnx(Product("MatMul", (98, depth), (depth, 256), is_constant=False).model(), {}),
        GPU.target,
        tf32=True,
    )
    [task] = (task for task in variants.tasks() if task.variant == "tf32")
    function = from_json(task.module_json)["main"]
    return Rounding.of(function), InputKind.LARGE.arrays(parameters(function)[:2])


@pytest.mark.parametrize("cores", [AMPERE, HOPPER])
def test_truncation_by_tensor_cores_is_not_an_error(
    long_product: tuple[Rounding, list[NDArray[np.float32]]], cores: TensorCores
) -> None:
    rounding, factors = long_product
    left, right = map(in_tf32, factors)
    exact = (left.astype(np.float64) @ right).astype(np.float32)
    # As a network's relu leaves them: half the values are 0, and the others are compared with fewer.
    exact, found = np.maximum(exact, 0), np.maximum(truncating_product(left, right, cores), 0)
    assert not Expected.of(exact, None, rounding).difference(found)


@pytest.mark.parametrize(
    "fault", ["a term left out", "a term twice", "one factor of a neighbour", "bfloat16", "one sum swapped"]
)
def test_a_wrong_product_is_caught_in_spite_of_the_truncation(
    long_product: tuple[Rounding, list[NDArray[np.float32]]], fault: str
) -> None:
    rounding, factors = long_product
    left, right = map(in_tf32, factors)
    exact = left.astype(np.float64) @ right
    wrong, depth = left.copy(), left.shape[1]
    if fault == "a term left out":
        wrong[:, depth // 2] = 0
    elif fault == "a term twice":
        wrong[:, depth // 2] *= 2
    elif fault == "one factor of a neighbour":
        wrong[:, depth - 1] = wrong[:, depth - 2]
    elif fault == "bfloat16":
        wrong = wrong.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = truncating_product(wrong, right)
    if fault == "one sum swapped":
        found[3, 4], found[3, 5] = found[3, 5], found[3, 4]
    assert Expected.of(exact.astype(np.float32), None, rounding).difference(found)


@pytest.fixture(scope="module")
def attention() -> tuple[Rounding, NDArray[np.float64], NDArray[np.float64]]:
    """The roundings of an attention in TF32, its scores and its values."""
    function = AttentionInTf32("attention", (4, 128, 256, 32, False)).module()["main"]
    query, key, value = InputKind.ORDINARY.arrays(parameters(function)[:3])
    query, key, value = (in_tf32(one)[0].astype(np.float64) for one in (query, key, value))
    return Rounding.of(function), query @ key * 0.25, value


def _attended(
    scores: NDArray[np.float64], values: NDArray[np.float64], rounds: Callable[[Any], Any], is_online: bool
) -> NDArray[np.float32]:
    """Weigh values. An online softmax rounds weights before it divides them by their sum."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    if is_online:
        return np.asarray(rounds(weights.astype(np.float32)) @ values / total, dtype=np.float32)
    return np.asarray(rounds((weights / total).astype(np.float32)) @ values, dtype=np.float32)


def test_weights_may_be_rounded_before_they_are_divided(
    attention: tuple[Rounding, NDArray[np.float64], NDArray[np.float64]],
) -> None:
    rounding, scores, values = attention
    expected, found = (_attended(scores, values, in_tf32, is_online) for is_online in (False, True))
    assert not np.array_equal(expected, found)
    assert not Expected.of(expected, None, rounding).difference(found)


@pytest.mark.parametrize("fault", ["a key left out", "a key twice", "a neighbour's value", "bfloat16"])
def test_a_wrong_attention_is_caught_in_spite_of_rounded_weights(
    attention: tuple[Rounding, NDArray[np.float64], NDArray[np.float64]], fault: str
) -> None:
    rounding, scores, values = attention
    expected, wrong_scores, wrong_values = (
        _attended(scores, values, in_tf32, False),
        scores.copy(),
        values.copy(),
    )
    rounds: Callable[[Any], Any] = in_tf32
    if fault == "a key left out":
        wrong_scores[..., 100] = -np.inf
    elif fault == "a key twice":
        wrong_scores[..., 100] += np.log(2)
    elif fault == "a neighbour's value":
        wrong_values[..., 100, :] = wrong_values[..., 99, :]
    else:
        rounds = lambda weights: weights.astype(ml_dtypes.bfloat16).astype(np.float32)  # noqa: E731
    found = _attended(wrong_scores, wrong_values, rounds, True)
    assert Expected.of(expected, None, rounding).difference(found)


CHAINED = """
import tvm, tvm_ffi
name = "tvm_callback_cuda_postproc"
tvm_ffi.register_global_func(name, lambda source, target: f"{source} // for {target.kind.name}")
import compiler.codegen.pipeline
print(tvm_ffi.get_global_func(name)(%r, tvm.target.Target("llvm")))
"""


@pytest.mark.slow
def test_a_function_that_was_there_gets_the_code_as_well() -> None:
    declared = "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 8, half, nvcuda::wmma::row_major> a;"
    command = [sys.executable, "-c", CHAINED % declared]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wanted = declared.replace("nvcuda::wmma", "tensor_cores") + " // for llvm"
    assert done.stdout.strip() == wanted


@pytest.mark.slow
def test_a_model_in_tf32_is_compiled_with_its_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder()
    hidden = builder.op("Relu", builder.op("Gemm", "x", builder.weight(32, 24), builder.weight(24)))
    model = builder.model({"x": [16, 32]}, {builder.op("Softmax", hidden, axis=-1): [16, 24]})
    variants = VariantModel.of(read_onnx(model, {}), GPU.target, tf32=True)
    [task] = (task for task in variants.tasks() if task.variant == "tf32")
    workload = from_json(task.module_json)
    sketch = next(one for one in generate(read_dag(workload), GPU) if one.of_kind(StageKind.TENSOR))
    program = sample(sketch, 64, np.random.default_rng(0)).program(0)
    compiled = []

    def compile_and_keep(source: str, arch: str) -> Any:
        compiled.append(source)
        return compile_cubin(source, arch)

    monkeypatch.setattr(nvcc, "compile_cubin", compile_and_keep)
    schedules = {task.workload_hash: lower(workload, program, GPU)}
    build_module(variants.choose(schedules), schedules, GPU.target, tmp_path / "model.so")
    [source] = compiled
    assert "tensor_cores::fragment<tensor_cores::matrix_a, 16, 16, 8, half" in source
    assert "softmax" in source
