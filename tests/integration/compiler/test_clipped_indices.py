"""Indices outside of a tensor are clipped, so that they access no foreign memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import parser

from compiler.importing.model import import_file
from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported
from tests.devices import UNOPTIMIZED as TARGET

Array = NDArray[Any]
# Into five rows: indices from the end, and indices beyond both ends.
ROWS = np.array([-6, 9, -1, 4, -5, 5])
CLIPPED = np.array([0, 4, 4, 4, 0, 4])
DATA = np.arange(15, dtype=np.float32).reshape(5, 3)
MODELS: Mapping[str, tuple[Array, str, Callable[[Array], Array]]] = {
    "Gather": (ROWS, "(float[5,3] x, int64[6] at) => (float[6,3] y)", lambda rows: DATA[rows]),
    "GatherElements": (
        np.tile(ROWS[:, None], 3),
        "(float[5,3] x, int64[6,3] at) => (float[6,3] y)",
        lambda rows: DATA[rows],
    ),
    "GatherND": (ROWS[:, None], "(float[5,3] x, int64[6,1] at) => (float[6,3] y)", lambda rows: DATA[rows]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_indices_from_the_user_are_clipped(kind: str) -> None:
    places, signature, right = MODELS[kind]
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g {signature} {{ y = {kind}(x, at) }}'
    )
    model = import_file(read_file(proto.SerializeToString(), {}))
    for tuned_for in ("", TARGET):
        found = Imported(model, TARGET, tuned_for).compute({"x": DATA, "at": places})
        np.testing.assert_array_equal(found["y"], right(CLIPPED))


@pytest.mark.parametrize("kind", ["Gather", "GatherElements", "GatherND"])
def test_constant_indices_out_of_range_are_refused(kind: str) -> None:
    shape, places = ("1,1", "{5}") if kind != "Gather" else ("1", "{5}")
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[5,3] x) => (float[1,3] y) '
        f"<int64[{shape}] at = {places}> {{ y = {kind}(x, at) }}"
    )
    with pytest.raises(ModelError, match="its indices are from 5 to 5, and axis 0 has 5 parts"):
        import_file(read_file(proto.SerializeToString(), {}))


def test_image_numbers_of_boxes_are_clipped() -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2,1,4,4] x, float[4,5] boxes) => (float[4,1,1,1] y)
        { y = MaxRoiPool<pooled_shape = [1, 1]>(x, boxes) }"""
    )
    model = import_file(read_file(proto.SerializeToString(), {}))
    images, boxes = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4), np.zeros((4, 5), np.float32)
    boxes[:, 0] = [-1e9, 1e9, np.nan, 1]
    boxes[:, 3:] = np.array([3, 1e30, 3, 1])[:, None]
    found = Imported(model, TARGET).compute({"x": images, "boxes": boxes})["y"]
    np.testing.assert_array_equal(found.reshape(-1), [15, 31, 15, 21])
