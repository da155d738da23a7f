"""Selected boxes: outputs have the maximum number of rows, and the first rows are ONNX's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser

from compiler.importing.model import import_file
from compiler.importing.onnx_file import OnnxFile, read_file
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported, verify
from compiler.verifying.reference import Reference
from tests.devices import UNOPTIMIZED as TARGET
from tests.marks import slow_lane_except

BATCHES, CLASSES, BOXES, PICKS = 2, 3, 30, 5
ROWS = BATCHES * CLASSES * PICKS
CONSTANTS = (
    f"int64[1] limit = {{{PICKS}}}, float[1] overlap = {{0.4}}, float[1] least = {{0.7}}, "
    "float[1] high = {0.9}, "
    "int64[1] last = {2}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] seven = {7}, "
    "int64[1] all = {-1}, int64[1] end = {-1}, int64[2] zero_one = {0, 1}, int64[2] keys = {0, 2}, "
    "float four = {4}, int64 none = {0}, int64 far = {1099511627776}, int64[4] images = {2, 3, 5, 6}"
)


def model(outputs: str, nodes: str) -> onnx.ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 20]> model'
    inputs = f"float[{BATCHES}, {BOXES}, 4] boxes, float[{BATCHES}, {CLASSES}, {BOXES}] scores"
    return parser.parse_model(f"{head} ({inputs}) => ({outputs}) <{CONSTANTS}> {{{nodes}}}")


def inputs(seed: int) -> dict[str, NDArray[np.float32]]:
    """Return boxes: many overlap, and many have equal scores."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 1, (BATCHES, BOXES, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.2, 0.6, corners.shape)], axis=2)
    scores = rng.integers(0, 50, (BATCHES, CLASSES, BOXES)) / 50
    return {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)}


def read(proto: onnx.ModelProto) -> OnnxFile:
    return read_file(proto.SerializeToString(), {})


def check(file: OnnxFile) -> dict[str, int]:
    """Compare the valid rows exactly for several inputs; return their number for each output."""
    reference, imported = Reference(file.proto, file.output_names), Imported(import_file(file), TARGET)
    counts: dict[str, int] = {}
    for seed in range(3):
        feeds = inputs(seed)
        wanted, found = reference.compute(feeds), imported.compute(feeds)
        for name, array in wanted.items():
            counts[name] = len(array)
            np.testing.assert_array_equal(found[name][: len(array)], array)
            assert (found[name][len(array) :] == -1).all()
    return counts


SELECT = {
    "all": "selected = NonMaxSuppression (boxes, scores, limit, overlap)",
    "scores of some size": "selected = NonMaxSuppression (boxes, scores, limit, overlap, least)",
    "no overlap at all": "selected = NonMaxSuppression (boxes, scores, limit)",
    "centres and sizes": "selected = NonMaxSuppression <center_point_box: int = 1> "
    "(boxes, scores, limit, overlap, least)",
}


@pytest.mark.parametrize("name", SELECT)
def test_the_valid_rows_come_first(name: str) -> None:
    file = read(model("int64[n, 3] selected", SELECT[name]))
    assert import_file(file).outputs[0].padded_axis == 0
    assert 0 < check(file)["selected"] <= ROWS


# The numbers that were selected; those of rows that are not valid are a long way off.
NOWHERE = "away = Mul (selected, far) numbers = Min (away, selected)"

