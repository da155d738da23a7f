"""Elements of less than a byte as inputs, outputs and weights, and the conversions of small floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser
from tunefarm_runtime import InferenceSession, RunError, load

from compiler.importing.model import import_file
from compiler.importing.onnx_file import read_file
from compiler.importing.onnx_runtime import load_session
from compiler.importing.spec import NARROW, ModelError
from compiler.importing.values import numpy_dtype
from compiler.verifying.imported import Imported, verify
from tests.compiled_models import compile_model
from tests.devices import UNOPTIMIZED as TARGET

Array = NDArray[Any]
LESS_THAN_A_BYTE = [dtype for dtype, bits in NARROW.items() if bits < 8]
NAMES = {dtype: dtype.replace("float4_e2m1fn", "float4e2m1") for dtype in LESS_THAN_A_BYTE}
SMALL_FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def model_of(text: str, opset: int = 25) -> onnx.ModelProto:
    made: onnx.ModelProto = parser.parse_model(f'<ir_version: 13, opset_import: ["" : {opset}]> {text}')
    return made


def computed(model: onnx.ModelProto, *inputs: Array) -> list[Array]:
    file = read_file(model.SerializeToString(), {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    return list(Imported(import_file(file), TARGET).compute(given).values())


def every_code(dtype: str) -> Array:
    return np.arange(1 << NARROW.get(dtype, 8), dtype=np.uint8).view(numpy_dtype(dtype))


def cast_of(source: str, to: str, count: int, **attributes: Any) -> onnx.ModelProto:
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=number_of(to), **attributes)
    values = [
        onnx.helper.make_tensor_value_info(name, number_of(dtype), [count])
        for name, dtype in (("x", source), ("y", to))
    ]
    graph = onnx.helper.make_graph([node], "cast", values[:1], values[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=13)


def number_of(dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", LESS_THAN_A_BYTE)
def test_each_narrow_value_is_widened_exactly(dtype: str) -> None:
    codes = every_code(dtype)
    for wide in ("float32", "int8", "uint8", "int64"):
        (found,) = computed(cast_of(dtype, wide, codes.size), codes)
        np.testing.assert_array_equal(found, codes.astype(np.float32).astype(wide))


@pytest.mark.parametrize("dtype", [name for name in LESS_THAN_A_BYTE if "int" in name])
def test_integers_lose_their_upper_bits(dtype: str) -> None:
    for source in (np.arange(-128, 128, dtype=np.int8), np.arange(-40, 40) * 1001):
        (found,) = computed(cast_of(str(source.dtype), dtype, source.size), source)
        assert found.dtype == numpy_dtype(dtype)
        np.testing.assert_array_equal(found, source.astype(dtype))


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", *SMALL_FLOATS])
@pytest.mark.parametrize("saturate", [1, 0])
def test_small_floats_are_rounded_to_even(dtype: str, saturate: int) -> None:
    """All values of float16 are rounded as ml_dtypes or ONNX rounds them, with the sign of zero."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore", over="ignore"):
        x = halves.astype(np.float32)
        wanted = x.astype(numpy_dtype(dtype))
        if saturate and dtype in SMALL_FLOATS:
            wanted = onnx.numpy_helper.saturate_cast(x, numpy_dtype(dtype))
    (found,) = computed(cast_of("float32", dtype, x.size, saturate=saturate), x)
    a, b = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(a, b)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(a[numbers]), np.signbit(b[numbers]))


@pytest.mark.parametrize(
    ("round_mode", "saturate", "codes"),
    [
        ("up", 1, [0, 0, 0, 1, 127, 128, 129, 254, 254, 255]),
        ("down", 1, [0, 0, 0, 0, 127, 127, 128, 254, 254, 255]),
        ("nearest", 0, [255, 255, 0, 1, 127, 128, 129, 255, 255, 255]),
    ],
)
def test_casts_to_powers_of_two_follow_onnxs_table(round_mode: str, saturate: int, codes: list[int]) -> None:
    """By ONNX's table. The last numbers are the largest one, infinity and NaN."""
    x = np.array(
        [0, 1e-45, 2.0**-127, 1.6 * 2.0**-127, 1, 1.5, 3, np.finfo(np.float32).max, np.inf, np.nan],
        np.float32,
    )
    model = cast_of("float32", "float8_e8m0fnu", x.size, round_mode=round_mode, saturate=saturate)
    (found,) = computed(model, x)
    np.testing.assert_array_equal(found.view(np.uint8), codes)


