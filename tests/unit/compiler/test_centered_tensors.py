"""Tensors that share memory lie around its middle."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from compiler.codegen.byte_offsets import ALIGNMENT
from compiler.packaging.artifact import build_library
from compiler.packaging.centered_tensors import center_tensors
from compiler.target import detect_device, parse_target
from compiler.tir_nodes import find_all, num_bits

TARGET = detect_device().target
ROWS, WIDTHS = 24, (40, 3, 200, 17, 64)


def _chain(rows: Any) -> tvm.IRModule:
    """Return a model that averages rows again and again, with tensors of different sizes."""
    builder = relax.BlockBuilder()
    value: Any = relax.Var("x", relax.TensorType((rows, WIDTHS[0]), "float32"))
    with builder.function("main", [value]):
        with builder.dataflow():
            for inner, outer in itertools.pairwise(WIDTHS):
                factors = relax.const(np.full((inner, outer), 1 / inner, "float32"))
                value = builder.emit(relax.op.matmul(value, factors))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def _planned(model: tvm.IRModule) -> tvm.IRModule:
    with parse_target(TARGET):
        return relax.get_pipeline("default")(model)


def _tensors(module: tvm.IRModule) -> list[tuple[Any, int, int, int]]:
    """Return each tensor: its variable, the size of its storage, its offset and its own size, in bytes."""
    calls = {
        binding.var: binding.value
        for binding in find_all(module["main"].body, relax.VarBinding)
        if isinstance(binding.value, Call)
    }
    found = []
    for variable, call in calls.items():
        if str(getattr(call.op, "name", "")) == "relax.vm.alloc_tensor":
            storage, offset, shape, dtype, *_ = call.args
            size = math.prod(int(extent) for extent in shape.values) * num_bits(dtype.value) // 8
            found.append((variable, int(calls[storage].args[0].values[0]), int(offset), size))
    return found


def test_each_tensor_lies_around_the_middle_of_its_storage() -> None:
    tensors = _tensors(center_tensors(_planned(_chain(ROWS))))
    assert any(offset for _, _, offset, _ in tensors)
    for _, storage, offset, size in tensors:
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + size <= storage
        before, behind = offset, storage - offset - size
        assert before <= behind < before + 2 * ALIGNMENT


def test_the_output_fills_its_storage() -> None:
    module = center_tensors(_planned(_chain(ROWS)))
    output = module["main"].body.body
    ((storage, offset, size),) = [rest for variable, *rest in _tensors(module) if variable == output]
    assert (offset, size) == (0, storage)


def test_a_model_with_centered_tensors_computes_the_same(tmp_path: Path) -> None:
    build_library(_chain(ROWS), TARGET, tmp_path / "model.so")
    main = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())["main"]
    x = np.random.default_rng(0).random((ROWS, WIDTHS[0]), "float32")
    expected = np.broadcast_to(x.mean(axis=1, keepdims=True), (ROWS, WIDTHS[-1]))
    np.testing.assert_allclose(main(tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-5)


def test_tensors_of_dynamic_size_stay() -> None:
    planned = _planned(_chain(tvm.tirx.Var("rows", "int64")))
    tvm.ir.assert_structural_equal(center_tensors(planned), planned)