AFTER: Mapping[str, tuple[str, str]] = {
    "what is selected": (
        "float[n, 4] y",
        "at = Gather <axis: int = 1> (selected, keys) y = GatherND (boxes, at)",
    ),
    "labels and areas": (
        "int64[n] labels, float[n] areas",
        "column = Slice (selected, one, two, one) labels = Squeeze (column, one) "
        "at = Gather <axis: int = 1> (selected, keys) found = GatherND (boxes, at) "
        "scaled = Mul (found, four) areas = ReduceMax <keepdims: int = 0> (scaled, one)",
    ),
    "the first seven": ("int64[n, 3] y", "y = Slice (selected, zero, seven, zero)"),
    "flattened": (
        "int64[n] y",
        "column = Slice (selected, two, limit, one) y = Reshape (column, all)",
    ),
    "columns that are cut out and joined": (
        "int64[n, 2] y",
        "batch = Slice (selected, zero, one, one) box = Slice (selected, two, limit, one) "
        "y = Concat <axis: int = 1> (batch, box)",
    ),
    "the best of all classes": (
        "float[n] best, int64[n] at",
        "chosen = GatherND (scores, selected) count = Shape (chosen) k = Min (count, seven) "
        "best, at = TopK (chosen, k)",
    ),
    "how many": ("int64[1] y", "y = Shape <end: int = 1> (selected)"),
    "divisors that are -1 where the least integer is divided": (
        "int64[n] quotients, int64[n] rests",
        "column = Slice (selected, two, limit, one) numbers = Squeeze (column, one) count = Shape (numbers) "
        "largest, at = TopK (numbers, count) is_none = Less (largest, none) more = Add (at, one) "
        "divisor = Where (is_none, all, more) quotients = Div (largest, divisor) "
        "rests = Mod (largest, divisor)",
    ),
    "parts that are nowhere": (
        "float[n] y, float[n, 1] z",
        f"{NOWHERE} y = GatherND (scores, numbers) at = Gather <axis: int = 1> (selected, keys) "
        "found = GatherND (boxes, at) column = Slice (numbers, one, two, one) "
        "z = GatherElements <axis: int = 1> (found, column)",
    ),
}


@pytest.mark.parametrize("name", slow_lane_except(AFTER, "what is selected", "parts that are nowhere"))
def test_operators_on_detected_rows_work_row_by_row(name: str) -> None:
    outputs, nodes = AFTER[name]
    file = read(model(outputs, f"{SELECT['scores of some size']} {nodes}"))
    check(file)
    agreements = list(verify(file, import_file(file), TARGET, TARGET))
    assert [one.inputs for one in agreements][:2] == ["floats around zero", "floats from 0 to 1"]
    assert [one.note for one in agreements if one.note] == []


