"""Equal calls are legalized once, into what TVM makes of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op

from compiler.importing import legalization
from compiler.importing.legalization import legalize

SHAPE = (2, 8)
TENSOR = relax.TensorType(SHAPE, "float32")
Emit = Callable[[relax.Expr], relax.Var]


def _module(body: Callable[[Emit, relax.Var, relax.Var], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", TENSOR), relax.Var("y", TENSOR)
    with builder.function("main", [x, y]):
        with builder.dataflow():
            output = builder.emit_output(body(builder.emit, x, y))
        builder.emit_func_output(output)
    return builder.get()


def _const(*shape: int, seed: int = 0) -> Any:
    return relax.const(np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32))


def _layers(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Three equal layers of a product, a sum, a softmax and a concatenation with constants."""
    for layer in range(3):
        z = emit(op.matmul(x, _const(8, 8, seed=layer)))
        z = emit(op.nn.softmax(emit(op.add(z, _const(8, seed=layer)))))
        half = emit(op.strided_slice(z, [1], [0], [4]))
        x = emit(op.concat([half, emit(op.reshape(_const(8), (2, 4)))], axis=1))
    return op.multiply(x, y)


def _scalars(emit: Emit, x: relax.Var, _y: relax.Var) -> relax.Expr:
    one = emit(op.add(x, relax.const(1.0)))
    two = emit(op.add(one, relax.const(2.0)))
    return op.add(two, relax.const(1.0))


def _attributes(emit: Emit, x: relax.Var, _y: relax.Var) -> relax.Expr:
    rows, columns = emit(op.nn.softmax(x, 0)), emit(op.nn.softmax(x, 1))
    return op.add(emit(op.nn.softmax(rows, 0)), columns)


def _operands(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
    """A product of one tensor reads it twice."""
    square = emit(op.multiply(x, x))
    return op.multiply(emit(op.multiply(square, y)), emit(op.multiply(y, y)))


def _types(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
    wide = emit(op.add(emit(op.astype(x, "float64")), emit(op.astype(y, "float64"))))
    return op.add(emit(op.astype(wide, "float32")), emit(op.add(x, y)))


def _tuples(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Two variables are bound to different tuples of one type."""
    left, right = emit(op.split(x, 2, axis=1)), emit(op.split(y, 2, axis=1))
    return op.add(emit(op.concat(left, axis=1)), emit(op.concat(right, axis=1)))


def _shapes(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
    flat = emit(op.add(emit(op.reshape(x, (16,))), emit(op.reshape(y, (16,)))))
    return op.add(emit(op.reshape(flat, SHAPE)), emit(op.full(SHAPE, relax.const(2.0), "float32")))


@pytest.mark.parametrize(
    ("body", "alone", "shared"),
    [
        (_layers, 19, 7),
        (_scalars, 3, 2),
        (_attributes, 4, 3),
        (_operands, 4, 2),
        (_types, 6, 4),
        (_tuples, 5, 4),
        (_shapes, 6, 5),
    ],
)
def test_equal_calls_are_legalized_once(
    body: Callable[[Emit, relax.Var, relax.Var], relax.Expr],
    alone: int,
    shared: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    call_te = relax.BlockBuilder.call_te

    def counted(builder: relax.BlockBuilder, *args: Any, **hints: Any) -> relax.Expr:
        calls.append(hints)
        return call_te(builder, *args, **hints)

    mod = _module(body)
    monkeypatch.setattr(relax.BlockBuilder, "call_te", counted)
    found = legalize(mod)
    assert len(calls) == shared
    calls.clear()
    monkeypatch.setattr(legalization, "_of_tvm", dict)
    expected = legalize(mod)
    assert len(calls) == alone
    assert tvm_ffi.structural_equal(found, expected)
    assert found.script(show_meta=True) == expected.script(show_meta=True)