def test_narrow_elements_are_moved() -> None:
    text = """g (int4[2,3] x, uint2[4] z) => (int4[3,1,2] y, uint2[2,2] w, int64[2] n) <int64[1] one = {1}> {
        t = Transpose (x)
        y = Unsqueeze (t, one)
        w = Reshape <allowzero = 0> (z, square)
        n = Shape (x)
        square = Constant <value_ints = [2, 2]> ()
    }"""
    model = model_of(text)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[-1], *nodes[:-1]])
    x = np.arange(-3, 3, dtype=np.int8).reshape(2, 3).astype(ml_dtypes.int4)
    z = np.arange(4, dtype=np.uint8).astype(ml_dtypes.uint2)
    y, w, n = computed(model, x, z)
    assert (y.dtype, w.dtype) == (x.dtype, z.dtype)
    np.testing.assert_array_equal(y, x.T[:, None])
    np.testing.assert_array_equal(w, z.reshape(2, 2))
    np.testing.assert_array_equal(n, [2, 3])


def test_a_branch_and_a_loop_hand_narrow_elements_on() -> None:
    text = """g (int4[3] x, bool c) => (int4[3] y, int4[2,3] rows) <int64 two = {2}, bool yes = {1}> {
        y = If (c) <
            then_branch = then () => (a) { a = Identity (x) },
            else_branch = else () => (b) { n = Cast <to = 1> (x) m = Neg (n) b = Cast <to = 22> (m) }
        >
        last, rows = Loop (two, yes, x) <
            body = body (int64 i, bool go, int4[3] s) => (more, after, row) {
                more = Identity (go)
                w = Cast <to = 3> (s)
                k = Constant <value = int8 {1}> ()
                v = Add (w, k)
                after = Cast <to = 22> (v)
                row = Identity (s)
            }
        >
    }"""
    x = np.array([-8, 0, 7], np.int8).astype(ml_dtypes.int4)
    for condition, wanted in ((True, x), (False, (-x.astype(np.int8)).astype(ml_dtypes.int4))):
        y, rows = computed(model_of(text), x, np.array(condition))
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(rows.astype(np.int8), [[-8, 0, 7], [-7, 1, -8]])


@pytest.mark.parametrize("dtype", LESS_THAN_A_BYTE)
def test_blocks_with_scales_as_inputs_are_quantized(dtype: str) -> None:
    """Everything is an input: the data, the scales and the zero points, one for each block of two."""
    name, is_float = NAMES[dtype], "float" in dtype
    text = f"""g (float[2,4] x, float[2,2] s, {name}[2,2] z) => ({name}[2,4] q, float[2,4] y) {{
        q = QuantizeLinear <axis = 1, block_size = 2> (x, s, z)
        y = DequantizeLinear <axis = 1, block_size = 2> (q, s, z)
    }}"""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 4, (2, 4)).astype(np.float32)
    s = rng.uniform(0.5, 1, (2, 2)).astype(np.float32)
    z = np.zeros((2, 2), np.float32) if is_float else np.array([[1, 0], [0, 1]], np.float32)
    steps, zeros = np.repeat(s, 2, 1), np.repeat(z, 2, 1)
    if is_float:
        wanted = (x / steps).astype(numpy_dtype(dtype))
    else:
        limits = ml_dtypes.iinfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
        wanted = np.clip(np.rint(x / steps) + zeros, int(limits.min), int(limits.max)).astype(
            numpy_dtype(dtype)
        )
    q, y = computed(model_of(text), x, s, z.astype(numpy_dtype(dtype)))
    np.testing.assert_array_equal(q, wanted)
    np.testing.assert_array_equal(y, (wanted.astype(np.float32) - zeros) * steps)


def test_a_narrow_constant_pads_a_narrow_input() -> None:
    text = """g (int4[3] x, bool[3] c) => (int4[4] y) <int64[2] pads = {1, 0}, int4 k = {-2}> {
        y = Pad (x, pads, k)
    }"""
    model = model_of(text)
    x = np.array([-8, 0, 7], np.int8).astype(ml_dtypes.int4)
    (y,) = computed(model, x, np.array([True, False, True]))
    np.testing.assert_array_equal(y.astype(np.int8), [-2, -8, 0, 7])