def test_regions_of_unknown_images_agree_with_the_reference() -> None:
    nodes = (
        "selected = NonMaxSuppression (boxes, scores, limit, overlap, high) "
        f"{NOWHERE} batch = Gather <axis: int = 1> (numbers, none) "
        "at = Gather <axis: int = 1> (selected, keys) found = GatherND (boxes, at) "
        "image = Reshape (scores, images) "
        "y = RoiAlign <output_height: int = 2, output_width: int = 2, sampling_ratio: int = 2, "
        "spatial_scale: float = 4.0> (image, found, batch)"
    )
    file = read(model("float[n, 3, 2, 2] y", nodes))
    reference, imported = Reference(file.proto, file.output_names), Imported(import_file(file), TARGET)
    for seed in range(3):
        wanted, found = reference.compute(inputs(seed))["y"], imported.compute(inputs(seed))["y"]
        assert 0 < len(wanted) < len(found)
        np.testing.assert_allclose(found[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)
        assert (found[len(wanted) :] == -1).all()


def test_nonzero_finds_elements() -> None:
    nodes = "is_best = Greater (scores, least) places = NonZero (is_best) at = Transpose (places) "
    file = read(model("int64[n, 3] at, float[n] found", f"{nodes} found = GatherND (scores, at)"))
    assert 0 < check(file)["found"] < BATCHES * CLASSES * BOXES


FILTERED = """
    first, second = Split <axis: int = 0, num_outputs: int = 2> (boxes)
    all_scores, others = Split <axis: int = 0, num_outputs: int = 2> (scores)
    best = ReduceMax <keepdims: int = 0> (all_scores, zero_one)
    is_high = Greater (best, least) places = NonZero (is_high) kept = Squeeze (places, zero)
    some_boxes = Gather <axis: int = 1> (first, kept) some_scores = Gather <axis: int = 2> (all_scores, kept)
    selected = NonMaxSuppression (some_boxes, some_scores, limit, overlap)
    column = Slice (selected, two, limit, one) numbers = Squeeze (column, one)
    found = Gather <axis: int = 1> (some_boxes, numbers) newest = Gather <axis: int = 2> (some_scores, end)
"""


def test_boxes_with_high_scores_are_selected() -> None:
    outputs = f"int64[n, 3] selected, float[1, n, 4] found, float[1, {CLASSES}, 1] newest"
    file = read(model(outputs, FILTERED))
    agreements = list(verify(file, import_file(file), TARGET, TARGET))
    assert [one.inputs for one in agreements][:2] == ["floats around zero", "floats from 0 to 1"]
    assert [one.note for one in agreements if one.note] == []
    reference, imported = Reference(file.proto, file.output_names), Imported(import_file(file), TARGET)
    for seed in range(3):
        wanted, found = reference.compute(inputs(seed)), imported.compute(inputs(seed))
        assert 0 < len(wanted["selected"]) < CLASSES * PICKS + 1
        for name, array in wanted.items():
            np.testing.assert_array_equal(valid_part(found[name], array), array)


MIXED = {
    "ReduceSum": "float32s = Cast <to: int = 1> (selected) y = ReduceSum (float32s, zero)",
    "Slice": "y = Slice (selected, all, last, zero)",
    "Softmax": "float32s = Cast <to: int = 1> (selected) y = Softmax <axis: int = 0> (float32s)",
    "Concat": "y = Concat <axis: int = 0> (selected, selected)",
    "CumSum": "y = CumSum (selected, zero)",
}


@pytest.mark.parametrize("kind", MIXED)
def test_an_operator_that_mixes_rows_is_named(kind: str) -> None:
    file = read(model("int64[n, 3] y", f"{SELECT['all']} {MIXED[kind]}"))
    with pytest.raises(ModelError, match=f"operator {kind} .*: the data decides how many rows"):
        import_file(file)


def test_softmax_of_older_models_mixes_all_axes_from_the_second_on() -> None:
    rows = "float32s = Cast <to: int = 1> (selected) rows = Unsqueeze <axes: ints = [0]> (float32s)"
    proto = model("float[1, n, 3] y", f"{SELECT['all']} {rows} y = Softmax (rows)")
    proto.opset_import[0].version = 12
    with pytest.raises(ModelError, match=r"operator Softmax .*: the data decides how many rows"):
        import_file(read(proto))


def test_a_wrong_selection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    file = read(model("int64[n, 3] selected", SELECT["all"]))
    other = read(model("int64[n, 3] selected", SELECT["no overlap at all"]))
    monkeypatch.setattr("compiler.verifying.imported.import_file", lambda *_: import_file(other))
    with pytest.raises(ModelError, match="operator NonMaxSuppression of"):
        list(verify(file, import_file(other), TARGET, TARGET))


UNIQUE = list(product(["float32", "bool"], [1, 0], [None, 0, -1]))
EVERY_PUSH = ("float32", 1, None), ("float32", 0, -1), ("bool", 1, 0)


@pytest.mark.parametrize("case", slow_lane_except(UNIQUE, *EVERY_PUSH, seconds=1), ids=str)
def test_unique_finds_distinct_slices(case: tuple[str, int, int | None]) -> None:
    """With an axis, the compared slices have several elements. Rows after the valid ones hold a marker."""
    dtype, is_sorted, axis = case
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    names = ["y", "indices", "inverse", "counts"]
    node = onnx.helper.make_node("Unique", ["x"], names, sorted=is_sorted, **given)
    shape = (5, 4, 2)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [onnx.helper.make_tensor_value_info("x", kind, shape)]
    results = [
        onnx.helper.make_tensor_value_info(name, kind if name == "y" else onnx.TensorProto.INT64, None)
        for name in names
    ]
    graph = onnx.helper.make_graph([node], "unique", values, results)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    file = read(proto)
    imported = Imported(import_file(file), TARGET)
    for seed in range(3):
        x = np.random.default_rng(seed).integers(0, 2 if axis else 3, shape).astype(dtype)
        x[2], x[:, 3] = x[0], x[:, 1]
        _, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        order = np.arange(len(first)) if is_sorted else np.argsort(first)
        rank = np.argsort(order)
        wanted = {
            "y": np.take(x.ravel() if axis is None else x, first[order], axis or 0),
            "indices": first[order],
            "inverse": rank[inverse.ravel()],
            "counts": counts[order],
        }
        found = imported.compute_like(wanted, {"x": x})
        for name in names:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=f"{name} {seed}")
            assert found[name].dtype == wanted[name].dtype


def test_operators_after_unique_use_its_number_of_rows() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[6] x) => (float[n] twice, int64[1] count) {
        y = Unique (x)
        twice = Add (y, y)
        count = Shape (y)
    }"""
    file = read(parser.parse_model(text))
    model = import_file(file)
    assert [spec.padded_axis for spec in model.outputs] == [0, None]
    found = Imported(model, TARGET).compute({"x": np.array([3, 1, 3, 2, 1, 1], np.float32)})
    assert found["twice"].tolist() == [2, 4, 6, -1, -1, -1]
    assert found["count"].tolist() == [3]
