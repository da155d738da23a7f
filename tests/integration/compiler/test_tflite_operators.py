"""Imported TFLite operators agree with LiteRT, or are rejected by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.importing.formats.tflite_model import read
from compiler.importing.model import extract_tasks, fuse
from compiler.importing.spec import ModelError, NoReference
from compiler.verifying.edges import EDGES
from compiler.verifying.imported import Imported, verify_file
from compiler.verifying.inputs import ORDINARY_SETS
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
        results, inputs = self.add(builder)
        return builder.model(results), inputs

    def add(self, builder: TfliteBuilder) -> tuple[list[int], list[Array]]:
        """Add the operator to a model; return the positions of its results, and its inputs."""
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
        return results, inputs

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


TABLE = np.array([[5, -3], [2, 7], [1, 1]], np.int32)
# Compiled as one model. LiteRT computes bytes in integers: they may be off by one.
TOGETHER: dict[str, Callable[[], Case]] = {
    "elu near zero": lambda: _one("ELU", [np.array([1e-8, -1e-8, -20, 3], np.float32)], (4,)),
    "short vectors": lambda: _one("L2_NORMALIZATION", [random(2, 4) * 1e-7], (2, 4), options="L2NormOptions"),
    "remainders": lambda: _one(
        "FLOOR_MOD",
        [np.array([7, -7, 7, 1, -1], np.float32), np.array([2, 2, -2, np.inf, 3], np.float32)],
        (5,),
    ),
    "fake quantization": lambda: _one(
        "FAKE_QUANT", [random(20)], (20,), options="FakeQuantOptions", min=-1.0, max=1.0, numBits=8
    ),
    "squares of floats": lambda: _one("SQUARE", [random(5)], (5,)),
    "scattered rows": lambda: _one(
        "SCATTER_ND", [ints(1, 1, 3).reshape(3, 1), random(3, 2), ints(4, 2)], (4, 2), 2
    ),
    "scattered elements": lambda: _one(
        "SCATTER_ND", [ints(0, 1, 2, 0).reshape(2, 2), random(2), ints(3, 2)], (3, 2), 2
    ),
    "diagonals": lambda: _one("MATRIX_DIAG", [random(2, 3)], (2, 3, 3), options="MatrixDiagOptions"),
    "another diagonal": lambda: _one(
        "MATRIX_SET_DIAG", [random(2, 4, 3), random(2, 3)], (2, 4, 3), options="MatrixSetDiagOptions"
    ),
    "sparse": lambda: _one(
        "SPARSE_TO_DENSE",
        [ints(0, 1, 1, 0).reshape(2, 2), ints(2, 3), random(2), np.array(-1, np.float32)],
        (2, 3),
        *(0, 1, 3),
        options="SparseToDenseOptions",
    ),
    "places of booleans": lambda: Case(
        "ARG_MAX",
        [np.array([[0, 1, 1]], bool), ints(1)],
        [((1,), "int32")],
        "ArgMaxOptions",
        (1,),
        None,
        {"outputType": 2},
    ),
    "rows of a table": lambda: _one("EMBEDDING_LOOKUP", [ints(1, 0), random(3, 4)], (2, 4), 1),
    "selected rows": lambda: _one(
        "SELECT", [np.array([1, 0], bool), random(2, 3), random(2, 3)], (2, 3), options="SelectOptions"
    ),
    "two axes reversed": lambda: _one("REVERSE_V2", [random(2, 3, 4), ints(1, 2)], (2, 3, 4), 1),
    "largest of a matrix": lambda: Case(
        "TOPK_V2",
        [random(2, 3, 5), ints(2)],
        [((2, 3, 2), "float32"), ((2, 3, 2), "int32")],
        "TopKV2Options",
        (1,),
    ),
    "sum of three": lambda: _one("ADD_N", [random(3), random(3), random(3)], (3,)),
    "segments": lambda: _one(
        "UNSORTED_SEGMENT_MAX",
        [random(4, 2), ints(2, 0, -1, 0), np.array(3, np.int32)],
        (3, 2),
        *(1, 2),
        options="UnsortedSegmentMaxOptions",
    ),
    "three axes transposed": lambda: _one(
        "CONV_3D_TRANSPOSE",
        [ints(1, 4, 6, 6, 3), random(2, 3, 3, 3, 2), random(1, 2, 3, 3, 2)],
        (1, 4, 6, 6, 3),
        *(0, 1),
        options="Conv3DOptions",
        padding=0,
        strideD=2,
        strideW=2,
        strideH=2,
    ),
    "bytes: means": lambda: _moved(
        "AVERAGE_POOL_2D",
        [stored(1, 7, 6, 3)],
        (1, 4, 3, 3),
        options="Pool2DOptions",
        padding=0,
        strideW=2,
        strideH=2,
        filterWidth=3,
        filterHeight=3,
    ),
    "bytes: slopes": lambda: _moved("PRELU", [stored(1, 2, 3, 4), stored(1, 1, 4)], (1, 2, 3, 4), 1),
    "bytes: gelu": lambda: _moved("GELU", [stored(32)], (32,), options="GeluOptions"),
    "bytes: elu": lambda: _moved("ELU", [stored(32)], (32,)),
    "bytes: padding with a number": lambda: _moved(
        "PADV2", [stored(2, 3), ints(1, 0, 0, 2).reshape(2, 2), np.array(9, np.int8)], (3, 5), 1, 2
    ),
}


def test_operators_in_one_model_agree_with_litert() -> None:
    builder = TfliteBuilder()
    names, results, inputs = [], [], []
    for name, made in TOGETHER.items():
        written, given = made().add(builder)
        names += [name] * len(written)
        results += written
        inputs += given
    found, wanted = computed(builder.model(results), inputs)
    for name, right, own in zip(names, wanted, found, strict=True):
        assert (own.dtype, own.shape) == (right.dtype, right.shape), name
        off = 1 if right.dtype == np.int8 else 1e-7
        np.testing.assert_allclose(own.astype(np.float64), right, rtol=1e-4, atol=off, err_msg=name)
    means = names.index("bytes: means")
    np.testing.assert_array_equal(found[means], wanted[means])


def test_tables_of_bytes_are_litert_s() -> None:
    """All bytes and all integers of 16 bits. LiteRT truncates roots, rounds halves away from zero,
    and returns the least number for logarithms of negative ones."""
    builder = TfliteBuilder()
    bytes_, words = np.arange(-128, 128).astype(np.int8), np.arange(-(2**15), 2**15).astype(np.int16)
    cases: list[tuple[str, Array, Quantization, Quantization]] = [
        *((kind, bytes_, Quantization(0.05, -128), Quantization(0.02, -128)) for kind in ("SQRT", "ELU")),
        *((kind, bytes_, Quantization(0.03, 3), Quantization(0.05, -7)) for kind in ("LOG", "EXP")),
        ("RSQRT", bytes_, Quantization(0.11, -128), Quantization(1 / 128)),
        *((kind, words, Quantization(2**-8), Quantization(2**-12)) for kind in ("LOG", "EXP")),
        ("GELU", words, Quantization(2**-12), Quantization(2**-15)),
        *((kind, bytes_, Quantization(0.1), Quantization(0.1)) for kind in ("RIGHT_SHIFT", "BITWISE_XOR")),
    ]
    results, inputs = [], []
    for kind, x, given, wanted in cases:
        operands = [builder.input(x.shape, str(x.dtype), given)]
        inputs.append(x)
        if kind in ("RIGHT_SHIFT", "BITWISE_XOR"):
            operands.append(builder.constant(np.abs(x // 16), given))
        results.append(builder.tensor(x.shape, str(x.dtype), quantization=wanted))
        builder.op(kind, operands, results[-1:], "GeluOptions" if kind == "GELU" else "")
    for (kind, *_), own, right in zip(cases, *computed(builder.model(results), inputs), strict=True):
        np.testing.assert_array_equal(own, right, err_msg=kind)


def computed(data: bytes, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return the outputs of a model, and what LiteRT computes."""
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    return list(Imported(file.to_relax(), TARGET, TARGET).compute(given).values()), file.compute(given)


