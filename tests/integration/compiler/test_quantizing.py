"""Models are quantized, and each layer's error is measured."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.children.quantization import quantize_model
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.reading import read_model
from compiler.importing.onnx_runtime import load_session
from compiler.importing.spec import ModelError
from compiler.quantizing.quantize import quantize
from core.job import Quantize
from core.quantization import Quantization
from examples.networks.decoders import TINY, gpt2
from tests.onnx_models import Builder, residual

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((12, 3, 8, 8), np.float32)


def npz(**arrays: Any) -> io.BytesIO:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file


def made(
    model: bytes,
    kind: Quantize,
    data: io.BytesIO | None = None,
    *,
    narrow: bool = False,
    **shapes: tuple[int, ...],
) -> tuple[onnx.ModelProto, Quantization]:
    return quantize(read_model(model, shapes), kind, data, narrow=narrow)


def largest_weights(proto: onnx.ModelProto) -> list[int]:
    """Return the largest magnitude of each quantized weight, in the order of the products."""
    values = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    restored = {one.output[0]: values.get(one.input[0]) for one in proto.graph.node}
    weights = [
        restored[one.input[1]] for one in proto.graph.node if one.op_type in ("Conv", "MatMul", "Gemm")
    ]
    return [int(np.abs(weight.astype(np.int16)).max()) for weight in weights if weight is not None]


def run(proto: onnx.ModelProto | bytes, inputs: Mapping[str, Any]) -> Any:
    proto = onnx.load_from_string(proto) if isinstance(proto, bytes) else proto
    return load_session(proto, [proto.graph.output[0].name])(inputs)[0]


def perceptron(depth: int = 64, input_weight: np.ndarray[Any, Any] | None = None) -> bytes:
    b = Builder()
    first = b.weight(depth, 64) if input_weight is None else b.constant(input_weight)
    hidden = b.op("Relu", b.op("MatMul", "x", first))
    return b.model({"x": ["n", depth]}, {b.op("MatMul", hidden, b.weight(64, 8)): ["n", 8]})


def test_values_and_weights_become_bytes_for_any_batch() -> None:
    model = residual(batch="n")
    quantized, report = made(model, Quantize.INT8, npz(input=IMAGES, label=np.arange(12)), input=(2, 3, 8, 8))
    assert (report.weights_only, report.samples, report.compared, report.kept) == (False, 12, 4, 0)
    operators = {layer.operator for layer in report.layers}
    assert {"Conv", "Gemm", "GlobalAveragePool"} <= operators
    assert all(
        layer.own_db is not None and layer.own_db > 25 for layer in report.layers if layer.operator == "Conv"
    )
    assert report.worst_db is not None
    assert report.worst_db > 20
    assert report.text.startswith(
        f"quantized (int8): {report.worst_db:.1f} dB signal to noise against float32"
    )
    types = {tensor.data_type for tensor in quantized.graph.initializer}
    assert onnx.TensorProto.INT8 in types
    # The model keeps its dynamic dimensions, and the report agrees with ONNX Runtime.
    for batch in (1, 5):
        wanted, found = (run(one, {"input": IMAGES[:batch]}) for one in (model, quantized))
        assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)) > 15
    file = read_model(quantized.SerializeToString(), {"input": (2, 3, 8, 8)})
    assert isinstance(file, OnnxModel)
    assert file.file.computed_in == "quantized"


def test_an_inaccurate_layer_stays_in_float32() -> None:
    """One input column is so large that 8 bits can't resolve the other columns, which matter."""
    weight = RNG.uniform(-0.5, 0.5, (64, 64)).astype(np.float32)
    weight[0] = 0
    data = RNG.standard_normal((16, 64), np.float32)
    data[:, 0] *= 1e4
    model = perceptron(input_weight=weight)
    quantized, report = made(model, Quantize.INT8, npz(x=data), x=(1, 64))
    first, *_, last = [layer for layer in report.layers if layer.operator == "MatMul"]
    assert (first.kept, last.kept) == (True, False)
    assert first.own_db is None or first.own_db > 25
    assert report.kept >= 1
    assert "kept in float32" in report.text
    wanted, found = (run(one, {"x": data[:1]}) for one in (model, quantized))
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


