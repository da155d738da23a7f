"""Packing of a workload's constants is split from the computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.s_tir import Schedule
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.constants.packing import PackedWorkload, prepack, split_packing
from compiler.lowering.trace import apply_trace, trace_of
from tests.packing import pack, packed_everywhere, packed_twice, tile, with_constants
from tests.workloads import conv2d, matmul, residual

Array = NDArray[Any]


def _packed(mod: tvm.IRModule, constants: Sequence[int], width: int = 16) -> tvm.IRModule:
    """Return the workload under a trace that packs all its constants."""
    workload = with_constants(mod, constants)
    trace = packed_everywhere(workload, width)
    assert trace is not None
    return apply_trace(workload, trace)


def _parts(scheduled: tvm.IRModule) -> PackedWorkload:
    parts = split_packing(scheduled)
    assert parts is not None
    return parts


def _blocked(weight: Array, width: int) -> Array:
    """Pack a matrix: columns in pieces, the pieces outermost, zeros after the last column."""
    filled = np.pad(weight, ((0, 0), (0, -weight.shape[1] % width)))
    return np.ascontiguousarray(filled.reshape(len(weight), -1, width).transpose(1, 0, 2))


def _run(mod: tvm.IRModule, name: str, arguments: Sequence[Array]) -> None:
    """Call a kernel; it writes its result into the last of the arrays."""
    placed = [tvm.runtime.tensor(argument) for argument in arguments]
    tvm.compile(mod, target="llvm")[name](*placed)
    arguments[-1][...] = placed[-1].numpy()


@pytest.mark.parametrize("columns", [48, 50, 3])
def test_a_matrix_is_packed_apart_from_its_product(columns: int) -> None:
    parts = _parts(_packed(matmul(8, columns, 24), [1]))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8, 24), "float32"), rng.standard_normal((24, columns), "float32")
    packed, result = np.full(parts.shapes[0], 7, "float32"), np.zeros((8, columns), "float32")
    _run(parts.module, "pack", [b, packed])
    assert (parts.operands, parts.dtypes) == ((1,), ("float32",))
    np.testing.assert_array_equal(packed, _blocked(b, 16))
    _run(parts.module, "main", [a, packed, result])
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_several_operands_are_packed_by_one_function(order: tuple[int, int]) -> None:
    workload = with_constants(residual(8, 48, 24), [1, 2])
    trace = packed_everywhere(workload, 16, order)
    assert trace is not None
    parts = _parts(apply_trace(workload, trace))
    assert dict(zip(parts.operands, parts.shapes, strict=True)) == {1: (3, 24, 16), 2: (3, 8, 16)}
    taken = [tuple(map(int, param.ty.shape)) for param in parts.module["pack"].params]
    plain = {1: (24, 48), 2: (8, 48)}
    assert taken == [*(plain[operand] for operand in parts.operands), *parts.shapes]


def test_the_computation_takes_the_packed_constant_only() -> None:
    parts = _parts(_packed(conv2d(8, 4, 20, 3, 1, 1), [1]))
    shapes = [tuple(map(int, param.ty.shape)) for param in parts.module["main"].params]
    assert shapes == [(1, 8, 8, 4), (2, 3, 3, 4, 16), (1, 1, 1, 20), (1, 8, 8, 20)]


@pytest.mark.parametrize("constants", [[], [0]])
def test_an_argument_that_is_not_constant_is_not_split_off(constants: list[int]) -> None:
    workload = with_constants(matmul(8, 48, 24), constants)
    sch = Schedule(workload, debug_mask="none")
    pack(sch, sch.get_sblock("T_matmul"), workload["main"].params[1], 16)
    assert split_packing(sch.mod) is None


def test_a_workload_that_packs_nothing_is_not_split() -> None:
    assert split_packing(matmul(8, 48, 24)) is None
    assert split_packing(with_constants(matmul(8, 48, 24), [1])) is None


def test_a_constant_that_is_packed_twice_is_refused() -> None:
    workload = with_constants(matmul(8, 48, 24), [1])
    with pytest.raises(Exception, match="preproc buffer is not found"):
        split_packing(apply_trace(workload, packed_twice(workload, "T_matmul", 1)))


@pytest.mark.parametrize("columns", [48, 50])
def test_a_trace_that_packs_replays(columns: int) -> None:
    workload = with_constants(matmul(8, columns, 24), [1])
    sch = Schedule(workload, debug_mask="none")
    block = sch.get_sblock("T_matmul")
    pack(sch, block, workload["main"].params[1], 16)
    tile(sch, block, 1, 16)
    assert tvm_ffi.structural_equal(apply_trace(workload, trace_of(sch)), sch.mod)


def test_a_module_without_packing_is_left_alone() -> None:
    mod = matmul(8, 48, 24)
    assert prepack(mod) is mod


def test_functions_without_blocks_are_left_alone() -> None:
    @T.prim_func(s_tir=True, private=True)
    def scan(a: T.handle, b: T.handle) -> None:
        x = T.match_buffer(a, (8,), "float32")
        y = T.match_buffer(b, (8,), "float32")
        y[0] = x[0]
        for i in range(7):
            y[i + 1] = y[i] + x[i + 1]

    packed = _packed(matmul(8, 48, 24), [1])["main"].without_attr("global_symbol")
    builder = relax.BlockBuilder()
    product, sums = builder.add_func(packed, "product"), builder.add_func(scan, "sums")
    data, row = (relax.Var("x", relax.TensorType(shape, "float32")) for shape in ((8, 24), (8,)))
    weight = relax.const(np.zeros((24, 48), "float32"))
    with builder.function("main", [data, row]):
        first = builder.emit(relax.call_tir(product, (data, weight), relax.TensorType((8, 48), "float32")))
        second = builder.emit(relax.call_tir(sums, (row,), relax.TensorType((8,), "float32")))
        builder.emit_func_output(relax.Tuple([first, second]))
    names = {name.name_hint for name, _ in prepack(builder.get()).functions_items()}
    assert {"sums", "product_prepacked"} <= names
