"""A batch size sets a model's dynamic batch dimension, and nothing else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

import onnx
import pytest

from compiler.children.batch_shapes import find_batch_shapes
from compiler.importing import batch_shapes as importing
from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError, Shape
from tests.exported_program_files import S58, program
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
        (b"no model", {}, "not an ONNX file or another known model"),
        (b"\x1c\0\0\0TFL3", {}, "in the format TFLite have fixed shapes: export the model with the batch"),
        (
            program({"x": (1, 4)}),
            {},
            r"fixes its batch \(x begins with 1\): export it with a dynamic first dimension",
        ),
    ],
)
def test_a_model_without_a_place_for_the_batch_is_refused(
    data: bytes, shapes: Mapping[str, Shape], why: str
) -> None:
    for find in (batch_shapes, find_batch_shapes):
        with pytest.raises(ModelError, match=why):
            find(data, shapes, 16)


def test_a_dynamic_dimension_of_an_exported_program_becomes_the_batch() -> None:
    inputs: dict[str, tuple[int | str, ...]] = {
        "x": (S58, 4),
        "y": (S58, S58),
        "twice": (f"Mul(Integer(2), {S58})", 3),
        "z": (3, 4),
    }
    file = program(inputs)
    for find in (batch_shapes, find_batch_shapes):
        assert find(file, {}, 16) == {"x": (16, 4), "y": (16, 16)}


def test_weights_in_other_files_are_no_obstacle() -> None:
    model, packed = residual(batch="n"), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("model.onnx")
        entry.size = len(model)
        archive.addfile(entry, io.BytesIO(model))
    assert batch_shapes(packed.getvalue(), {}, 16) == {"input": (16, 3, 8, 8)}


def test_a_child_reads_the_file() -> None:
    assert find_batch_shapes(residual(batch="n"), {}, 16) == {"input": (16, 3, 8, 8)}