def test_weights_have_seven_bits_where_that_is_accurate() -> None:
    """The first product's large terms cancel each other, so 7 bits are too few for its weights."""
    b = Builder()
    pairs = np.repeat(RNG.standard_normal((32, 32)).astype(np.float32), 2, axis=0)
    pairs[1::2] = 0.35 * pairs[::2] - pairs[::2]
    grouped = b.op("Conv", "x", b.weight(32, 1, 1, 1), group=32)
    first = b.op(
        "Relu", b.op("MatMul", b.op("Reshape", grouped, b.constant(np.array([1, 64]))), b.constant(pairs))
    )
    model = b.model({"x": [1, 32, 2, 1]}, {b.op("MatMul", first, b.weight(32, 8)): [1, 8]})
    data = np.repeat(RNG.standard_normal((8, 32, 1, 1)).astype(np.float32), 2, axis=2)
    wide, narrow = (made(model, Quantize.INT8, npz(x=data), narrow=narrow) for narrow in (False, True))
    assert largest_weights(wide[0]) == [127, 127, 127]
    assert largest_weights(narrow[0]) == [127, 127, 64]
    assert (wide[1].narrow, narrow[1].narrow) == (0, 1)
    assert (wide[1].kept, narrow[1].kept) == (0, 0)
    assert ", weights of 1 layer in 7 bits" in narrow[1].text


def test_infinities_of_masks_stay_in_floats() -> None:
    b = Builder()
    scores = b.op("MatMul", "x", b.weight(32, 32))
    mask = np.triu(np.full((32, 32), -np.inf, np.float32), 1)
    shares = b.op("Softmax", b.op("Add", scores, b.constant(mask)), axis=-1)
    model = b.model({"x": [32, 32]}, {b.op("MatMul", shares, b.weight(32, 16)): [32, 16]})
    data = RNG.standard_normal((4, 32, 32), np.float32)
    quantized, report = made(model, Quantize.INT8, npz(x=data))
    assert {layer.operator for layer in report.layers if layer.kept} >= {"Softmax"}
    assert report.worst_db is not None
    assert report.worst_db > 20
    wanted, found = (run(one, {"x": data[0]}) for one in (model, quantized))
    np.testing.assert_allclose(found, wanted, atol=0.1 * np.abs(wanted).max())


@pytest.mark.parametrize(("kind", "bits", "least_db"), [(Quantize.INT8, 8, 35), (Quantize.INT4, 4, 12)])
def test_weights_alone_need_no_data(kind: Quantize, bits: int, least_db: float) -> None:
    model = perceptron(70)
    quantized, report = made(model, kind, x=(3, 70))
    products = [node for node in quantized.graph.node if node.op_type == "MatMulNBits"]
    assert [{one.name: one.i for one in node.attribute}["bits"] for node in products] == [bits, bits]
    assert (report.weights_only, report.samples, report.compared) == (True, 0, 2)
    assert report.worst_db is not None
    assert report.worst_db > least_db
    assert "on random inputs" in report.text
    x = RNG.standard_normal((3, 70), np.float32)
    wanted, found = (run(one, {"x": x}) for one in (model, quantized))
    assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)) > least_db - 3
    with_data = made(model, kind, npz(x=x), x=(3, 70))[1]
    assert (with_data.samples, with_data.weights_only) == (3, kind is Quantize.INT4)