def test_operators_on_constants_alone_agree_with_litert() -> None:
    """TVM's front end looks for inputs of that name. What they compute may be a shape."""
    builder = TfliteBuilder()
    x, table = builder.input((2, 6)), builder.constant(TABLE)
    columns = [builder.tensor((3,), "int32") for _ in range(2)]
    builder.op("UNPACK", [table], columns, "UnpackOptions", num=2, axis=1)
    negative, one = builder.tensor((3,), "int32"), builder.tensor((3,), "float32")
    builder.op("NEG", [columns[1]], [negative])
    builder.op("CAST", [negative], [one], "CastOptions", inDataType=2, outDataType=0)
    whole, first, shape = (
        builder.tensor((2,), "int32"),
        builder.tensor((), "int32"),
        builder.tensor((2,), "int32"),
    )
    builder.op("SHAPE", [x], [whole], "ShapeOptions", outType=2)
    zero, end, step = (builder.constant(ints(number)) for number in (0, 1, 1))
    builder.op("STRIDED_SLICE", [whole, zero, end, step], [first], "StridedSliceOptions", shrinkAxisMask=1)
    four = builder.constant(np.array(6, np.int32))
    builder.op("PACK", [four, first], [shape], "PackOptions", valuesCount=2, axis=0)
    reshaped = builder.tensor((6, 2))
    builder.op("RESHAPE", [x, shape], [reshaped], "ReshapeOptions")
    found, wanted = computed(builder.model([reshaped, one]), [random(2, 6)])
    for own, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(own, right)


