"""Transposed convolutions as sub-pixel convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.model import read_onnx
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from tests.onnx_models import Builder

TARGET = detect_device(1).target


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Attributes of a ConvTranspose, with `data` and `weight` as shapes."""
    pairs = {
        name: [draw(st.integers(low, high)) for _ in range(2)]
        for name, low, high in (("strides", 1, 4), ("kernel", 1, 5), ("pixels", 1, 5), ("begin", 0, 2))
    }
    end = [draw(st.integers(0, 2)) for _ in range(2)]
    extra = [draw(st.integers(0, stride - 1)) for stride in pairs["strides"]]
    groups, inputs, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    # The result has at least a pixel in each direction.
    pixels = [
        max(p, -(-(b + e + 1 - k - x) // s) + 1)
        for p, k, s, b, e, x in zip(
            pairs["pixels"], pairs["kernel"], pairs["strides"], pairs["begin"], end, extra, strict=True
        )
    ]
    return {
        "data": (draw(st.integers(1, 2)), groups * inputs, *pixels),
        "weight": (groups * inputs, outputs, *pairs["kernel"]),
        "strides": pairs["strides"],
        "pads": [*pairs["begin"], *end],
        "output_padding": extra,
        "group": groups,
    }


def _model(case: dict[str, Any]) -> tuple[bytes, NDArray[np.float32]]:
    """A transposed convolution with a shift and a rectifier, and its weights."""
    builder = Builder()
    attributes = {name: value for name, value in case.items() if name not in ("data", "weight")}
    weight = builder.rng.uniform(-1, 1, case["weight"]).astype(np.float32)
    y = builder.op("ConvTranspose", "x", builder.constant(weight), **attributes)
    return builder.model({"x": case["data"]}, {builder.op("Relu", y): None}), weight


def _expected(case: dict[str, Any], data: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """Sum the contributions of each input pixel to the output, by the operator's definition."""
    groups, (sh, sw), (top, left, bottom, right) = case["group"], case["strides"], case["pads"]
    (n, channels, height, width), (_, outputs, kh, kw) = data.shape, weight.shape
    (eh, ew), inputs = case["output_padding"], channels // groups
    full = np.zeros((n, groups * outputs, (height - 1) * sh + kh + eh, (width - 1) * sw + kw + ew))
    for g, h, w in np.ndindex(groups, height, width):
        pixel = data[:, g * inputs : (g + 1) * inputs, h, w].astype(np.float64)
        given = np.einsum("nc,coij->noij", pixel, weight[g * inputs : (g + 1) * inputs])
        full[:, g * outputs : (g + 1) * outputs, h * sh : h * sh + kh, w * sw : w * sw + kw] += given
    result: NDArray[Any] = full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right]
    return np.maximum(result, 0.0)


@pytest.mark.slow
@settings(max_examples=20)
@given(cases())
def test_phases_agree_with_the_transposed_convolution(case: dict[str, Any]) -> None:
    model, weight = _model(case)
    variants = VariantModel.of(read_onnx(model, {}), TARGET)
    [task] = (task for task in variants.tasks() if task.variant)
    assert (task.variant, task.exact) == ("subpixel", True)
    assert read_dag(from_json(task.module_json)).flops > 0, "the search has a form for it"
    chosen = variants.choose([task.workload_hash])
    machine = relax.VirtualMachine(relax.build(chosen, tvm.target.Target("llvm")), tvm.cpu())
    data = np.random.default_rng(0).uniform(-1, 1, case["data"]).astype(np.float32)
    found = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_allclose(found, _expected(case, data, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "weights"),
    [
        pytest.param({"data": (1, 8, 4, 4), "strides": [2, 2]}, (2, 2, 2, 2, 8, 8), id="phases"),
        pytest.param({"data": (1, 8, 1, 1), "strides": [1, 1]}, (4, 4, 1, 1, 8, 8), id="a single pixel"),
        pytest.param({"data": (1, 8, 4, 4), "strides": [1, 1]}, (1, 1, 4, 4, 8, 8), id="no zeros between"),
    ],
)
def test_each_phase_has_its_own_weights(case: dict[str, Any], weights: tuple[int, ...]) -> None:
    model, _ = _model(
        case | {"weight": (8, 8, 4, 4), "pads": [0, 0, 0, 0], "output_padding": [0, 0], "group": 1}
    )
    [task] = (task for task in VariantModel.of(read_onnx(model, {}), TARGET).tasks() if task.variant)
    assert f" {'x'.join(map(str, weights))} -> " in task.name


@pytest.mark.parametrize(
    ("weight", "strides", "pads", "extra"),
    [
        pytest.param((16, 16, 4, 4), [2, 2], [1, 1, 1, 1], [0, 0], id="four taps"),
        pytest.param((16, 17, 3, 3), [2, 2], [1, 0, 0, 1], [1, 0], id="three taps"),
        pytest.param((18, 16, 4, 5), [2, 3], [2, 1, 0, 0], [0, 1], id="unequal strides"),
    ],
)
def test_winograd_filters_agree_with_the_transposed_convolution(
    weight: tuple[int, ...], strides: list[int], pads: list[int], extra: list[int]
) -> None:
    case: dict[str, Any] = {"data": (2, weight[0], 8, 9), "weight": weight, "group": 1}
    case |= {"strides": strides, "pads": pads, "output_padding": extra}
    model, values = _model(case)
    variants = VariantModel.of(read_onnx(model, {}), TARGET)
    [task] = (task for task in variants.tasks() if task.variant == "subpixel_winograd")
    assert not task.exact
    assert read_dag(from_json(task.module_json)).flops > 0, "the search has a form for it"
    machine = relax.VirtualMachine(
        relax.build(variants.choose([task.workload_hash]), tvm.target.Target("llvm")), tvm.cpu()
    )
    data = np.random.default_rng(0).uniform(-1, 1, case["data"]).astype(np.float32)
    found, expected = machine["main"](tvm.runtime.tensor(data)).numpy(), _expected(case, data, values)
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"weight": (16, 16, 6, 6)}, id="nine taps of a phase"),
        pytest.param({"data": (1, 16, 6, 8)}, id="few windows"),
        pytest.param({"weight": (16, 8, 4, 4)}, id="few outputs"),
        pytest.param({"weight": (32, 16, 4, 4), "data": (1, 32, 8, 8), "group": 2}, id="groups"),
    ],
)
def test_other_phases_are_not_filtered_by_winograd(case: dict[str, Any]) -> None:
    usual = {"data": (1, 16, 8, 8), "weight": (16, 16, 4, 4), "pads": [1, 1, 1, 1], "group": 1}
    model, _ = _model(usual | {"strides": [2, 2], "output_padding": [0, 0]} | case)
    tasks = VariantModel.of(read_onnx(model, {}), TARGET).tasks()
    assert [task.variant for task in tasks if task.variant] == ["subpixel"]


def test_dilated_kernels_are_left_alone() -> None:
    builder = Builder()
    y = builder.op("ConvTranspose", "x", builder.weight(4, 4, 3, 3), dilations=[2, 2])
    model = read_onnx(builder.model({"x": (1, 4, 5, 5)}, {y: None}), {})
    assert all(not task.variant for task in VariantModel.of(model, TARGET).tasks())