def test_a_bias_stays_a_float() -> None:
    b = Builder()
    result = b.op("Gemm", "x", b.weight(16, 40), b.weight(16), transB=1)
    model = b.model({"x": [2, 40]}, {result: [2, 16]})
    quantized, _ = made(model, Quantize.INT4)
    assert [node.op_type for node in quantized.graph.node] == ["MatMulNBits", "Add"]
    x = RNG.standard_normal((2, 40), np.float32)
    np.testing.assert_allclose(run(quantized, {"x": x}), run(model, {"x": x}), atol=0.5)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": IMAGES}, "has no array 'input', which is an input of the model; its arrays are: y"),
        ({"input": IMAGES.astype(np.float64)}, "is float64, and the model's input takes float32"),
        ({"input": IMAGES[:, :2]}, r"has the shape \(12, 2, 8, 8\), and the model's input \(2, 3, 8, 8\)"),
        ({"input": IMAGES[:3]}, "has 3 rows, and a sample takes 2: give one or more whole samples"),
        ({"input": IMAGES[:0]}, "has 0 rows, and a sample takes 2: give one or more whole samples"),
        ({"input": IMAGES[0]}, r"has the shape \(3, 8, 8\)"),
        ({"input": np.float32(1)}, r"has the shape \(\)"),
        ({"input": IMAGES * np.float32(np.nan)}, "has NaN or an infinity"),
        ({"input": np.array([object()])}, "can't be read: Object arrays cannot be loaded"),
    ],
)
def test_data_that_does_not_fit_is_named(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"the calibration data.*{message}"):
        made(residual(batch=2), Quantize.INT8, npz(**arrays))


def test_inputs_with_different_numbers_of_samples_are_refused() -> None:
    b = Builder()
    model = b.model({"a": ["n", 4], "b": ["n", 4]}, {b.op("Add", "a", "b"): ["n", 4]})
    data = npz(a=np.ones((2, 4), np.float32), b=np.ones((3, 4), np.float32))
    with pytest.raises(ModelError, match="different numbers of samples: 2 of 'a', 3 of 'b'"):
        made(model, Quantize.INT8, data, a=(1, 4), b=(1, 4))


def test_an_archive_with_false_array_headers_is_refused() -> None:
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9999, 3, 8, 8), }"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("input.npy", header.ljust(127) + b"\n" + bytes(64))
    with pytest.raises(ModelError, match="the calibration data can't be read"):
        made(residual(), Quantize.INT8, file)
    with pytest.raises(ModelError, match=r"the calibration data can't be read: File is not a zip file"):
        made(residual(), Quantize.INT8, io.BytesIO(b"no zip"))


def test_the_error_says_why_a_model_cannot_be_quantized() -> None:
    b = Builder()
    convolution = b.model({"x": [1, 3, 8, 8]}, {b.conv("x", 3, 4, 3): [1, 4, 8, 8]})
    with pytest.raises(ModelError, match=r"no matrix product with constant weights.*: give calibration data"):
        made(convolution, Quantize.INT8)
    shapes: dict[str, tuple[int, ...]] = {"input_ids": (1, 1)}
    shapes |= {
        f"past_key_values.{layer}.{kind}": (1, TINY.heads, 16, TINY.size)
        for layer in range(TINY.layers)
        for kind in ("key", "value")
    }
    with pytest.raises(ModelError, match=r"doesn't quantize decoders that keep their cache"):
        quantize(read_model(gpt2(), shapes), Quantize.INT4, None)
    quantized, _ = made(convolution, Quantize.INT8, npz(x=IMAGES))
    with pytest.raises(ModelError, match="the model is quantized already"):
        made(quantized.SerializeToString(), Quantize.INT8, npz(x=IMAGES))


def test_a_child_quantizes_and_reports_errors() -> None:
    with (
        tempfile.TemporaryFile() as model,
        tempfile.TemporaryFile() as data,
        tempfile.TemporaryFile() as into,
    ):
        model.write(residual())
        np.savez(data, input=IMAGES)
        for file in (model, data):
            file.flush()
        report = quantize_model(model, {}, Quantize.INT8, data, into, narrow=True)
        assert report.narrow > 0
        into.seek(0)
        proto = onnx.load_from_string(into.read())
        assert any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
        assert report.samples == 12
        assert report.layers
        data.seek(0)
        data.truncate()
        with pytest.raises(ModelError, match=r"^the calibration data can't be read: File is not a zip"):
            quantize_model(model, {}, Quantize.INT8, data, into)
