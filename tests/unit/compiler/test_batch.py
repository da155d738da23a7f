"""A batch size sets a model's dynamic batch dimension, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Mapping

import onnx
import pytest

from compiler.children.batch_shapes import find_batch_shapes
from compiler.importing import batch_shapes as importing
from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError, Shape
from tests.onnx_models import Builder, Extent, residual


def batch_shapes(data: bytes, shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    return importing.batch_shapes(io.BytesIO(data), shapes, batch)


def _sum(**inputs: list[Extent]) -> bytes:
    b = Builder()
    result = b.op("Add", *inputs)
    return b.model(inputs, {result: None})


def test_an_open_leading_dimension_becomes_the_batch() -> None:
    data = residual(batch="n")
    shapes = batch_shapes(data, {}, 16)
    assert shapes == {"input": (16, 3, 8, 8)}
    assert read_file(data, shapes).inputs[0].shape == (16, 3, 8, 8)


def test_a_dimension_without_a_name_is_open_too() -> None:
    model = onnx.load_from_string(residual(batch="n"))
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert batch_shapes(model.SerializeToString(), {}, 2) == {"input": (2, 3, 8, 8)}


def test_the_symbol_of_the_batch_means_it_everywhere() -> None:
    assert batch_shapes(_sum(x=["n", 4], y=[1, "n"]), {}, 4) == {"x": (4, 4), "y": (1, 4)}


def test_static_inputs_and_given_shapes_stay() -> None:
    data = _sum(x=["n", "m"], y=["n", 4])
    assert batch_shapes(data, {"x": (3, 4)}, 3) == {"x": (3, 4), "y": (3, 4)}
    assert batch_shapes(_sum(x=["n", 4], y=[1, 4]), {}, 3) == {"x": (3, 4)}
    # As when the import is tried again.
    assert batch_shapes(data, {"x": (3, 4), "y": (3, 4)}, 3) == {"x": (3, 4), "y": (3, 4)}


@pytest.mark.parametrize(
    ("data", "shapes", "why"),
    [
        (
            residual(),
            {},
            r"fixes its batch \(input begins with 1\): export it with a dynamic first dimension",
        ),
        (_sum(x=["n", "m"], y=["n", 4]), {}, r"'x' leaves more open than the batch: .*--shape x=16,"),
        (b"no model", {}, "no ONNX protobuf"),
    ],
)
def test_a_model_without_a_place_for_the_batch_is_refused(
    data: bytes, shapes: Mapping[str, Shape], why: str
) -> None:
    for find in (batch_shapes, find_batch_shapes):
        with pytest.raises(ModelError, match=why):
            find(data, shapes, 16)


def test_a_child_reads_the_file() -> None:
    assert find_batch_shapes(residual(batch="n"), {}, 16) == {"input": (16, 3, 8, 8)}