def test_byte_weights_multiply_float_data() -> None:
    """LiteRT also rounds the data to bytes, which the import doesn't."""
    builder = TfliteBuilder()
    x, image = builder.input((2, 20)), builder.input((1, 6, 6, 3))
    dense = builder.constant(stored(4, 20), Quantization([0.01, 0.02, 0.03, 0.04], [0] * 4))
    kernel = builder.constant(stored(4, 3, 3, 3), Quantization([0.01, 0.02, 0.03, 0.005], [0] * 4))
    biases = [builder.constant(random(4)) for _ in range(2)]
    results = [builder.tensor((2, 4)), builder.tensor((1, 6, 6, 4))]
    builder.op("FULLY_CONNECTED", [x, dense, biases[0]], [results[0]], "FullyConnectedOptions")
    builder.op(
        "CONV_2D",
        [image, kernel, biases[1]],
        [results[1]],
        "Conv2DOptions",
        padding=0,
        strideW=1,
        strideH=1,
        dilationWFactor=1,
        dilationHFactor=1,
    )
    found, wanted = computed(builder.model(results), [random(2, 20), random(1, 6, 6, 3)])
    for own, right in zip(found, wanted, strict=True):
        assert np.abs(own - right).max() < 0.02 * np.abs(right).max()


def test_convolutions_of_int16_agree_with_litert() -> None:
    builder = TfliteBuilder()
    data = RNG.integers(-30000, 30000, (1, 5, 5, 3)).astype(np.int16)
    x = builder.input(data.shape, "int16", Quantization(1e-4))
    kernel = builder.constant(stored(4, 3, 3, 3), Quantization([0.01, 0.02, 0.03, 0.005], [0] * 4))
    bias = builder.constant(
        RNG.integers(-50000, 50000, 4).astype(np.int64), Quantization([1e-6, 2e-6, 3e-6, 5e-7], [0] * 4)
    )
    result = builder.tensor((1, 5, 5, 4), "int16", quantization=Quantization(5e-4))
    stride = {"padding": 0, "strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    builder.op("CONV_2D", [x, kernel, bias], [result], "Conv2DOptions", **stride)
    (found,), (wanted,) = computed(builder.model([result]), [data])
    assert np.abs(found.astype(int) - wanted).max() <= 1


UNITS, WIDTH, STEPS = 5, 4, 3


def _lstm(builder: TfliteBuilder, x: int, sequence: bool, *parts: str) -> int:
    """Add an LSTM with some of the parts "gate", "peephole", "projection" and "norm"; return its result."""
    out = 2 if "projection" in parts else UNITS

    def part(needed: bool, *shape: int) -> int:
        return builder.constant(random(*shape) / 2) if needed else -1

    gate, peephole, norm = (name in parts for name in ("gate", "peephole", "norm"))
    projects = "projection" in parts
    operands = [
        *(x, part(gate, UNITS, WIDTH), *(part(True, UNITS, WIDTH) for _ in range(3))),
        *(part(gate, UNITS, out), *(part(True, UNITS, out) for _ in range(3))),
        *(part(gate and peephole, UNITS), part(peephole, UNITS), part(peephole, UNITS)),
        *(part(gate, UNITS), *(part(True, UNITS) for _ in range(3))),
        *(part(projects, 2, UNITS), part(projects, 2)),
        *(builder.variable((2, out)), builder.variable((2, UNITS))),
        *(part(gate and norm, UNITS), *(part(norm, UNITS) for _ in range(3))),
    ]
    result = builder.tensor((2, STEPS, out) if sequence else (2, out))
    kind = "UnidirectionalSequenceLSTMOptions" if sequence else "LSTMOptions"
    limits = {"cellClip": 0.5, "projClip": 0.3} if projects else {}
    operator = "UNIDIRECTIONAL_SEQUENCE_LSTM" if sequence else "LSTM"
    builder.op(operator, operands, [result], kind, fusedActivationFunction=4, **limits)
    return result


def test_recurrent_operators_agree_with_litert() -> None:
    builder = TfliteBuilder()
    x, one = builder.input((2, STEPS, WIDTH)), builder.input((2, WIDTH))
    results = {
        "lstm": _lstm(builder, x, True, "gate"),
        "coupled lstm": _lstm(builder, x, True),
        "lstm with everything": _lstm(builder, x, True, "gate", "peephole", "projection", "norm"),
        "one step": _lstm(builder, one, False, "gate", "peephole"),
    }

    def weights(*shapes: tuple[int, ...]) -> list[int]:
        return [builder.constant(random(*shape)) for shape in shapes]

    cell = [*weights((UNITS, WIDTH), (UNITS, UNITS), (UNITS,)), builder.variable((2, UNITS))]
    results["rnn"] = builder.tensor((2, STEPS, UNITS))
    builder.op(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        [x, *cell],
        [results["rnn"]],
        "SequenceRNNOptions",
        fusedActivationFunction=4,
    )
    results["rnn both ways"] = builder.tensor((2, STEPS, 2 * UNITS))
    builder.op(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        [x, *cell[:3], builder.variable((2, UNITS)), *cell[:3], builder.variable((2, UNITS)), -1, -1, -1],
        [results["rnn both ways"]],
        "BidirectionalSequenceRNNOptions",
        fusedActivationFunction=1,
        mergeOutputs=True,
    )
    filters = weights((4, WIDTH), (4, 3), (2,))
    results["filters"] = builder.tensor((2, 2))
    builder.op(
        "SVDF", [one, *filters, builder.variable((2, 12))], [results["filters"]], "SVDFOptions", rank=2
    )
    found, wanted = computed(builder.model([*results.values()]), [random(2, STEPS, WIDTH), random(2, WIDTH)])
    for name, own, right in zip(results, found, wanted, strict=True):
        np.testing.assert_allclose(own, right, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_bidirectional_lstm_agrees_with_litert(is_merged: bool) -> None:
    """Batches first, LiteRT computes something else for the second one."""
    builder = TfliteBuilder()
    x = builder.input((STEPS, 2, WIDTH))

    def weights(*shape: int) -> list[int]:
        return [builder.constant(random(*shape) / 2) for _ in range(4)]

    def cell() -> list[int]:
        return [*weights(UNITS, WIDTH), *weights(UNITS, UNITS), -1, -1, -1, *weights(UNITS), -1, -1]

    states = [builder.variable((2, UNITS)) for _ in range(4)]
    shapes = [(STEPS, 2, 2 * UNITS)] if is_merged else [(STEPS, 2, UNITS)] * 2
    results = [builder.tensor(shape) for shape in shapes]
    builder.op(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [x, *cell(), *cell(), *states, *[-1] * 9],
        results,
        "BidirectionalSequenceLSTMOptions",
        fusedActivationFunction=4,
        mergeOutputs=is_merged,
        timeMajor=True,
    )
    for own, right in zip(*computed(builder.model(results), [random(STEPS, 2, WIDTH)]), strict=True):
        np.testing.assert_allclose(own, right, rtol=1e-4, atol=1e-5)


def test_unselected_boxes_are_zero() -> None:
    corners = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]
    inputs = [np.array(corners, np.float32), np.array([0.9, 0.75, 0.95, 0.5, 0.3], np.float32)]
    builder = TfliteBuilder()
    given = [builder.input(array.shape) for array in inputs]
    most = builder.constant(np.array(5, np.int32))
    bounds = [builder.constant(np.array(number, np.float32)) for number in (0.5, 0.2, 0.0)]
    four = [builder.tensor((5,), "int32"), builder.tensor((), "int32")]
    builder.op("NON_MAX_SUPPRESSION_V4", [*given, most, *bounds[:2]], four, "NonMaxSuppressionV4Options")
    five = [builder.tensor((5,), "int32"), builder.tensor((5,)), builder.tensor((), "int32")]
    builder.op("NON_MAX_SUPPRESSION_V5", [*given, most, *bounds], five, "NonMaxSuppressionV5Options")
    for own, right in zip(*computed(builder.model([*four, *five]), inputs), strict=True):
        np.testing.assert_allclose(own, right, rtol=1e-6)


def test_an_open_dimension_has_the_stored_size() -> None:
    builder = TfliteBuilder()
    x, result = builder.input((1, 3)), builder.tensor((1, 3))
    builder.signature(x, [-1, 3])
    builder.op("EXP", [x], [result])
    data, numbers = builder.model([result]), random(1, 3)
    (found,), (wanted,) = computed(data, [numbers])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(
        ModelError, match=r"stores shapes for \(1, 3\) only: convert the model with .*\(2, 3\)"
    ):
        read(data, {"t0": (2, 3)})


def test_duplicate_tensor_names_are_refused() -> None:
    """TVM's front end takes the first one for both."""
    builder = TfliteBuilder()
    x, first, second = builder.input((3,)), builder.tensor((3,)), builder.tensor((3,))
    builder.op("EXP", [x], [first])
    builder.op("NEG", [first], [second])
    builder.rename(second, "t1")
    with pytest.raises(ModelError, match="2 tensors of the TFLite model have the name 't1'"):
        read(builder.model([second]), {})


def test_moving_elements_between_different_small_scales_is_refused() -> None:
    builder = TfliteBuilder()
    x = builder.input((2, 3), "int16", Quantization(2e-6))
    result = builder.tensor((3, 2), "int16", quantization=Quantization(9e-6))
    builder.op("TRANSPOSE", [x, builder.constant(ints(1, 0))], [result], "TransposeOptions")
    with pytest.raises(ModelError, match=r"operator TRANSPOSE .* are quantized in different ways"):
        read(builder.model([result]), {}).to_relax()


@pytest.mark.parametrize("name", IMPORTED)
def test_an_operator_agrees_with_litert(name: str) -> None:
    IMPORTED[name]().check()


@pytest.mark.parametrize("name", ["sum of three", "segments"])
def test_a_right_model_agrees_at_the_edges(name: str) -> None:
    """LiteRT bounds sums by the greatest number, and its maximum depends on where NaN is."""
    data, _ = TOGETHER[name]().model()
    assert [one.inputs for one in verify_file(read(data, {}), TARGET, TARGET)] == [*ORDINARY_SETS, *EDGES]


def test_a_model_that_litert_refuses_has_no_reference() -> None:
    """LiteRT has no version 1 of this operator, and says so by another exception than for bad inputs."""
    data, inputs = _one("BROADCAST_TO", [random(3, 1), ints(2, 3, 4)], (2, 3, 4), 1).model()
    with pytest.raises(NoReference, match="LiteRT can't run it"):
        read(data, {}).compute({"t0": inputs[0]})


def test_reshapes_to_the_same_shape_are_no_kernels() -> None:
    builder = TfliteBuilder()
    x, same, rows, result = builder.input((2, 6)), *(builder.tensor((2, n)) for n in (6, 3, 3))
    builder.op("RESHAPE", [x, builder.constant(ints(2, 6))], [same], "ReshapeOptions")
    weights = builder.constant(random(3, 6))
    builder.op("FULLY_CONNECTED", [same, weights], [rows], "FullyConnectedOptions", keepNumDims=True)
    builder.op("RESHAPE", [rows, builder.constant(ints(2, 3))], [result], "ReshapeOptions")
    model = read(builder.model([result]), {}).to_relax()
    assert [task.weight for task in extract_tasks(fuse(model, TARGET))] == [1]


def test_integers_are_divided_by_zero_without_a_crash() -> None:
    """LiteRT refuses. A library must not crash its process."""
    case = Case("DIV", [ints(7, -(2**31), -7), ints(0, -1, 2)], [((3,), "int32")], "DivOptions")
    data, inputs = case.model()
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    assert found[2] == -3


def test_indices_out_of_bounds_read_no_other_memory() -> None:
    case = _one("GATHER", [random(5, 4), ints(0, 7, -1)], (3, 4), options="GatherOptions")
    data, inputs = case.model()
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    np.testing.assert_array_equal(found, inputs[0][[0, 4, 0]])


def test_indices_out_of_bounds_write_no_other_memory() -> None:
    """LiteRT rejects them. TVM's scatter would write anywhere."""
    indices = np.array([[-1], [1], [2**30]], np.int32)
    case = _one("SCATTER_ND", [indices, np.ones((3, 2), np.float32), ints(4, 2)], (4, 2), 2)
    data, inputs = case.model()
    file = read(data, {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [0, 0], [2, 2]])


REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "random numbers": (
        lambda: _one("RANDOM_UNIFORM", [ints(2, 3)], (2, 3), 0, options="RandomOptions"),
        "operator RANDOM_UNIFORM that computes 't1' can't be imported: it draws random numbers",
    ),
    "complex numbers": (
        lambda: Case(
            "RFFT2D", [random(1, 4, 8), ints(4, 8)], [((1, 4, 5), "complex64")], "Rfft2dOptions", (1,)
        ),
        "operator RFFT2D .* complex numbers aren't supported",
    ),
    "another operator": (
        lambda: _one("HASHTABLE_SIZE", [random(3)], (3,)),
        "operator HASHTABLE_SIZE ",
    ),
    "an operator of the model's own": (
        lambda: _one("CUSTOM", [random(3)], (3,), custom_code="Own"),
        "operator 'Own' of the model's own that computes 't1' can't be imported: only TFLite's built-in",
    ),
    "as many as the data decides": (
        lambda: Case("WHERE", [np.array([1, 0, 1], bool)], [((2, 1), "int64")]),
        "operator WHERE .* the data decides how many places it finds",
    ),
    "different values": (
        lambda: Case("UNIQUE", [ints(1, 2, 1)], [((2,), "int32"), ((3,), "int32")], "UniqueOptions", ()),
        "operator UNIQUE .* the data decides the shape of its result",
    ),
    "wide floats": (
        lambda: Case("CAST", [random(3)], [((3,), "float64")]),
        "operator CAST .* tensors of float64 aren't supported",
    ),
    "a shape that is an input": (
        lambda: _one("RESHAPE", [random(2, 6), ints(3, 4)], (3, 4), options="ReshapeOptions"),
        "operator RESHAPE .* its operand 't1' must be a constant",
    ),
    "a number that no float is": (
        lambda: Case(
            "PADV2",
            [np.ones(2, np.int64), ints(1, 0).reshape(1, 2), np.array(2**60 + 1)],
            [((3,), "int64")],
            "",
            (1, 2),
        ),
        "operator PADV2 .* it can't pad with 1152921504606846977",
    ),
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
    "parts of several shapes": (
        lambda: _one("PACK", [random(2, 3), random(1, 3)], (2, 2, 3), options="PackOptions", valuesCount=2),
        r"types and shapes \(its inputs are float32 \(2, 3\), float32 \(1, 3\)\)\. Change or replace it, or",
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
    "quotients of bytes": (
        lambda: _moved("FLOOR_DIV", [stored(4), stored(4)], (4,)),
        "operator FLOOR_DIV .* isn't supported for quantized tensors",
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
def test_an_operator_that_cannot_be_right_is_refused_by_name(name: str) -> None:
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


@pytest.mark.parametrize("kind", ["FULLY_CONNECTED", "DEQUANTIZE"])
def test_four_bit_weights_agree_with_litert(kind: str) -> None:
    """An odd number of them leaves half a byte empty."""
    builder = TfliteBuilder()
    weight = (np.arange(15).reshape(3, 5) - 8).astype(ml_dtypes.int4)
    scales = Quantization(0.1) if kind == "DEQUANTIZE" else Quantization([0.1, 0.2, 0.05], [0, 0, 0])
    position = builder.constant(weight, scales)
    if kind == "DEQUANTIZE":
        x = random(3, 5)
        numbers, result = builder.tensor((3, 5)), builder.tensor((3, 5))
        given = builder.input((3, 5))
        builder.op(kind, [position], [numbers])
        builder.op("ADD", [given, numbers], [result], "AddOptions")
    else:
        x = stored(2, 5)
        given, result = builder.input((2, 5), "int8", STEP), builder.tensor((2, 3), "int8", quantization=STEP)
        builder.op(kind, [given, position, -1], [result], "FullyConnectedOptions")
    file = read(builder.model([result]), {})
    inputs = {file.inputs[0].name: x}
    (wanted,), (found,) = (
        file.compute(inputs),
        Imported(file.to_relax(), TARGET, TARGET).compute(inputs).values(),
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1 if kind == "FULLY_CONNECTED" else 1e-5)


def test_an_input_of_four_bits_is_refused() -> None:
    builder = TfliteBuilder()
    given, result = builder.input((4,), "int4", Quantization(0.1)), builder.tensor((4,))
    builder.op("DEQUANTIZE", [given], [result])
    with pytest.raises(ModelError, match="input 't0' holds int4, which isn't supported: convert the model"):
        read(builder.model([result]), {})
