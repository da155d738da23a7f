from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from compiler.constants import fold
from compiler.constants.fold import fold_constants, fold_others
from compiler.constants.forms import lower_scalars, raise_ranks
from compiler.constants.scales import fold_scales

SHAPE = (1, 4, 6, 6)


def _module(emit: Callable[[relax.BlockBuilder, relax.Var], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(emit(builder, x))
        builder.emit_func_output(output)
    return builder.get()


def _const(*shape: int, seed: int = 0) -> Any:
    return relax.const(np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32))


def _operators(mod: tvm.IRModule) -> list[str]:
    return [
        binding.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]


def _run(mod: tvm.IRModule) -> Any:
    machine = relax.VirtualMachine(relax.build(mod, tvm.target.Target("llvm")), tvm.cpu())
    x = np.random.default_rng(9).standard_normal(SHAPE).astype(np.float32)
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def _convolution(b: relax.BlockBuilder, x: relax.Expr) -> relax.Var:
    return b.emit(relax.op.nn.conv2d(x, _const(8, 4, 3, 3)))


def test_expressions_of_constants_become_constants() -> None:
    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        c = b.emit(relax.op.permute_dims(_const(6, 4, 1, 6), [2, 1, 0, 3]))
        c = b.emit(relax.op.sqrt(b.emit(relax.op.add(c, relax.const(1.0)))))
        c = b.emit(relax.op.reshape(b.emit(relax.op.divide(c, relax.const(2.0))), (1, 4, 6, 6)))
        return relax.op.multiply(x, c)

    mod = _module(emit)
    folded = fold_constants(mod)
    assert _operators(folded) == ["multiply"]
    np.testing.assert_allclose(_run(folded), _run(mod), rtol=1e-6)


def test_integer_division_is_left_to_tvm() -> None:
    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        quotient = b.emit(relax.op.divide(relax.const(np.array([-7])), relax.const(np.array([2]))))
        return relax.op.add(x, b.emit(relax.op.astype(quotient, "float32")))

    assert "divide" in _operators(fold_constants(_module(emit)))


def _chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    y = b.emit(relax.op.tanh(b.emit(relax.op.add(x, b.emit(relax.op.round(_const(*SHAPE)))))))
    c = b.emit(relax.op.concat([b.emit(relax.op.tanh(_const(1, 1, 6, 6))), _const(1, 3, 6, 6)], axis=1))
    return relax.op.multiply(y, c)


def _parts(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    parts = b.emit(relax.op.split(_const(1, 8, 6, 6), 2, axis=1))
    return relax.op.add(x, b.emit(relax.TupleGetItem(parts, 1)))


@pytest.mark.parametrize(
    ("emit", "legalized"),
    [
        (lambda b, x: relax.op.tanh(b.emit(relax.op.add(x, _const(*SHAPE)))), 0),
        (_chain, 3),
        (lambda b, x: relax.op.add(x, b.emit(relax.op.zeros_like(x))), 1),
        (lambda b, x: relax.op.add(x, b.emit(relax.op.ones(SHAPE, "float32"))), 1),
        (lambda b, x: relax.op.add(x, b.emit(relax.op.ones((100, *SHAPE), "float32"))), 0),
        (lambda b, x: relax.op.tanh(_const(2, 3)), 1),
        (lambda b, x: relax.op.shape_to_tensor(b.emit(relax.op.shape_of(x))), 1),
        (_parts, 2),
    ],
    ids=["no constants", "chain", "like", "small", "large", "output", "shape", "tuple"],
)
def test_tvm_folds_what_numpy_does_not_and_legalizes_only_that(
    emit: Callable[[relax.BlockBuilder, relax.Var], relax.Expr],
    legalized: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod = _module(emit)
    expected = relax.transform.FoldConstant()(mod)
    seen = []
    call_te = relax.BlockBuilder.call_te

    def counted(builder: relax.BlockBuilder, *args: Any, **hints: Any) -> relax.Expr:
        seen.append(hints)
        return call_te(builder, *args, **hints)

    monkeypatch.setattr(relax.BlockBuilder, "call_te", counted)
    folded = fold_others(mod)
    assert len(seen) == legalized
    assert tvm_ffi.structural_equal(folded, expected)
    assert folded.script(show_meta=True) == expected.script(show_meta=True)


def test_tvm_folds_whole_functions_of_unknown_form() -> None:
    """Outside of dataflow blocks, it folds only calls of kernels."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, builder.emit(relax.op.round(_const(*SHAPE))))))
    mod = builder.get()
    folded = fold_others(mod)
    assert _operators(folded) == ["round", "add"]
    assert tvm_ffi.structural_equal(folded, relax.transform.FoldConstant()(mod))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize(("axis", "count"), [(0, 1), (1, 4), (-1, 6)])
def test_dequantized_weights_become_floats_if_wanted(dtype: str, axis: int, count: int) -> None:
    """The extremes of the type, too, but for int32, whose differences TVM computes in int32."""
    rng, limits = np.random.default_rng(0), np.iinfo(dtype)
    codes = rng.integers(limits.min // 2, limits.max // 2, (1, 4, 1, 6)).astype(dtype)
    codes.flat[:2] = (0, 1) if dtype == "int32" else (limits.min, limits.max)
    zeros = rng.integers(0, 100, count).astype(dtype)

    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        constants = (relax.const(codes, dtype), _const(count), relax.const(zeros, dtype))
        return relax.op.add(x, b.emit(relax.op.dequantize(*constants, axis)))

    mod = _module(emit)
    assert _operators(fold_constants(mod)) == ["dequantize", "add"]
    folded = fold_constants(mod, widen=True)
    assert _operators(folded) == ["add"]
    assert np.array_equal(_run(folded), _run(mod))


def test_a_large_result_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_CONSTANT_BYTES", 100)
    mod = _module(lambda b, x: relax.op.add(x, b.emit(relax.op.broadcast_to(_const(1, 4, 1, 1), SHAPE))))
    assert "broadcast_to" in _operators(fold_constants(mod))


def test_scales_and_shifts_go_into_the_convolution() -> None:
    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.subtract(_convolution(b, x), _const(1, 8, 1, 1)))
        y = b.emit(relax.op.divide(y, _const(8, 1, 1, seed=1)))
        y = b.emit(relax.op.multiply(_const(1, 8, 1, 1, seed=2), y))
        return relax.op.add(y, relax.const(3.0))

    mod = _module(emit)
    folded = fold_scales(mod)
    assert _operators(folded) == ["nn.conv2d", "add"]
    np.testing.assert_allclose(_run(folded), _run(mod), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "value",
    [_const(1, 8, 4, 4), _const(1, 1, 1, 4), _const(2, 8, 1, 1), relax.const(0.0)],
    ids=["per element", "per column", "grows the batch", "division by zero"],
)
def test_arithmetic_that_is_not_per_channel_or_not_finite_stays(value: Any) -> None:
    mod = _module(lambda b, x: relax.op.divide(_convolution(b, x), value))
    assert _operators(fold_scales(mod)) == ["nn.conv2d", "divide"]


def test_a_constant_minus_a_convolution_stays() -> None:
    mod = _module(lambda b, x: relax.op.subtract(_const(1, 8, 1, 1), _convolution(b, x)))
    assert _operators(fold_scales(mod)) == ["nn.conv2d", "subtract"]


def test_a_convolution_with_two_readers_keeps_its_weights() -> None:
    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = _convolution(b, x)
        return relax.op.add(b.emit(relax.op.multiply(conv, _const(1, 8, 1, 1))), conv)

    assert _operators(fold_scales(_module(emit))) == ["nn.conv2d", "multiply", "add"]


def test_a_convolution_that_is_an_output_keeps_its_weights() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = builder.emit_output(relax.op.nn.conv2d(x, _const(8, 4, 3, 3)))
            scaled = builder.emit_output(relax.op.multiply(conv, _const(1, 8, 1, 1)))
        builder.emit_func_output(relax.Tuple([conv, scaled]))
    assert _operators(fold_scales(builder.get())) == ["nn.conv2d", "multiply"]


def test_ranks_are_raised_and_scalars_lowered_again() -> None:
    mod = _module(lambda b, x: relax.op.maximum(b.emit(relax.op.add(x, _const(6))), relax.const(0.5)))
    raised = raise_ranks(mod)
    assert [tuple(c.args[1].value.shape) for c in _calls(raised)] == [(1, 1, 1, 6), (1, 1, 1, 1)]
    assert [tuple(c.args[1].value.shape) for c in _calls(lower_scalars(raised))] == [(1, 1, 1, 6), ()]
    np.testing.assert_array_equal(_run(lower_scalars(raised)), _run(mod))


def test_scales_and_zeros_of_bytes_stay_tensors() -> None:
    """So do constants that a rounding follows, but neither bounds nor other scalars."""

    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = b.emit(relax.op.astype(x, "uint8"))
        for compute, number in (
            (None, 0.0),
            (relax.op.subtract, 3.0),
            (relax.op.multiply, 0.1),
            (relax.op.add, 1.0),
            (relax.op.tanh, None),
            (relax.op.multiply, 0.5),
            (relax.op.maximum, -1.0),
            (relax.op.add, 7.0),
        ):
            operand = [] if number is None else [relax.const(number)]
            value = b.emit(compute(value, *operand) if compute else relax.op.astype(value, "float32"))
        return relax.op.round(value)

    lowered = lower_scalars(raise_ranks(_module(emit)))
    shapes = [(_name(c), tuple(c.args[1].value.shape)) for c in _calls(lowered) if len(c.args) == 2]
    one = (1,) * len(SHAPE)
    assert shapes == [
        ("subtract", one),
        ("multiply", one),
        ("add", ()),
        ("multiply", one),
        ("maximum", ()),
        ("add", one),
    ]


def _name(call: Any) -> str:
    return str(call.op.name).removeprefix("relax.")


def _calls(mod: tvm.IRModule) -> list[Any]:
    return [binding.value for block in mod["main"].body.blocks for binding in block.bindings]


def test_constants_keep_the_types_of_ids() -> None:
    def emit(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        ids = b.emit(relax.op.astype(x, "int64"))
        ids = b.emit(relax.op.add(ids, relax.const(100, "int64")))
        folded = b.emit(relax.op.permute_dims(relax.const(np.ones(SHAPE[::-1], np.int64), "int64")))
        return relax.op.add(ids, folded)

    mod = _module(emit)
    assert _run(lower_scalars(raise_ranks(fold_constants(mod)))).dtype == np.int64
