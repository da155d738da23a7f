"""A model's variants: other kernels for the same computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax, te

from compiler.importing.model import RelaxModel, extract_tasks, read_onnx
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants import integer_winograd
from compiler.variants.choice import VariantModel
from compiler.variants.winograd import convolution, matrices, transform_weights
from compiler.workload import from_json
from examples import make_models
from tests.onnx_models import Builder

TARGET = detect_device(1).target


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> RelaxModel:
    file = tmp_path_factory.mktemp("models") / "resnet.onnx"
    make_models.main(["resnet18", "--tiny", "--size", "224", "--out", str(file)])
    return read_onnx(file.read_bytes(), {})


@pytest.fixture(scope="module")
def variants(resnet: RelaxModel) -> VariantModel:
    return VariantModel.of(resnet, TARGET)


def _run(module: tvm.IRModule, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    found: NDArray[Any] = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    return found


def _correlation(data: NDArray[Any], weight: NDArray[Any], padding: Sequence[int]) -> NDArray[Any]:
    """A convolution of stride 1 in double precision, by its definition."""
    axes = len(padding) // 2
    around = zip(padding[:axes], padding[axes:], strict=True)
    padded = np.pad(data.astype(np.float64), ((0, 0), *around, (0, 0)))
    image = tuple(range(1, axes + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[:axes], axis=image)
    return np.tensordot(windows, weight, axes=([*range(axes + 2, 2 * axes + 2), axes + 1], range(axes + 1)))


@pytest.mark.parametrize(("tile", "allowed"), [(2, 2e-6), (4, 2e-5)])
@pytest.mark.parametrize(
    ("shape", "kernel", "outputs", "padding"),
    [
        ((1, 8, 8, 16), (3, 3), 16, (1, 1, 1, 1)),
        ((2, 9, 11, 5), (3, 3), 3, (0, 2, 1, 0)),
        ((1, 12, 7, 3), (3, 3), 8, (0, 0, 0, 0)),
        ((2, 3, 8, 9, 5), (3, 3, 3), 4, (1, 1, 1, 0, 1, 2)),
        ((1, 2, 7, 8, 3), (1, 3, 3), 4, (0, 1, 1, 0, 1, 1)),
    ],
)
def test_winograd_tiles_agree_with_the_convolution(
    tile: int,
    allowed: float,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    outputs: int,
    padding: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal(shape).astype(np.float32)
    weight = rng.standard_normal((*kernel, shape[-1], outputs)).astype(np.float32)
    transformed = transform_weights(weight, matrices(tile)[2])
    x, w = te.placeholder(shape, name="x"), te.placeholder(transformed.shape, name="w")
    function = te.create_prim_func([x, w, convolution(x, w, padding, tile)])
    compiled = tvm.compile(function, tvm.target.Target("llvm"))
    expected = _correlation(data, weight, padding)
    found = tvm.runtime.empty(expected.shape, "float32")
    compiled["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(transformed), found)
    assert np.abs(found.numpy() - expected).max() <= allowed * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("shape", "outputs", "padding"),
    [((1, 8, 8, 16), 16, (1, 1, 1, 1)), ((2, 9, 11, 5), 3, (0, 2, 1, 0))],
)
def test_winograds_transforms_of_bytes_are_exact(
    dtype: str, shape: tuple[int, ...], outputs: int, padding: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    # A half of all values are the least and the greatest.
    data = rng.choice([*range(limits.min, limits.max + 1), *[limits.min, limits.max] * 128], shape)
    weight = rng.choice([*range(-128, 128), *[-128, 127] * 128], (3, 3, shape[-1], outputs))
    transformed = integer_winograd.transform_weights(weight, integer_winograd.LARGEST[dtype])
    assert transformed is not None
    x, w = te.placeholder(shape, dtype, "x"), te.placeholder(transformed.shape, "int16", "w")
    result = convolution(x, w, padding, integer_winograd.TILE, integer_winograd.INTEGERS)
    compiled = tvm.compile(te.create_prim_func([x, w, result]), tvm.target.Target("llvm"))
    expected = _correlation(data, weight, padding)
    found = tvm.runtime.empty(expected.shape, "int32")
    compiled["main"](tvm.runtime.tensor(data.astype(dtype)), tvm.runtime.tensor(transformed), found)
    assert np.array_equal(found.numpy(), expected)


def test_weights_whose_sums_may_exceed_32_bits_are_not_transformed() -> None:
    """In each direction, the transform makes four weights of three equal ones: 2, 1, 3 and 2 times as large.
    Inputs become up to twice as large. An output adds the first three or the last three products, so it
    grows 2 * (1 + 3 + 2) times, and 144 times in both directions.
    """
    channels = 2**31 // (36 * 127 * 4 * 255)
    for more, is_transformed in ((0, True), (1, False)):
        weight = np.full((3, 3, channels + more, 1), 127, np.int8)
        assert (integer_winograd.transform_weights(weight, 255) is not None) == is_transformed


@pytest.mark.parametrize(
    ("kernel", "strides", "offered"),
    [((3, 3, 3), (1, 1, 1), True), ((1, 3, 3), (1, 1, 1), True), ((3, 3, 3), (2, 1, 1), False)],
)
def test_convolutions_of_three_dimensions_have_a_variant(
    kernel: tuple[int, ...], strides: tuple[int, ...], offered: bool
) -> None:
    builder = Builder()
    weight = builder.constant(builder.rng.uniform(-1, 1, (16, 16, *kernel)).astype(np.float32))
    pads = [extent // 2 for extent in kernel]
    y = builder.op("Conv", "x", weight, kernel_shape=kernel, strides=strides, pads=[*pads, *pads])
    model = builder.model({"x": (1, 16, 4, 9, 10)}, {builder.op("Relu", y): None})
    variants = VariantModel.of(read_onnx(model, {}), TARGET)
    others = [task for task in variants.tasks() if task.variant]
    assert [task.name.split()[0] for task in others] == ["winograd_2_conv3d_relu"] * offered
    for task in others:
        read_dag(from_json(task.module_json))  # the search has a form for it
        inputs = [builder.rng.standard_normal((1, 16, 4, 9, 10)).astype(np.float32)]
        chosen = variants.choose([task.workload_hash])
        np.testing.assert_allclose(_run(chosen, inputs), _run(variants.fused, inputs), atol=1e-4)


def test_variants_are_tasks_with_the_weight_and_name_of_their_original(
    variants: VariantModel,
) -> None:
    tasks = variants.tasks()
    own = {task.workload_hash: task for task in tasks if not task.variant}
    others = [task for task in tasks if task.variant.startswith("winograd")]
    assert {task.variant for task in others} == {"winograd_2", "winograd_4"}
    for task in others:
        replaced = own[task.variant_of]
        assert task.weight == replaced.weight
        assert task.name == replaced.name.replace("conv2d", f"{task.variant}_conv2d").replace(
            "3x3x", "4x4x" if task.variant == "winograd_2" else "6x6x"
        )
        assert read_dag(from_json(task.module_json)).flops > 0, "the search has a form for it"


def test_only_large_convolutions_of_stride_1_become_winograd(
    variants: VariantModel,
) -> None:
    own = {task.workload_hash: task.name for task in variants.tasks() if not task.variant}
    replaced = {
        own[task.variant_of]: task.variant for task in variants.tasks() if task.variant.startswith("winograd")
    }
    for name in own.values():
        operator, data, weight, _, result = name.split(maxsplit=4) if name.startswith("conv2d") else [""] * 5
        pixels = int(result.split("x")[1]) if result else 0
        is_candidate = weight.startswith("3x3x") and min(map(int, weight.split("x")[2:])) >= 16
        if is_candidate and data.split("x")[1] == str(pixels) and pixels >= 8:
            assert replaced[name] == ("winograd_4" if pixels >= 24 else "winograd_2"), operator
        else:
            assert name not in replaced


@pytest.mark.slow
def test_the_model_with_some_kernels_chosen_computes_the_same(
    resnet: RelaxModel, variants: VariantModel
) -> None:
    others = [task for task in variants.tasks() if task.variant]
    by_variant = {task.variant: task for task in others}
    first = by_variant["winograd_2"]
    chosen = {first.workload_hash, next(t.workload_hash for t in others if t.variant_of != first.variant_of)}
    model = variants.choose(chosen)
    names = {task.name for task in extract_tasks(model)}
    assert {task.name for task in others if task.workload_hash in chosen} <= names
    assert len(extract_tasks(model)) == len(extract_tasks(variants.fused))
    image = resnet.inputs[0]
    inputs = [np.random.default_rng(0).standard_normal(image.shape).astype(image.dtype)]
    np.testing.assert_allclose(_run(model, inputs), _run(variants.fused, inputs), rtol=1e-3, atol=1e-5)


def test_without_a_chosen_variant_the_model_is_unchanged(variants: VariantModel) -> None:
    assert variants.choose([]) is variants.fused
    assert variants.choose(["no such workload"]) is variants.fused