def test_an_operator_undefined_for_narrow_types_is_refused_by_name() -> None:
    text = "g (int4[3] x) => (int4[3] y) { [sum] y = Add (x, x) }"
    with pytest.raises(ModelError, match=r"operator Add .*node 'sum' can't be imported: .*int4: cast"):
        import_file(read_file(model_of(text).SerializeToString(), {}))


def test_a_narrow_model_is_verified() -> None:
    text = """g (int4[8] x, float[8] s) => (int4[8] y, float[8] z) {
        f = Cast <to = 1> (x)
        z = Mul (f, s)
        y = Cast <to = 22> (z)
    }"""
    file = read_file(model_of(text, 21).SerializeToString(), {})
    agreements = list(verify(file, import_file(file), TARGET, TARGET))
    assert len(agreements) > 2
    assert not any(agreement.note for agreement in agreements[:2])


@pytest.mark.slow
def test_the_runtime_takes_and_gives_arrays_of_ml_dtypes(tmp_path: Any) -> None:
    text = """g (int4[2,3] x, float4e2m1[6] f) => (int4[3,2] y, float4e2m1[2,3] w, float[6] v)
    <int64[2] shape = {2, 3}> {
        y = Transpose (x)
        w = Reshape (f, shape)
        v = Cast <to = 1> (f)
    }"""
    folder = compile_model(model_of(text).SerializeToString(), tmp_path / "net")
    model = load(folder)
    x = np.array([[-8, -1, 0], [1, 7, -3]], np.int8).astype(ml_dtypes.int4)
    f = np.array([0, -0.5, 6, -6, 1.5, -0.0], np.float32).astype(ml_dtypes.float4_e2m1fn)
    y, w, v = model(x, f)
    assert (y.dtype, w.dtype) == (x.dtype, f.dtype)
    assert y.tobytes() == np.ascontiguousarray(x.T).tobytes()
    assert w.tobytes() == f.tobytes()
    np.testing.assert_array_equal(v, f.astype(np.float32))
    # The upper bits of a byte may hold anything.
    dirty = (x.view(np.uint8) | np.uint8(0xF0)).view(ml_dtypes.int4)
    assert model(dirty, f)[0].tobytes() == y.tobytes()
    for wrong in (x.astype(np.int8), x.view(ml_dtypes.uint4), x.view(np.uint8)):
        with pytest.raises(RunError, match=f"input x is {wrong.dtype}, and the model takes int4"):
            model(wrong, f)
    session = InferenceSession(folder)
    assert [one.type for one in session.get_inputs()] == ["tensor(int4)", "tensor(float4e2m1)"]
    assert session.run(["y"], {"x": x, "f": f})[0].tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", [*SMALL_FLOATS, "float8_e8m0fnu"])
def test_small_floats_are_moved_and_converted(dtype: str) -> None:
    """A conversion after a move was more than TVM generates code for."""
    name = (
        dtype.replace("float8_", "float8").replace("fnu", "")
        if "e8m0" in dtype
        else dtype.replace("_", "", 1)
    )
    text = f"""g ({name}[2,3] x) => (float[3,2] y, {name}[6] z, uint8[2,3] b) <int64[1] all = {{-1}}> {{
        t = Transpose (x)
        y = Cast <to = 1> (t)
        z = Reshape (x, all)
        b = BitCast <to = 2> (x)
    }}"""
    x = np.array([[3, 100, 127], [128, 255, 1]], np.uint8).view(numpy_dtype(dtype))
    y, z, b = computed(model_of(text, 26), x)
    np.testing.assert_array_equal(y, x.T.astype(np.float32))
    assert z.dtype == x.dtype
    np.testing.assert_array_equal(z.view(np.uint8), x.view(np.uint8).ravel())
    np.testing.assert_array_equal(b, x.view(np.uint8))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_onnx_runtime_passes_types_that_numpy_lacks(dtype: str) -> None:
    values = np.array([1.5, -0.25, np.nan, 0 if "e4m3" in dtype else -np.inf], np.float32)
    data = values.astype(numpy_dtype(dtype))
    [same] = load_session(cast_of(dtype, dtype, 4), ["y"])({"x": data})
    [wide] = load_session(cast_of(dtype, "float32", 4), ["y"])({"x": data})
    options = {"saturate": 0} if "float8" in dtype else {}
    [narrow] = load_session(cast_of("float32", dtype, 4, **options), ["y"])({"x": values})
    np.testing.assert_array_equal(wide, values)
    for found in (same, narrow):
        assert found.dtype == data.dtype
        np.testing.assert_array_equal(found.astype(np.float32), values)
