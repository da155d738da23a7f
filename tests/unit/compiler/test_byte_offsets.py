"""Compiled functions take tensors that begin inside an allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from compiler.codegen.byte_offsets import ALIGNMENT
from compiler.codegen.pipeline import PIPELINE, UNTUNED
from compiler.target import detect_device, parse_target
from tests.workloads import matmul

NATIVE = parse_target(detect_device().target)
SIZE = 16
FLOATS = SIZE * SIZE


def _inside(floats: np.ndarray[Any, Any], offset: int) -> tuple[Any, Any]:
    """Return an allocation with a matrix at an offset in bytes, and the matrix."""
    memory = tvm.runtime.empty((FLOATS + 2 * ALIGNMENT,), "float32")
    memory.copyfrom(np.full(memory.shape, np.nan, "float32"))
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    matrix = view(memory, tvm_ffi.Shape(floats.shape), tvm_ffi.dtype("float32"), offset)
    content = memory.numpy()
    content[offset // 4 : offset // 4 + FLOATS] = floats.ravel()
    memory.copyfrom(content)
    return memory, matrix


@pytest.mark.parametrize("pipeline", [PIPELINE, UNTUNED])
@pytest.mark.parametrize("checks", [True, False])
def test_each_argument_begins_at_its_offset(pipeline: str, checks: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIZE, SIZE), "float32") for _ in range(2))
    with tvm.transform.PassContext(config={"tirx.disable_assert": not checks}):
        function = tvm.compile(matmul(SIZE, SIZE, SIZE), target=NATIVE, tir_pipeline=pipeline)["main"]
    (_, left), (_, right) = _inside(a, ALIGNMENT), _inside(b, 2 * ALIGNMENT)
    memory, product = _inside(np.zeros((SIZE, SIZE), "float32"), 4 * ALIGNMENT)
    function(left, right, product)
    content = memory.numpy()
    begin = 4 * ALIGNMENT // 4
    np.testing.assert_allclose(content[begin : begin + FLOATS], (a @ b).ravel(), rtol=1e-5)
    assert np.isnan(content[:begin]).all()
    assert np.isnan(content[begin + FLOATS :]).all()


def test_an_offset_that_breaks_the_alignment_is_refused() -> None:
    function = tvm.compile(matmul(SIZE, SIZE, SIZE), target=NATIVE, tir_pipeline=PIPELINE)["main"]
    zeros = np.zeros((SIZE, SIZE), "float32")
    _, aligned = _inside(zeros, ALIGNMENT)
    _, misaligned = _inside(zeros, ALIGNMENT // 2)
    with pytest.raises(ValueError, match="byte_offset"):
        function(aligned, aligned, misaligned)
