"""TFLite operators are imported as LiteRT computes them, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.importing.formats.tflite_model import read
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported
from tests.tflite_models import Quantization, TfliteBuilder

Array = NDArray[Any]
TARGET = '{"kind":"llvm","num-cores":1}'
RNG = np.random.default_rng(0)
STEP = Quantization(0.05, 3)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def stored(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


@dataclass(frozen=True)
class Case:
    """One operator: its operands, which of them are constants, and the shapes and types of its results."""

    kind: str
    operands: Sequence[Array]
    results: Sequence[tuple[tuple[int, ...], str]]
    options: str = ""
    constants: Sequence[int] = ()
    quantization: Quantization | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def model(self) -> tuple[bytes, list[Array]]:
        builder = TfliteBuilder()
        operands, inputs = [], []
        for number, operand in enumerate(self.operands):
            scale = self.quantization if operand.dtype == np.int8 else None
            if number in self.constants:
                operands.append(builder.constant(operand, scale))
            else:
                operands.append(builder.input(operand.shape, str(operand.dtype), scale))
                inputs.append(operand)
        results = [
            builder.tensor(shape, dtype, quantization=self.quantization if dtype == "int8" else None)
            for shape, dtype in self.results
        ]
        builder.op(self.kind, operands, results, self.options, **self.fields)
        return builder.model(results), inputs

    def check(self) -> None:
        data, inputs = self.model()
        file = read(data, {})
        given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
        found = list(Imported(file.to_relax(), TARGET, TARGET).compute(given).values())
        for wanted, actual in zip(file.compute(given), found, strict=True):
            assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def _transposed(size: int, kernel: int = 3, stride: int = 2, padding: int = 0, **fields: Any) -> Case:
    """A transposed convolution of 4 rows to `size`; padding is SAME (0) or VALID (1)."""
    operands = [ints(1, size, size, 4), random(4, kernel, kernel, 2), random(1, 4, 4, 2)]
    options = {"padding": padding, "strideW": stride, "strideH": stride, **fields}
    return Case(
        "TRANSPOSE_CONV",
        operands,
        [((1, size, size, 4), "float32")],
        "TransposeConvOptions",
        (0, 1),
        None,
        options,
    )


def _one(kind: str, operands: Sequence[Array], shape: tuple[int, ...], *constants: int, **more: Any) -> Case:
    """An operator with one result of floats; attributes follow the name of their class, `options`."""
    options = more.pop("options", "")
    return Case(kind, operands, [(shape, "float32")], options, constants, None, more)


def _moved(
    kind: str, operands: Sequence[Array], shape: tuple[int, ...], *constants: int, **more: Any
) -> Case:
    """An operator that moves stored bytes."""
    return Case(kind, operands, [(shape, "int8")], more.pop("options", ""), constants, STEP, more)


EXTREMES = np.array([-(2**31), -7, -1, 0, 7, 2**31 - 1], np.int32)
IMPORTED: dict[str, Callable[[], Case]] = {
    "softmax of a multiple": lambda: _one(
        "SOFTMAX", [random(2, 5)], (2, 5), options="SoftmaxOptions", beta=2.0
    ),
    "gelu by tanh": lambda: _one("GELU", [random(64)], (64,), options="GeluOptions", approximate=True),
    "gelu": lambda: _one("GELU", [random(64)], (64,), options="GeluOptions"),
    "an axis twice": lambda: _one("SUM", [random(2, 3), ints(1, -1)], (2,), 1, options="ReducerOptions"),
    "mean of integers": lambda: Case(
        "MEAN",
        [np.array([[2**31 - 1, 2**31 - 1], [-7, 0]], np.int32), ints(1)],
        [((2,), "int32")],
        "ReducerOptions",
        (1,),
    ),
    "place as int32": lambda: Case(
        "ARG_MAX", [random(3, 4), ints(-1)], [((3,), "int32")], "ArgMaxOptions", (1,), None, {"outputType": 2}
    ),
    "flattened rows": lambda: _one(
        "FULLY_CONNECTED",
        [random(2, 4, 5), random(3, 5), random(3)],
        (8, 3),
        1,
        2,
        options="FullyConnectedOptions",
    ),
    "rows across axes": lambda: _one(
        "FULLY_CONNECTED",
        [random(2, 4, 5), random(3, 10), random(3)],
        (4, 3),
        1,
        2,
        options="FullyConnectedOptions",
    ),
    "one row": lambda: _one(
        "FULLY_CONNECTED", [random(5), random(3, 5), random(3)], (1, 3), 1, 2, options="FullyConnectedOptions"
    ),
    "repeated matrices": lambda: _one(
        "BATCH_MATMUL", [random(2, 1, 3, 4), random(3, 4, 5)], (2, 3, 3, 5), options="BatchMatMulOptions"
    ),
    "constant matrix": lambda: _one(
        "BATCH_MATMUL",
        [random(2, 3, 4), random(2, 5, 4)],
        (2, 3, 5),
        1,
        options="BatchMatMulOptions",
        adjY=True,
    ),
    "gather in batches": lambda: _one(
        "GATHER",
        [random(2, 3, 4), np.array([[0, 2], [1, 1]], np.int32)],
        (2, 2, 4),
        options="GatherOptions",
        axis=1,
        batchDims=1,
    ),
    "gather behind batches": lambda: _one(
        "GATHER",
        [random(2, 3, 4), np.array([[0, 3], [1, 1]], np.int32)],
        (2, 3, 2),
        options="GatherOptions",
        axis=2,
        batchDims=1,
    ),
    "gather by vectors": lambda: _one(
        "GATHER_ND", [random(3, 4, 2), np.array([[0, 3], [2, 1]], np.int32)], (2, 2)
    ),
    "gather by short vectors": lambda: _one(
        "GATHER_ND", [random(3, 4, 2), np.array([[[0], [2]]], np.int32)], (1, 2, 4, 2)
    ),
    "split with the rest": lambda: Case(
        "SPLIT_V",
        [random(2, 6), ints(1, -1, 2), np.array(1, np.int32)],
        [((2, 1), "float32"), ((2, 3), "float32"), ((2, 2), "float32")],
        "SplitVOptions",
        (1, 2),
        None,
        {"numSplits": 3},
    ),
    "symmetric padding": lambda: _one(
        "MIRROR_PAD",
        [random(4, 5), np.array([[1, 2], [2, 1]], np.int32)],
        (7, 8),
        1,
        options="MirrorPadOptions",
        mode=1,
    ),
    "reflected padding": lambda: _one(
        "MIRROR_PAD",
        [random(4, 5), np.array([[1, 2], [2, 1]], np.int32)],
        (7, 8),
        1,
        options="MirrorPadOptions",
        mode=0,
    ),
    "all axes of one": lambda: _one("SQUEEZE", [random(1, 3, 1)], (3,), options="SqueezeOptions"),
    "an axis more": lambda: _one("EXPAND_DIMS", [random(2, 3), np.array(-1, np.int32)], (2, 3, 1), 1),
    "space to batches": lambda: _one(
        "SPACE_TO_BATCH_ND",
        [random(1, 4, 6, 2), ints(2, 2), np.array([[0, 0], [2, 0]], np.int32)],
        (4, 2, 4, 2),
        1,
        2,
    ),
    "batches to space": lambda: _one(
        "BATCH_TO_SPACE_ND",
        [random(4, 2, 4, 2), ints(2, 2), np.array([[0, 1], [2, 0]], np.int32)],
        (1, 3, 6, 2),
        1,
        2,
    ),
    "nearest with aligned corners": lambda: _one(
        "RESIZE_NEAREST_NEIGHBOR",
        [random(1, 4, 5, 2), ints(7, 9)],
        (1, 7, 9, 2),
        1,
        options="ResizeNearestNeighborOptions",
        alignCorners=True,
    ),
    "sums from the end": lambda: _one(
        "CUMSUM",
        [random(2, 5), np.array(1, np.int32)],
        (2, 5),
        1,
        options="CumsumOptions",
        reverse=True,
        exclusive=True,
    ),
    "squares of integers": lambda: Case(
        "SQUARED_DIFFERENCE", [EXTREMES, EXTREMES[::-1].copy()], [((6,), "int32")]
    ),
    "long shifts": lambda: Case("RIGHT_SHIFT", [ints(-8, 8, 1, -1), ints(1, 33, 31, 40)], [((4,), "int32")]),
    "quotients of integers": lambda: Case(
        "DIV", [EXTREMES, ints(3, -2, 1, 5, -1, 7)], [((6,), "int32")], "DivOptions"
    ),
    "transposed convolution": lambda: _transposed(8),
    "transposed convolution, odd": lambda: _transposed(7),
    "transposed convolution, whole": lambda: _transposed(9, padding=1),
    "transposed convolution, longer": lambda: _transposed(10, padding=1),
    "transposed convolution with gaps": lambda: _transposed(12, kernel=2, stride=3),
    "transposed convolution, even": lambda: _transposed(8, kernel=4, fusedActivationFunction=1),
    "bytes: padding": lambda: _moved("PAD", [stored(2, 3), np.array([[1, 0], [0, 2]], np.int32)], (3, 5), 1),
    "bytes: transpose": lambda: _moved(
        "TRANSPOSE", [stored(2, 3), ints(1, 0)], (3, 2), 1, options="TransposeOptions"
    ),
    "bytes: gather": lambda: _moved("GATHER", [stored(4, 3), ints(0, 3)], (2, 3), options="GatherOptions"),
    "bytes: slice": lambda: _moved("SLICE", [stored(4, 5), ints(1, 2), ints(2, -1)], (2, 3), 1, 2),
    "bytes: split": lambda: Case(
        "SPLIT",
        [np.array(1, np.int32), stored(2, 6)],
        [((2, 3), "int8")] * 2,
        "SplitOptions",
        (0,),
        STEP,
        {"numSplits": 2},
    ),
    "bytes: place": lambda: Case(
        "ARG_MAX", [stored(2, 8), ints(1)], [((2,), "int32")], "ArgMaxOptions", (1,), STEP, {"outputType": 2}
    ),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_operator_computes_what_litert_does(name: str) -> None:
    IMPORTED[name]().check()


def test_integers_are_divided_by_zero_without_a_crash() -> None:
    """LiteRT refuses to; a library must not end its process."""
    case = Case("DIV", [ints(7, -(2**31), -7), ints(0, -1, 2)], [((3,), "int32")], "DivOptions")
    data, inputs = case.model()
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    assert found[2] == -3


def test_places_outside_read_no_foreign_memory() -> None:
    case = _one("GATHER", [random(5, 4), ints(0, 7, -1)], (3, 4), options="GatherOptions")
    data, inputs = case.model()
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    np.testing.assert_array_equal(found, inputs[0][[0, 4, 0]])


REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "ignored activation": (
        lambda: _one("ADD", [random(3), random(3)], (3,), options="AddOptions", fusedActivationFunction=4),
        "operator ADD that computes 't2' can't be imported: LiteRT ignores the fused activation TANH",
    ),
    "ignored activation of parts": (
        lambda: _one(
            "CONCATENATION",
            [random(2), random(2)],
            (4,),
            options="ConcatenationOptions",
            fusedActivationFunction=1,
        ),
        "operator CONCATENATION .* LiteRT ignores its fused activation",
    ),
    "data where a constant is needed": (
        lambda: _one("SLICE", [random(4, 5), ints(1, 2), ints(2, 2)], (2, 2), 2),
        "operator SLICE .* its operand 't1' must be a constant",
    ),
    "power of integers": (
        lambda: Case("POW", [ints(2, 3), ints(3, 2)], [((2,), "int32")]),
        "operator POW .* powers of integers aren't supported",
    ),
    "places counted from the beginning": (
        lambda: _one(
            "STRIDED_SLICE",
            [random(5, 6), ints(1, 2), ints(3, 2), ints(1, 1)],
            (3, 2),
            1,
            2,
            3,
            options="StridedSliceOptions",
            offset=True,
        ),
        "its attribute offset isn't supported",
    ),
    "corners of one row": (
        lambda: _one(
            "RESIZE_BILINEAR",
            [random(1, 4, 5, 2), ints(1, 1)],
            (1, 1, 1, 2),
            1,
            options="ResizeBilinearOptions",
            alignCorners=True,
        ),
        "corners of one row or column can't be aligned",
    ),
    "another shape than declared": (
        lambda: _one("TANH", [random(2, 3)], (7,)),
        r"operator TANH .* it would compute the shape \(2, 3\) instead of \(7,\)",
    ),
    "another type than declared": (
        lambda: Case("TANH", [random(2, 3)], [((2, 3), "int32")]),
        "operator TANH .* it would compute float32 instead of int32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_by_name(name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        read(case().model()[0], {}).to_relax()


def test_bytes_of_two_scales_are_not_handed_on() -> None:
    builder = TfliteBuilder()
    data = builder.input((2, 3), "int8", STEP)
    order = builder.constant(ints(1, 0))
    result = builder.tensor((3, 2), "int8", quantization=Quantization(0.1, 3))
    builder.op("TRANSPOSE", [data, order], [result], "TransposeOptions")
    with pytest.raises(ModelError, match=r"operator TRANSPOSE .* are quantized in different ways"):
        read(builder.model([result]), {}).to_relax()
