"""Operators that only move elements become separate kernels that read computed tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.model import fuse_operators, kernel_calls
from compiler.importing.row_writes import write_rows
from compiler.importing.views import read_through_views

NATIVE = '{"kind":"llvm"}'
TOKENS, HEADS, WIDTH = 5, 2, 4
SHAPE = (1, TOKENS, 3 * HEADS * WIDTH)
Emit = Callable[[relax.BlockBuilder, relax.Var], list[relax.Expr]]


def _module(emit: Emit) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple([builder.emit(one) for one in emit(builder, x)]))
        builder.emit_func_output(output)
    return builder.get()


def _heads(places: list[int]) -> Emit:
    """Tokens' heads, those at one place each, as PyTorch's attention takes queries, keys and values."""

    def emit(b: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
        parts = b.emit(relax.op.reshape(b.emit(relax.op.exp(x)), (1, TOKENS, 3, HEADS, WIDTH)))
        heads = b.emit(relax.op.permute_dims(parts, [2, 0, 3, 1, 4]))
        taken = [b.emit(relax.op.take(heads, relax.const(place, "int64"), -5, "clip")) for place in places]
        return [*taken[:-1], relax.op.permute_dims(taken[-1], [0, 1, 3, 2])]

    return emit


def _gate(b: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """A gated unit: one part of a split is multiplied with the sigmoid of another, and one is moved."""
    parts = b.emit(relax.op.split(b.emit(relax.op.exp(x)), [6, 12], -1))
    gate, value, moved = (b.emit(part) for part in parts)
    wide = b.emit(relax.op.reshape(moved, (1, TOKENS, 6, 2)))
    return [
        relax.op.multiply(b.emit(relax.op.sigmoid(gate)), value),
        relax.op.permute_dims(wide, [0, 2, 1, 3]),
    ]


def _takes_of_results(b: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """A take from a computed tensor, or at several places, is no slice of a view."""
    rows = b.emit(relax.op.exp(x))
    columns = b.emit(relax.op.permute_dims(rows, [0, 2, 1]))
    several = relax.const(np.array([3, 0], dtype=np.int64), "int64")
    return [
        relax.op.take(rows, relax.const(1, "int64"), 1, "clip"),
        relax.op.take(columns, several, 1, "clip"),
    ]


CASES = {
    "the heads of an attention": (_heads([0, 1, 2]), 4),
    "places beyond the ends": (_heads([-1, 1, 7]), 4),
    "a gated unit": (_gate, 3),
    "takes of what was computed": (_takes_of_results, 4),
}
cases = pytest.mark.parametrize(("emit", "kernels"), CASES.values(), ids=CASES)


def _run(module: tvm.IRModule) -> list[NDArray[np.generic]]:
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    return [output.numpy() for output in machine["main"](tvm.runtime.tensor(x))]


@cases
def test_the_results_are_the_same(emit: Emit, kernels: int) -> None:
    module = _module(emit)
    for ours, theirs in zip(_run(read_through_views(module)), _run(module), strict=True):
        assert np.array_equal(ours, theirs)


@cases
def test_each_result_is_one_kernel_over_what_was_computed(emit: Emit, kernels: int) -> None:
    assert len(kernel_calls(fuse_operators(read_through_views(_module(emit)), NATIVE))) == kernels


def _calls(module: tvm.IRModule) -> list[tvm.ir.Call]:
    found: list[tvm.ir.Call] = []
    relax.analysis.post_order_visit(
        module["main"], lambda expr: found.append(expr) if isinstance(expr, tvm.ir.Call) else None
    )
    return found


def test_takes_of_what_was_computed_stay_takes() -> None:
    names = [call.op.name for call in _calls(read_through_views(_module(_takes_of_results)))]
    assert names.count("relax.take") == 2


def _reshaped(*, is_output: bool) -> Emit:
    """The softmax of a reshaped softmax; the reshaped one is an output, too, or isn't."""

    def emit(b: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
        flat = b.emit(relax.op.reshape(b.emit(relax.op.nn.softmax(x)), (TOKENS * 3, HEADS * WIDTH)))
        return [relax.op.nn.softmax(flat), *([flat] if is_output else [])]

    return emit


@pytest.mark.parametrize(
    ("is_output", "kernels"), [(False, ["softmax", "softmax"]), (True, ["softmax", "reshape", "softmax"])]
)
def test_a_reshape_between_kernels_is_none_unless_it_is_an_output(
    is_output: bool, kernels: list[str]
) -> None:
    module = _module(_reshaped(is_output=is_output))
    fused = fuse_operators(module, NATIVE)
    assert [call.args[0].name_hint.rstrip("0123456789") for call in kernel_calls(fused)] == kernels
    for ours, theirs in zip(_run(fused), _run(module), strict=True):
        assert np.array_equal(ours, theirs)


def test_the_first_rows_of_a_tensor_are_no_reshape() -> None:
    """They are where the tensor begins, as its reshapes are."""
    module = _module(lambda b, x: [relax.op.nn.softmax(b.emit(relax.op.strided_slice(x, [1], [0], [2])))])
    ((ours,), (theirs,)) = (_run(each) for each in (fuse_operators(module, NATIVE), module))
    assert np.array_equal(ours, theirs)


def test_a_reshaped_input_is_returned_as_a_copy() -> None:
    fused = fuse_operators(_module(lambda b, x: [b.emit(relax.op.reshape(x, (TOKENS, -1))), x]), NATIVE)
    assert len(kernel_calls(fused)) == 1


def test_a_buffer_that_is_written_in_place_is_copied_before() -> None:
    builder = relax.BlockBuilder()
    buffer, rows = (relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in ("buffer", "rows"))
    position = relax.Var("position", relax.TensorType((1,), "int64"))
    with builder.function("main", [buffer, rows, position]):
        with builder.dataflow():
            before = builder.emit(relax.op.reshape(buffer, (TOKENS * 3, HEADS * WIDTH)))
            written = builder.emit(write_rows(builder, buffer, rows, position, 1))
            output = builder.emit_output(relax.Tuple([builder.emit(relax.op.nn.softmax(before)), written]))
        builder.emit_func_output(output)
    names = [call.args[0].name_hint for call in kernel_calls(fuse_operators(builder.get(), NATIVE))]
    assert [name.rstrip("0123456789") for name in names] == ["reshape", "write_rows", "softmax"]
